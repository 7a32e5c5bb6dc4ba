-- log/delete_lines: retention, with their runs.
delete from tasuki_log_chunk
 where run_id = any(:ids)
