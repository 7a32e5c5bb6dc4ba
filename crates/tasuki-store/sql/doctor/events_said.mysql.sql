-- doctor/events_said: how many runs processed events say they have. A sum is a decimal here unless it is cast.
select cast(coalesce(sum(runs), 0) as signed) as said
  from tasuki_event
 where processed_at is not null
