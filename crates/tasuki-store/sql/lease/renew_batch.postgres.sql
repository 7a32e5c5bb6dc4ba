-- lease/renew_batch: T3 for all leases of a worker in one round trip, and what is still carried under each. Whose they are
-- is asked in a way that no index answers: the token's is the only one to go by.
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
select touched.token, carried.id, carried.state, carried.cancel_requested_at,
       exists (select from tasuki_worker w
                where w.id = :worker_id and w.detached_at is null and w.dead_at is null and w.gone_at is null)::int as attached
  from touched
  left join lateral tasuki_carried(touched.token, touched.run_ids) as carried on true
 order by touched.token, carried.id
