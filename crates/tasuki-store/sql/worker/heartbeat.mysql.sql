-- worker/heartbeat: record a heartbeat. The worker reads what it needs with a second statement
-- (worker/find_heartbeat_reply). A worker that was marked gone or dead stays so.
update tasuki_worker
   set heartbeat_at = :now
 where id = :id
   and dead_at is null
   and gone_at is null
