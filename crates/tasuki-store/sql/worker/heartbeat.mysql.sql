-- worker/heartbeat: it is alive; what it has to know it asks apart. One that was declared gone or dead stays so.
update tasuki_worker
   set heartbeat_at = :now
 where id = :id
   and dead_at is null
   and gone_at is null
