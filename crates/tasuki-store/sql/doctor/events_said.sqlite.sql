-- doctor/events_said: how many runs processed events say they have.
select cast(coalesce(sum(runs), 0) as bigint) as said
  from tasuki_event
 where processed_at is not null
