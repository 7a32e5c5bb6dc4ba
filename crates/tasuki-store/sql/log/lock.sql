-- log/lock: lock the log counters of one attempt while lines are added.
select * from tasuki_log where run_id = :run_id and attempt_no = :attempt_no for update
