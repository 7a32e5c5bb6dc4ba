-- event/lock: one open event, held still while its runs are made. No row: it was taken before.
select id
  from tasuki_event
 where id = :id
   and processed_at is null
   for update
