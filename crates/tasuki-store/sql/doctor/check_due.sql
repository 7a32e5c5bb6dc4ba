-- doctor/check_due: due rows with a run that does not wait or waits elsewhere. Only executed when the counts differ. A
-- row that stands for several runs is reported by its first run.
select *
  from (select d.run_id as id,
               case when exists (
                         select 1
                           from tasuki_run r
                          where r.id >= d.run_id
                            and r.id <= d.run_id + d.extra_runs
                            and r.state in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SKIPPED', 'EXPIRED'))
                    then 1 else 0 end as ended_but_due,
               case when (select count(*)
                            from tasuki_run r
                           where r.id >= d.run_id
                             and r.id <= d.run_id + d.extra_runs
                             and (r.state in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SKIPPED', 'EXPIRED')
                                  or (r.state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
                                      and r.lane = d.lane
                                      and coalesce(r.next_retry_at, r.scheduled_for) = d.due_at))) <> d.extra_runs + 1
                    then 1 else 0 end as wrongly_due
          from tasuki_due d) x
 where ended_but_due + wrongly_due > 0
 limit :limit
