-- lease/of_worker: what a worker carries.
select token, worker_id, epoch, lease_until, heartbeat_at, run_ids
  from tasuki_lease
 where worker_id = :worker_id
