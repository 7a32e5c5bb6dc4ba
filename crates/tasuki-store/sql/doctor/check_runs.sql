-- doctor/check_runs: contradictions in the run rows of this id range. A column with the value 1 is a finding; rows
-- without a finding are left out. One scan of the range serves all checks.
select *
  from (select r.id,
               case when r.state in ('ASSIGNED', 'RUNNING')
                     and (r.lease_token is null
                          or r.worker_id is null
                          or r.assigned_at is null
                          or (r.state = 'RUNNING') <> (r.started_at is not null))
                    then 1 else 0 end as no_attempt,
               case when r.state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
                     and (r.lease_token is not null
                          or r.worker_id is not null
                          or r.assigned_at is not null
                          or r.started_at is not null)
                    then 1 else 0 end as leftover_attempt,
               case when r.state in ('ASSIGNED', 'RUNNING')
                     and exists (select 1 from tasuki_lease l
                                  where l.token = r.lease_token
                                    and l.worker_id <> r.worker_id)
                    then 1 else 0 end as foreign_lease,
               case when (r.finished_at is not null) <> (r.state in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SKIPPED', 'EXPIRED'))
                    then 1 else 0 end as wrongly_finished,
               case when r.epoch > :current_epoch
                    then 1 else 0 end as epoch_ahead,
               case when r.state = 'SUCCEEDED' and (r.outcome is null or r.outcome <> 'SUCCEEDED' or r.started_at is null)
                      or r.state <> 'SUCCEEDED' and r.outcome = 'SUCCEEDED'
                    then 1 else 0 end as wrongly_succeeded,
               case when r.tries < 0 or r.tries > r.tries_allowed or r.tries > r.attempt_no
                    then 1 else 0 end as too_many_tries,
               case when r.state = 'SKIPPED' and (r.tries <> 0 or r.started_at is not null)
                    then 1 else 0 end as skipped_but_started,
               case when r.exclusive <> 0
                     and r.state in ('ASSIGNED', 'RUNNING')
                     and not exists (select 1 from tasuki_hold h
                                      where h.job_id = r.job_id
                                        and h.scope_kind = r.scope_kind
                                        and h.scope_id = r.scope_id
                                        and h.run_id = r.id
                                        and h.token = r.lease_token)
                    then 1 else 0 end as no_hold,
               case when r.started_at < coalesce(r.next_retry_at, r.scheduled_for)
                    then 1 else 0 end as started_early
          from tasuki_run r
         where r.id >= :from
           and r.id <= :to) x
 where no_attempt + leftover_attempt + foreign_lease + wrongly_finished + epoch_ahead + wrongly_succeeded + too_many_tries
       + skipped_but_started + no_hold + started_early > 0
 order by id
 limit :limit
