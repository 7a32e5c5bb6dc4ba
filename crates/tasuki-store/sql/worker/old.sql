-- worker/old: those that nobody has heard of for long, and that carry nothing.
select id
  from tasuki_worker
 where id <> :asks
   and heartbeat_at < :now - :age
   and not exists (select 1 from tasuki_lease l where l.worker_id = tasuki_worker.id)
 order by heartbeat_at
 limit :most
