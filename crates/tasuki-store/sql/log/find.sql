-- log/find: the log counters of one attempt.
select * from tasuki_log where run_id = :run_id and attempt_no = :attempt_no
