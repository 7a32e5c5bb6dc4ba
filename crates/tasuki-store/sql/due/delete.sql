-- due/delete: delete the due row of one run. The transaction that deletes the row has the run to itself. Not for a row
-- that stands for several runs.
delete from tasuki_due
 where lane = :lane
   and due_at = :due_at
   and run_id = :run_id
   and extra_runs = 0
