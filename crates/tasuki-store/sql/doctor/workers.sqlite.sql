-- doctor/workers: what each worker carries under its leases, and its room. A list is a JSON text here. Commands that were
-- assigned and those that were claimed have slots of their own; and what is claimed is claimed again while as many ends are on
-- their way, which still show as RUNNING.
select l.worker_id,
       3 * w.slots + 2 * w.function_slots as room,
       count(distinct r.id) as carried,
       count(distinct case when r.state = 'RUNNING' then r.id end) as running
  from tasuki_lease l
 cross join json_each(case when json_valid(l.run_ids) then l.run_ids else '[]' end) x
 cross join tasuki_run_life r on r.id = x.value
                   and r.lease_token = l.token
                   and r.state in ('ASSIGNED', 'RUNNING')
  left join tasuki_worker w on w.id = l.worker_id
 group by l.worker_id, w.slots, w.function_slots
