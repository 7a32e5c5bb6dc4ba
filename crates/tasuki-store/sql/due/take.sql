-- due/take: whoever deletes the row has the run to itself.
delete from tasuki_due
 where lane = :lane
   and due_at = :due_at
   and run_id = :run_id
