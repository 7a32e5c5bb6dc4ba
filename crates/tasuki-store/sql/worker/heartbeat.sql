-- worker/heartbeat: record a heartbeat, and return what a worker needs regularly: the clock, and whether there is
-- anything else for it to read. A worker that was marked gone or dead stays so.
update tasuki_worker
   set heartbeat_at = :now
 where id = :id
   and dead_at is null
   and gone_at is null
returning id, node, address, slots, function_slots, labels, heartbeat_at, draining_at, detached_at, dead_at, gone_at,
       :now as clock,
       (select v.version from tasuki_setting_version v where v.id = 1) as settings_version,
       (select count(*) from tasuki_lease l where l.worker_id = :id) as leases,
       (select t.epoch from tasuki_leader_term t where t.id = 1) as epoch
