-- doctor/sum_event_runs: the sum of the numbers of runs that processed events record.
select cast(coalesce(sum(runs), 0) as bigint) as recorded_runs
  from tasuki_event
 where processed_at is not null
