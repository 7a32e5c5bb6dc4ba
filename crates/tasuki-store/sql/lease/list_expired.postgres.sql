-- lease/list_expired: leases that were not renewed in time, and those of workers that were reported dead. Two queries,
-- each with its own index: for one query with "or" PostgreSQL would read every lease. The second query compares a
-- difference, so that the planner uses the index on the worker and not the one on lease_until.
with clock as materialized (
    select :now - :grace as latest
)
select token, worker_id, epoch, lease_until, heartbeat_at, run_ids
  from tasuki_lease
 where lease_until < (select latest from clock)
union all
select token, worker_id, epoch, lease_until, heartbeat_at, run_ids
  from tasuki_lease
 where worker_id = any(array(select id from tasuki_worker where dead_at is not null))
   and lease_until - (select latest from clock) >= 0
 order by lease_until
 limit :limit
