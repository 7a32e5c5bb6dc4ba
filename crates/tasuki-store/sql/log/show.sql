-- log/show: one attempt's counters.
select * from tasuki_log where run_id = :run_id and attempt_no = :attempt_no
