-- doctor/check_events_without_runs: processed events that record runs but have none. Only executed when the sums
-- differ.
select e.id,
       1 as event_without_runs
  from tasuki_event e
 where e.processed_at is not null
   and e.runs > 0
   and e.id not in (select event_id from tasuki_run where event_id is not null)
 order by e.id
 limit :limit
