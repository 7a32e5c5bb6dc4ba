-- worker/heartbeat: it is alive. One that was declared gone or dead stays so.
update tasuki_worker
   set heartbeat_at = :now
 where id = :id
   and dead_at is null
   and gone_at is null
