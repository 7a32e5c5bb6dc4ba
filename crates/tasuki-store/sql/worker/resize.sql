-- worker/resize: the settings give it more or less room.
update tasuki_worker
   set slots = :slots,
       function_slots = :function_slots
 where id = :id
   and dead_at is null
   and gone_at is null
