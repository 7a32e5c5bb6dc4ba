-- cursor/delete: a job that is no more is not planned.
delete from tasuki_cursor
 where job_id = :job_id
