-- worker/mark_silent_gone: mark workers as gone that have sent no heartbeat for long and have no lease; they can no
-- longer claim. Not as dead: if a claim of such a worker is landing now, its lease lasts as long as any other.
update tasuki_worker
   set gone_at = :now
 where id in (
           select id
             from (select o.id
                     from tasuki_worker o
                    where o.id <> :caller
                      and o.gone_at is null
                      and o.heartbeat_at < :now - :min_age
                      and not exists (select 1 from tasuki_lease l where l.worker_id = o.id)
                    order by o.heartbeat_at
                    limit :limit) old)
   and gone_at is null
   and heartbeat_at < :now - :min_age
   and not exists (select 1 from tasuki_lease l where l.worker_id = tasuki_worker.id)
