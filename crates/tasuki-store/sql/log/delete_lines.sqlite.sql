-- log/delete_lines: retention, with their runs.
delete from tasuki_log_chunk
 where run_id in (select value from json_each(:ids))
