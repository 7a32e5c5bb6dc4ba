-- transition_record/list_of_run: the transition records of a run.
select * from tasuki_run_note where run_id = :run_id order by id
