-- due/take_stretch: a row with all that it stood for when it was looked at.
delete from tasuki_due
 where lane = :lane
   and due_at = :due_at
   and run_id = :run_id
   and more = :more
