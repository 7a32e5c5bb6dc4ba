-- doctor/check_waiting_runs: waiting runs of this id range that are not in exactly one due row. Each due row that can
-- stand for the run is read by its key, because MariaDB uses no index for a range that depends on another row.
select *
  from (select id, case when found = 0 then 1 else 0 end as not_due, case when found > 1 then 1 else 0 end as twice_due
          from (select r.id,
                       (select count(*)
                          from json_table(:offsets, '$[*]' columns (nth bigint path '$')) n
                          straight_join tasuki_due d
                             on d.lane = r.lane
                            and d.due_at = coalesce(r.next_retry_at, r.scheduled_for)
                            and d.run_id = r.id - n.nth
                         where d.extra_runs >= n.nth
                           and d.exclusive = r.exclusive
                           and d.isolated = r.isolated) as found
                  from tasuki_run r
                 where r.id >= :from
                   and r.id <= :to
                   and r.state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')) x) y
 where not_due + twice_due > 0
 order by id
 limit :limit
