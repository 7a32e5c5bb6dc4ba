-- worker/delete: retention. Held back if it was heard of meanwhile, or carries something.
delete from tasuki_worker
 where id = :id
   and heartbeat_at < :now - :age
   and not exists (select 1 from tasuki_lease l where l.worker_id = tasuki_worker.id)
