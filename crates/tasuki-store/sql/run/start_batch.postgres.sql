-- run/start_batch: T2 for a batch in one round trip. The lease comes first: without its row, or for a detached worker,
-- nothing starts, whatever the runs contain. The clock is read after the wait for the lease. At least one row is
-- returned, which shows whether the lease was there.
with held as materialized (
    select tasuki_lock_lease(:token, :worker_id) as is_ours
), clock as materialized (
    select :now as now from held where is_ours
), touched as (
    update tasuki_lease l
       set lease_until = clock.now + :ttl,
           heartbeat_at = clock.now
      from clock
     where l.token = :token
    returning l.token
), moved as (
    update tasuki_run r
       set state = 'RUNNING',
           tries = r.tries + 1,
           releases = 0,
           started_at = clock.now,
           version = r.version + 1
      from unnest(:ids::bigint[]) as g (id), touched, clock
     where r.id = g.id
       and r.state = 'ASSIGNED'
       and r.lease_token = touched.token
       and r.worker_id = :worker_id
       and r.cancel_requested_at is null
       and coalesce(r.next_retry_at, r.scheduled_for) <= clock.now
       and r.start_by > clock.now
       and r.tries < r.tries_allowed
    returning r.id, r.job_id, r.job_version, r.origin, r.scope_kind, r.scope_id, r.scheduled_for, r.next_retry_at,
              r.attempt_no, r.tries, r.event_id, r.args
)
select (select count(*) from touched) as leased, moved.*
  from (select) as always
  left join moved on true
