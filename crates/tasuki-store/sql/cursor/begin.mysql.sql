-- cursor/begin: a job without a cursor is planned from here, for everything; or somebody has just begun to.
insert into tasuki_cursor (job_id, next_fire)
values (:job_id, :next_fire)
on duplicate key update next_fire = values(next_fire)
