-- lease/lapsed: leases nobody renewed, and those of workers that were reported dead. Two questions, each with its own
-- index: together with "or" they have none, and every lease would be read. The second compares by a difference, which
-- no index answers: it is to go by the worker.
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
 limit :most
