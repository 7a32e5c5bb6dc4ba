-- worker/resize: change the number of slots of a worker, after a change of the settings.
update tasuki_worker
   set slots = :slots,
       function_slots = :function_slots
 where id = :id
   and dead_at is null
   and gone_at is null
