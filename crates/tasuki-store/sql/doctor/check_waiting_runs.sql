-- doctor/check_waiting_runs: waiting runs of this id range that are not in exactly one due row. The subquery counts,
-- among the due rows that can stand for the run, by key: for a `not exists` PostgreSQL may read the whole due table
-- into memory, again for every range.
select *
  from (select id, case when found = 0 then 1 else 0 end as not_due, case when found > 1 then 1 else 0 end as twice_due
          from (select r.id,
                       (select count(*)
                          from tasuki_due d
                         where d.lane = r.lane
                           and d.due_at = coalesce(r.next_retry_at, r.scheduled_for)
                           and d.run_id <= r.id
                           and d.run_id > r.id - 64
                           and d.run_id + d.extra_runs >= r.id
                           and d.exclusive = r.exclusive
                           and d.isolated = r.isolated) as found
                  from tasuki_run r
                 where r.id >= :from
                   and r.id <= :to
                   and r.state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')) x) y
 where not_due + twice_due > 0
 order by id
 limit :limit
