-- cursor/upsert_global: start to schedule a job that has no cursor, at this instant and for the global scope. The row
-- may exist already, if a concurrent transaction has just inserted it.
insert into tasuki_cursor (job_id, next_fire)
values (:job_id, :next_fire)
on conflict (job_id, scope_kind, scope_id) do update
   set next_fire = excluded.next_fire
