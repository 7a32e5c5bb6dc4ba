-- lease/renew_batch: T3 for all leases of a worker in one round trip, and what is still carried under each.
with clock as materialized (
    select :now as now
), touched as (
    update tasuki_lease l
       set lease_until = clock.now + :ttl,
           heartbeat_at = clock.now
      from unnest(:tokens::uuid[]) as g (token), clock
     where l.token = g.token
       and l.worker_id = :worker_id
    returning l.token, l.run_ids
)
select touched.token, r.id, r.state, r.cancel_requested_at,
       exists (select from tasuki_worker w
                where w.id = :worker_id and w.detached_at is null and w.dead_at is null and w.gone_at is null)::int as attached
  from touched
  left join lateral (
      select r.id, r.state, r.cancel_requested_at
        from json_array_elements_text(touched.run_ids::json) as x (id)
        join tasuki_run r on r.id = x.id::bigint
       where r.lease_token = touched.token
         and r.state in ('ASSIGNED', 'RUNNING')
  ) r on true
 order by touched.token, r.id
