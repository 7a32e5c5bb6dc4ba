-- log/delete: retention, with their runs.
delete from tasuki_log
 where run_id = any(:ids)
