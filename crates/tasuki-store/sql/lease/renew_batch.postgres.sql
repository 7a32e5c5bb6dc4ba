-- lease/renew_batch: T3 for all leases of a worker in one round trip; returns the assigned or running runs of each
-- lease. The worker is compared in an expression, so that the planner uses only the primary key.
with clock as materialized (
    select :now as now
), touched as (
    update tasuki_lease l
       set lease_until = clock.now + :ttl,
           heartbeat_at = clock.now
      from unnest(:tokens::uuid[]) as g (token), clock
     where l.token = g.token
       and case when l.worker_id = :worker_id then 1 else 0 end = 1
    returning l.token, l.run_ids
)
select touched.token, runs.id, runs.state, runs.cancel_requested_at,
       exists (select from tasuki_worker w
                where w.id = :worker_id and w.detached_at is null and w.dead_at is null and w.gone_at is null)::int as attached
  from touched
  left join lateral tasuki_leased_runs(touched.token, touched.run_ids) as runs on true
 order by touched.token, runs.id
