-- doctor/count_due_runs: how many runs the due rows stand for. The cast is needed because a sum is a decimal here.
select cast(coalesce(sum(extra_runs + 1), 0) as signed) as due
  from tasuki_due
