-- event/lock_unprocessed: lock one unprocessed event while its runs are created. No row: it has been processed.
select id
  from tasuki_event
 where id = :id
   and processed_at is null
   for update
