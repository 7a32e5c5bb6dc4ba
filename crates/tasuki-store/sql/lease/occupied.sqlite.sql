-- lease/occupied: how much of a worker's room is taken: what runs, and what is due within a second. What it claimed has slots of its own.
select count(*) as occupied
  from tasuki_lease l
 cross join json_each(l.run_ids) x
 cross join tasuki_run_life r on r.id = x.value
 where l.worker_id = :worker_id
   and l.epoch is not null
   and r.lease_token = l.token
   and (r.state = 'RUNNING'
        or r.state = 'ASSIGNED' and coalesce(r.next_retry_at, r.scheduled_for) <= :now + 1000000)
