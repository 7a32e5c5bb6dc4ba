-- event/mark_processed: mark an event as processed, in the transaction that creates its runs (possibly none). Guard: it
-- has not been processed before.
update tasuki_event
   set processed_at = :now,
       runs = :runs,
       problem = :problem
 where id = :id
   and processed_at is null
