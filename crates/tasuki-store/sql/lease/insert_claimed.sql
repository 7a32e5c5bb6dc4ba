-- lease/insert_claimed: create the lease of the runs that a worker claims together.
insert into tasuki_lease (token, worker_id, epoch, lease_until, heartbeat_at, run_ids)
values (:token, :worker_id, :epoch, :now + :ttl, :now, :run_ids)
