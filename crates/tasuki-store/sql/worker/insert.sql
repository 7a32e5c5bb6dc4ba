-- worker/insert: register a new incarnation of a worker.
insert into tasuki_worker (id, node, pid, address, labels, slots, function_slots, version, started_at, heartbeat_at)
values (:id, :node, :pid, :address, :labels, :slots, :function_slots, :version, :now, :now)
