-- attempt/delete: retention: delete the attempts of these runs.
delete from tasuki_attempt
 where run_id = any(:ids)
