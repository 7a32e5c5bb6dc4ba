-- doctor/waiting: runs of a stretch that wait, but not in one row of due as they should. Each row that can stand for the run by its
-- key: a range that depends on the run is none that an index is used for here.
select *
  from (select id, case when found = 0 then 1 else 0 end as not_due, case when found > 1 then 1 else 0 end as twice_due
          from (select r.id,
                       (select count(*)
                          from json_table(:places, '$[*]' columns (place bigint path '$')) n
                          straight_join tasuki_due d
                             on d.lane = r.lane
                            and d.due_at = coalesce(r.next_retry_at, r.scheduled_for)
                            and d.run_id = r.id - n.place
                         where d.more >= n.place
                           and d.exclusive = r.exclusive
                           and d.alone = r.alone) as found
                  from tasuki_run r
                 where r.id >= :from
                   and r.id <= :to
                   and r.state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')) x) y
 where not_due + twice_due > 0
 order by id
 limit :most
