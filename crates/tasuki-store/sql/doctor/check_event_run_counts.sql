-- doctor/check_event_run_counts: events that are marked as processed but do not record how many runs they created.
select id,
       1 as event_without_count
  from tasuki_event
 where processed_at is not null
   and runs is null
 order by id
 limit :limit
