-- doctor/check_due: due rows with a run that does not wait or waits elsewhere. Only executed when the counts differ. A
-- row that stands for several runs is reported by its first run. Each run is read by its key, because MariaDB uses no
-- index for a range that depends on another row.
select *
  from (select d.run_id as id,
               max(case when r.state in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SKIPPED', 'EXPIRED') then 1 else 0 end)
                   as ended_but_due,
               max(case when r.state in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SKIPPED', 'EXPIRED') then 0
                        when r.state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
                             and r.lane = d.lane
                             and coalesce(r.next_retry_at, r.scheduled_for) = d.due_at then 0
                        else 1 end) as wrongly_due
          from tasuki_due d
          straight_join json_table(:offsets, '$[*]' columns (nth bigint path '$')) n on n.nth <= d.extra_runs
          left join tasuki_run r on r.id = d.run_id + n.nth
         group by d.lane, d.due_at, d.run_id) x
 where ended_but_due + wrongly_due > 0
 limit :limit
