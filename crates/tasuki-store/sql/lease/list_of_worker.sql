-- lease/list_of_worker: the leases of a worker.
select token, worker_id, epoch, lease_until, heartbeat_at, run_ids
  from tasuki_lease
 where worker_id = :worker_id
