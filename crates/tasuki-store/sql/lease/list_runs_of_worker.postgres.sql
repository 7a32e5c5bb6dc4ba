-- lease/list_runs_of_worker: all assigned or running runs of a worker, assigned and claimed ones. The ids are passed as
-- a list, because in a join the planner may start with the runs and read all of them.
with worker_leases as materialized (
    select token, run_ids from tasuki_lease where worker_id = :worker_id
)
select r.worker_id, r.lease_token as token, r.id, r.state, r.start_by, coalesce(r.next_retry_at, r.scheduled_for) as due_at
  from tasuki_run r
 where r.id = any(array(select x.id::bigint from worker_leases, json_array_elements_text(worker_leases.run_ids::json) as x (id)))
   and r.lease_token = any(array(select token from worker_leases))
   and r.state in ('ASSIGNED', 'RUNNING')
