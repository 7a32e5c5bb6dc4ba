-- run/submit_and_claim: T0 and T1c in one write: create tasks that a worker in the same process starts immediately.
-- Guard: the worker accepts work, and no run in the lane is due already.
with clock as materialized (
    select :now as now
), inserted as (
    insert into tasuki_run (job_id, job_version, origin, scope_kind, scope_id, lane, exclusive, max_attempts, tries_allowed,
        scheduled_for, created_at, args, state, attempt_no, tries, worker_id, lease_token, assigned_at, started_at, version)
    select g.job_id, g.job_version, :origin, g.scope_kind, g.scope_id, :lane, 0, g.max_attempts, g.max_attempts,
        clock.now, clock.now, g.args, 'RUNNING', 1, 1, :worker_id, :token, clock.now, clock.now, 2
      from unnest(:job_ids::bigint[], :job_versions::bigint[], :scope_kinds::text[], :scope_ids::text[],
               :max_attempts::bigint[], :args::text[])
           with ordinality as g (job_id, job_version, scope_kind, scope_id, max_attempts, args, nth), clock
     where exists (select from tasuki_worker w
                    where w.id = :worker_id
                      and w.draining_at is null and w.detached_at is null and w.dead_at is null and w.gone_at is null)
       and not exists (select from tasuki_due d where d.lane = :lane and d.due_at <= clock.now)
     order by g.nth
    returning id, job_id, job_version, origin, scope_kind, scope_id, scheduled_for, next_retry_at, attempt_no, tries,
        event_id, args
), leased as (
    insert into tasuki_lease (token, worker_id, lease_until, heartbeat_at, run_ids)
    select :token, :worker_id, (select now from clock) + :ttl, (select now from clock),
        '[' || string_agg(id::text, ',' order by id) || ']'
      from inserted
    having count(*) > 0
)
select * from inserted
