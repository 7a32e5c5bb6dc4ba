-- cursor/begin: a job without a cursor is planned from here, for everything; or somebody has just begun to.
insert into tasuki_cursor (job_id, next_fire)
values (:job_id, :next_fire)
on conflict (job_id, scope_kind, scope_id) do update
   set next_fire = excluded.next_fire
