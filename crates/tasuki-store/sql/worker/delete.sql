-- worker/delete: retention. It has been gone for so long that what it was claiming then has landed, and would be seen.
delete from tasuki_worker
 where id in (
           select id
             from (select o.id
                     from tasuki_worker o
                    where o.id <> :asks
                      and o.gone_at < :now - :pause
                      and o.heartbeat_at < :now - :age
                      and not exists (select 1 from tasuki_lease l where l.worker_id = o.id)
                    order by o.heartbeat_at
                    limit :most) old)
   and not exists (select 1 from tasuki_lease l where l.worker_id = tasuki_worker.id)
