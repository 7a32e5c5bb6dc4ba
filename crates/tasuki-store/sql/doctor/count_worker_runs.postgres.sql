-- doctor/count_worker_runs: how many runs each worker has under its leases, and how many it may have. Assigned and
-- claimed commands have separate slots. And a worker claims again while the reports of as many ended runs, which are
-- still RUNNING here, are on their way. The list of a lease is a JSON text.
select l.worker_id,
       3 * w.slots + 2 * w.function_slots as max_runs,
       count(distinct r.id) as leased,
       count(distinct case when r.state = 'RUNNING' then r.id end) as running
  from tasuki_lease l
 cross join json_array_elements_text((case when l.run_ids ~ '^[[][0-9, ]*[]]$' then l.run_ids else '[]' end)::json) x(value)
  join tasuki_run r on r.id = x.value::bigint
                   and r.lease_token = l.token
                   and r.state in ('ASSIGNED', 'RUNNING')
  left join tasuki_worker w on w.id = l.worker_id
 group by l.worker_id, w.slots, w.function_slots
