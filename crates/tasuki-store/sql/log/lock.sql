-- log/lock: one attempt's counters, held still while lines are added.
select * from tasuki_log where run_id = :run_id and attempt_no = :attempt_no for update
