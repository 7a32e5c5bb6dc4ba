-- due/list_in_lane: the runs that wait in a lane, earliest due first. The attempts are read by a subquery per run,
-- because a join could scan all runs.
select d.run_id, d.due_at, d.exclusive, d.extra_runs, (select r.attempt_no from tasuki_run r where r.id = d.run_id) as attempt_no
  from tasuki_due d
 where d.lane = :lane
   and d.due_at <= :until
 order by d.due_at, d.run_id
 limit :limit
