-- due/cut: the first of a stretch are taken, and the others wait on.
update tasuki_due
   set run_id = run_id + :taken,
       more = more - :taken
 where lane = :lane
   and due_at = :due_at
   and run_id = :run_id
   and more >= :taken
