-- doctor/events_odd: events that are marked as processed without saying how many runs they made.
select id,
       1 as event_half_marked
  from tasuki_event
 where processed_at is not null
   and runs is null
 order by id
 limit :most
