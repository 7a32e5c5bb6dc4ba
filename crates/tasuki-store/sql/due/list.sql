-- due/list: what waits in a lane, soonest first. The attempts by a look at each run's key: a join could scan them all.
select d.run_id, d.due_at, d.exclusive, d.more, (select r.attempt_no from tasuki_run r where r.id = d.run_id) as attempt_no
  from tasuki_due d
 where d.lane = :lane
   and d.due_at <= :until
 order by d.due_at, d.run_id
 limit :most
