-- due/take: whoever deletes the row has the run to itself. Not a row that stands for others, too.
delete from tasuki_due
 where lane = :lane
   and due_at = :due_at
   and run_id = :run_id
   and more = 0
