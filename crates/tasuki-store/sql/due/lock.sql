-- due/lock: what can be claimed, passing over what others are claiming.
select run_id, due_at, exclusive, alone
  from tasuki_due
 where lane = :lane
   and due_at <= :now
   and (skip_at is null or skip_at >= :now)
 order by due_at, run_id
 limit :most
   for update skip locked
