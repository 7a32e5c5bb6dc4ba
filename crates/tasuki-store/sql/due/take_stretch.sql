-- due/take_stretch: a row with all that it stands for.
delete from tasuki_due
 where lane = :lane
   and due_at = :due_at
   and run_id = :run_id
