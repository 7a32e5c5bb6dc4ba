-- lease/mine: everything a worker carries, however it came by it. The runs are asked for as a list, as in lease/carried.
with mine as materialized (
    select token, run_ids from tasuki_lease where worker_id = :worker_id
)
select r.worker_id, r.lease_token as token, r.id, r.state, r.start_by, coalesce(r.next_retry_at, r.scheduled_for) as due_at
  from tasuki_run r
 where r.id = any(array(select x.id::bigint from mine, json_array_elements_text(mine.run_ids::json) as x (id)))
   and r.lease_token = any(array(select token from mine))
   and r.state in ('ASSIGNED', 'RUNNING')
