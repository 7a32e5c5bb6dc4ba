-- note/of_run: the notes of a run.
select * from tasuki_run_note where run_id = :run_id order by id
