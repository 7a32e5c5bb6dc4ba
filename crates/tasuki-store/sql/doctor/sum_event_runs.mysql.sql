-- doctor/sum_event_runs: the sum of the numbers of runs that processed events record. The cast is needed because a sum
-- is a decimal here.
select cast(coalesce(sum(runs), 0) as signed) as recorded_runs
  from tasuki_event
 where processed_at is not null
