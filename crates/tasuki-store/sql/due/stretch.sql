-- due/stretch: the row that stands for a run together with others. It begins no further away than a stretch is long. Only a
-- look: who locks a range waits for its neighbours on MySQL.
select run_id, more
  from tasuki_due
 where lane = :lane
   and due_at = :due_at
   and run_id >= :earliest
   and run_id <= :run_id
   and more > 0
   and run_id + more >= :run_id
