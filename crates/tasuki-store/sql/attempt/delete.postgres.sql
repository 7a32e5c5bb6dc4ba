-- attempt/delete: retention, with their runs.
delete from tasuki_attempt
 where run_id = any(:ids)
