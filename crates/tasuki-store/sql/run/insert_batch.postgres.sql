-- run/insert_batch: T0 for a batch in one round trip. A conflict on a slot or an idempotency key inserts nothing for
-- that run. A list may be shorter than the batch: missing values are those of the first run, or null where the column
-- allows it.
with clock as materialized (
    select :now as now
), inserted as (
    insert into tasuki_run (job_id, job_version, origin, scope_kind, scope_id, lane, exclusive, max_attempts, tries_allowed,
        scheduled_for, created_at, slot, idempotency_key, event_id, rerun_of, args, skip_at, expires_at)
    select coalesce(g.job_id, (:job_ids::bigint[])[1]), coalesce(g.job_version, (:job_versions::bigint[])[1]),
        coalesce(g.origin, (:origins::text[])[1]), coalesce(g.scope_kind, (:scope_kinds::text[])[1]),
        coalesce(g.scope_id, (:scope_ids::text[])[1]), coalesce(g.lane, (:lanes::text[])[1]),
        coalesce(g.exclusive, (:exclusives::bigint[])[1]), coalesce(g.max_attempts, (:max_attempts::bigint[])[1]),
        coalesce(g.max_attempts, (:max_attempts::bigint[])[1]), coalesce(g.scheduled_for, clock.now), clock.now, g.slot,
        g.idempotency_key, g.event_id, g.rerun_of, g.args, g.skip_at, g.expires_at
      from rows from (generate_series(1, :count::bigint), unnest(:job_ids::bigint[], :job_versions::bigint[], :origins::text[], :scope_kinds::text[],
               :scope_ids::text[], :lanes::text[], :exclusives::bigint[], :max_attempts::bigint[], :scheduled::bigint[],
               :slots::text[], :idempotency_keys::text[], :events::bigint[], :reruns::bigint[], :args::text[], :skips::bigint[],
               :expires::bigint[]))
           as g (number, job_id, job_version, origin, scope_kind, scope_id, lane, exclusive, max_attempts, scheduled_for,
               slot, idempotency_key, event_id, rerun_of, args, skip_at, expires_at), clock
    on conflict do nothing
    returning id, lane, scheduled_for, exclusive, skip_at, expires_at, job_id, scope_kind, scope_id, slot, idempotency_key
), queued as (
    insert into tasuki_due (lane, due_at, run_id, exclusive, skip_at)
    select lane, scheduled_for, id, exclusive,
        case when skip_at is null or expires_at < skip_at then expires_at else skip_at end
      from inserted
)
select id, job_id, scope_kind, scope_id, slot, idempotency_key from inserted
