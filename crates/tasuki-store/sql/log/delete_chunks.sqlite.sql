-- log/delete_chunks: retention: delete the captured output of these runs.
delete from tasuki_log_chunk
 where run_id in (select value from json_each(:ids))
