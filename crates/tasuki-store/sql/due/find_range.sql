-- due/find_range: the due row whose id range contains this run. It starts at most one maximal range length before the
-- run. Reads without a lock, because locking a range on MariaDB also waits for the neighbouring rows.
select run_id, extra_runs
  from tasuki_due
 where lane = :lane
   and due_at = :due_at
   and run_id >= :earliest
   and run_id <= :run_id
   and extra_runs > 0
   and run_id + extra_runs >= :run_id
