-- cursor/put: a (job, scope) begins to be planned.
insert into tasuki_cursor (job_id, scope_kind, scope_id, next_fire)
values (:job_id, :scope_kind, :scope_id, :next_fire)
