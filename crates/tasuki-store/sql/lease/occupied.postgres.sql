-- lease/occupied: how much of a worker's room is taken: what runs, and what is due within a second. What it
-- claimed has slots of its own. The runs are asked for as a list: in a join the planner may begin with the runs, and read
-- all of them.
with mine as materialized (
    select token, run_ids from tasuki_lease where worker_id = :worker_id and epoch is not null
)
select count(*) as occupied
  from tasuki_run r
 where r.id = any(array(select x.id::bigint from mine, json_array_elements_text(mine.run_ids::json) as x (id)))
   and r.lease_token = any(array(select token from mine))
   and (r.state = 'RUNNING'
        or r.state = 'ASSIGNED' and coalesce(r.next_retry_at, r.scheduled_for) <= :now + 1000000)
