-- worker/forget: nobody has heard of it for long, and it carries nothing: it counts as gone and claims nothing any more. Not as
-- dead: should a claim of it be landing just now, its lease lasts as long as any.
update tasuki_worker
   set gone_at = :now
 where id in (
           select id
             from (select o.id
                     from tasuki_worker o
                    where o.id <> :asks
                      and o.gone_at is null
                      and o.heartbeat_at < :now - :age
                      and not exists (select 1 from tasuki_lease l where l.worker_id = o.id)
                    order by o.heartbeat_at
                    limit :most) old)
   and gone_at is null
   and heartbeat_at < :now - :age
   and not exists (select 1 from tasuki_lease l where l.worker_id = tasuki_worker.id)
