-- event/take: with the runs it makes, which may be none. Once.
update tasuki_event
   set processed_at = :now,
       runs = :runs,
       problem = :problem
 where id = :id
   and processed_at is null
