-- log/delete: retention: delete the log rows of these runs.
delete from tasuki_log
 where run_id = any(:ids)
