-- cursor/replan: every (job, scope) of a job is planned from here. Also where that is where it stands: the lock makes a
-- leader that is planning it from the old definition wait, and then see the new one.
update tasuki_cursor
   set next_fire = :next_fire
 where job_id = :job_id
