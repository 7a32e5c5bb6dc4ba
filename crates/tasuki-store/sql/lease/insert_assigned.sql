-- lease/insert_assigned: create the lease of the runs that the leader assigns to a worker together. It lasts until the
-- last of them must have been started.
insert into tasuki_lease (token, worker_id, epoch, lease_until, heartbeat_at, run_ids)
values (:token, :worker_id, :epoch, case when :due_at > :now then :due_at else :now end + :after, :now, :run_ids)
