-- worker/detach: detach a worker.
update tasuki_worker
   set detached_at = :now,
       detach_reason = :reason
 where id = :id
   and detached_at is null
   and gone_at is null
