-- lease/carried: everything the leader gave away that is still carried, and by whom. The runs are asked for as a list: in
-- a join the planner may begin with the runs, and read all of them.
with given as materialized (
    select worker_id, token, run_ids from tasuki_lease where epoch is not null
)
select r.worker_id, r.lease_token as token, r.id, r.state, r.start_by, coalesce(r.next_retry_at, r.scheduled_for) as due_at
  from tasuki_run r
 where r.id = any(array(select x.id::bigint from given, json_array_elements_text(given.run_ids::json) as x (id)))
   and r.lease_token = any(array(select token from given))
   and r.state in ('ASSIGNED', 'RUNNING')
