-- run/insert: T0, none -> PENDING. A conflict on the slot or the idempotency key inserts nothing.
insert into tasuki_run_data (job_id, job_version, origin, scope_kind, scope_id, lane, exclusive, max_attempts,
    scheduled_for, created_at, slot, idempotency_key, event_id, rerun_of, args, skip_at, expires_at)
values (:job_id, :job_version, :origin, :scope_kind, :scope_id, :lane, :exclusive, :max_attempts,
    coalesce(:scheduled_for, :now), :now, :slot, :idempotency_key, :event_id, :rerun_of, :args, :skip_at, :expires_at)
on conflict do nothing
returning id
