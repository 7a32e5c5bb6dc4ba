-- attempt/list_of_run: the recorded attempts of a run, without the one that is still on the run row.
select * from tasuki_attempt where run_id = :run_id order by attempt_no
