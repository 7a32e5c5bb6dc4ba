-- cursor/delete_of_job: delete all cursors of a deleted job.
delete from tasuki_cursor
 where job_id = :job_id
