-- worker/delete_gone: retention: delete workers that have been gone for so long that a claim that was under way then
-- has landed and would be visible.
delete from tasuki_worker
 where id in (
           select id
             from (select o.id
                     from tasuki_worker o
                    where o.id <> :caller
                      and o.gone_at < :now - :min_gone
                      and o.heartbeat_at < :now - :min_age
                      and not exists (select 1 from tasuki_lease l where l.worker_id = o.id)
                    order by o.heartbeat_at
                    limit :limit) old)
   and not exists (select 1 from tasuki_lease l where l.worker_id = tasuki_worker.id)
