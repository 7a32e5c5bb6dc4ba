-- note/delete: retention, with their runs.
delete from tasuki_run_note
 where run_id = any(:ids)
