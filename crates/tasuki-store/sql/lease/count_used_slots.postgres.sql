-- lease/count_used_slots: how many slots of a worker are used by assigned runs: those that are running or due within
-- one second. Claimed runs have separate slots. The ids are passed as a list, because in a join the planner may start
-- with the runs and read all of them.
with worker_leases as materialized (
    select token, run_ids from tasuki_lease where worker_id = :worker_id and epoch is not null
)
select count(*) as used_slots
  from tasuki_run r
 where r.id = any(array(select x.id::bigint from worker_leases, json_array_elements_text(worker_leases.run_ids::json) as x (id)))
   and r.lease_token = any(array(select token from worker_leases))
   and (r.state = 'RUNNING'
        or r.state = 'ASSIGNED' and coalesce(r.next_retry_at, r.scheduled_for) <= :now + 1000000)
