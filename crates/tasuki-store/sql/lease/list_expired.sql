-- lease/list_expired: leases that were not renewed in time, and those of workers that were reported dead.
select l.token, l.worker_id, l.epoch, l.lease_until, l.heartbeat_at, l.run_ids
  from tasuki_lease l
  left join tasuki_worker w on w.id = l.worker_id
 where l.lease_until < :now - :grace
    or w.dead_at is not null
 order by l.lease_until
 limit :limit
