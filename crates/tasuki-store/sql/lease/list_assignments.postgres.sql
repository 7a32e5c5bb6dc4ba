-- lease/list_assignments: all assigned or running runs that the leader assigned, and their workers. The ids are passed
-- as a list, because in a join the planner may start with the runs and read all of them.
with assigned_leases as materialized (
    select worker_id, token, run_ids from tasuki_lease where epoch is not null
)
select r.worker_id, r.lease_token as token, r.id, r.state, r.start_by, coalesce(r.next_retry_at, r.scheduled_for) as due_at
  from tasuki_run r
 where r.id = any(array(select x.id::bigint from assigned_leases, json_array_elements_text(assigned_leases.run_ids::json) as x (id)))
   and r.lease_token = any(array(select token from assigned_leases))
   and r.state in ('ASSIGNED', 'RUNNING')
