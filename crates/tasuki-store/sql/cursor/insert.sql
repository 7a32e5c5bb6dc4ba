-- cursor/insert: start to schedule a (job, scope).
insert into tasuki_cursor (job_id, scope_kind, scope_id, next_fire)
values (:job_id, :scope_kind, :scope_id, :next_fire)
