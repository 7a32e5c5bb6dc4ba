-- doctor/check_attempts: compare the recorded attempts with the run rows, for one range of run ids. A run row holds an
-- attempt exactly when it has a lease token; all other attempts, numbered from 1, have rows of their own.
select *
  from (select r.id,
               case when a.last_no > r.attempt_no - r.on_row
                    then 1 else 0 end as attempt_twice,
               case when coalesce(a.attempts, 0) < r.attempt_no - r.on_row or a.first_no < 1
                    then 1 else 0 end as attempt_missing,
               case when r.tries <> coalesce(a.started, 0) + r.started
                    then 1 else 0 end as tries_miscounted,
               case when a.succeeded > 0
                    then 1 else 0 end as success_appended,
               case when a.epoch > :current_epoch
                    then 1 else 0 end as attempt_epoch_ahead,
               case when r.on_row = 1 and r.assigned_at < a.finished_at
                    then 1 else 0 end as assigned_before_end
          from (select id,
                       attempt_no,
                       tries,
                       assigned_at,
                       case when lease_token is not null then 1 else 0 end as on_row,
                       case when lease_token is not null and started_at is not null then 1 else 0 end as started
                  from tasuki_run
                 where id >= :from
                   and id <= :to) r
          left join (select run_id,
                            count(*) as attempts,
                            count(started_at) as started,
                            count(case when outcome = 'SUCCEEDED' then 1 end) as succeeded,
                            min(attempt_no) as first_no,
                            max(attempt_no) as last_no,
                            max(epoch) as epoch,
                            max(finished_at) as finished_at
                       from tasuki_attempt
                      where run_id >= :from
                        and run_id <= :to
                      group by run_id) a on a.run_id = r.id) x
 where attempt_twice + attempt_missing + tries_miscounted + success_appended + attempt_epoch_ahead + assigned_before_end > 0
 order by id
 limit :limit
