-- transition_record/delete: retention: delete the transition records of these runs.
delete from tasuki_run_note
 where run_id in (select value from json_each(:ids))
