-- lease/count_per_worker: the number of leases of each worker, counted along the index on the worker.
select worker_id, count(*) as leases
  from tasuki_lease
 group by worker_id
 order by worker_id
