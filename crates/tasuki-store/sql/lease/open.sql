-- lease/open: everything the leader gave a worker in one go, until the last of it must have been started.
insert into tasuki_lease (token, worker_id, epoch, lease_until, heartbeat_at, run_ids)
values (:token, :worker_id, :epoch, case when :due_at > :now then :due_at else :now end + :after, :now, :run_ids)
