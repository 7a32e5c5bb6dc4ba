-- attempt/of_run: the attempts of a run that no longer stand on its row.
select * from tasuki_attempt where run_id = :run_id order by attempt_no
