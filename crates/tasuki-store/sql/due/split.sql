-- due/split: claim the first runs of an id range; the others continue to wait.
update tasuki_due
   set run_id = run_id + :claimed,
       extra_runs = extra_runs - :claimed
 where lane = :lane
   and due_at = :due_at
   and run_id = :run_id
   and extra_runs >= :claimed
