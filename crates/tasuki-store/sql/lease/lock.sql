-- lease/lock: lock one lease.
select token, worker_id, epoch, lease_until, heartbeat_at, run_ids
  from tasuki_lease
 where token = :token
   for update
