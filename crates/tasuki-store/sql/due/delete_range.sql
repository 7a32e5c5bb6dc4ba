-- due/delete_range: delete a due row. Guard: it still stands for the id range that was read.
delete from tasuki_due
 where lane = :lane
   and due_at = :due_at
   and run_id = :run_id
   and extra_runs = :extra_runs
