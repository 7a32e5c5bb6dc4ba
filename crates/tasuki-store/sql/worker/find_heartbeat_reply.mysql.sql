-- worker/find_heartbeat_reply: one worker, the clock, and whether there is anything else for it to read.
select w.*,
       :now as clock,
       (select v.version from tasuki_setting_version v where v.id = 1) as settings_version,
       (select count(*) from tasuki_lease l where l.worker_id = w.id) as leases,
       (select t.epoch from tasuki_leader_term t where t.id = 1) as epoch
  from tasuki_worker w
 where w.id = :id
