-- lease/open_for: everything a worker claimed in one go.
insert into tasuki_lease (token, worker_id, epoch, lease_until, heartbeat_at, run_ids)
values (:token, :worker_id, :epoch, :now + :ttl, :now, :run_ids)
