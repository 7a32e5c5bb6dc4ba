-- cursor/move_all_of_job: move every cursor of a job to this instant. The update runs even if it changes no value: its
-- row lock makes a leader that is planning the job from the old definition wait, and that leader then sees the new
-- definition.
update tasuki_cursor
   set next_fire = :next_fire
 where job_id = :job_id
