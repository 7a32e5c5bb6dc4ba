-- due/list: what waits in a lane, soonest first.
select run_id, due_at, exclusive, alone, skip_at
  from tasuki_due
 where lane = :lane
   and due_at <= :until
 order by due_at, run_id
 limit :most
