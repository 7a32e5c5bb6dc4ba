-- lease/per_worker: how much each worker carries, counted along the index of workers.
select worker_id, count(*) as leases
  from tasuki_lease
 group by worker_id
 order by worker_id
