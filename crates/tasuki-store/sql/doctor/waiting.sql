-- doctor/waiting: runs of a stretch that wait, but not in one row of due as they should. Due is counted by key, among those rows
-- that can stand for the run: for a `not exists` PostgreSQL may read all of due into memory, again for every stretch.
select *
  from (select id, case when found = 0 then 1 else 0 end as not_due, case when found > 1 then 1 else 0 end as twice_due
          from (select r.id,
                       (select count(*)
                          from tasuki_due d
                         where d.lane = r.lane
                           and d.due_at = coalesce(r.next_retry_at, r.scheduled_for)
                           and d.run_id <= r.id
                           and d.run_id > r.id - 64
                           and d.run_id + d.more >= r.id
                           and d.exclusive = r.exclusive
                           and d.alone = r.alone) as found
                  from tasuki_run r
                 where r.id >= :from
                   and r.id <= :to
                   and r.state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')) x) y
 where not_due + twice_due > 0
 order by id
 limit :most
