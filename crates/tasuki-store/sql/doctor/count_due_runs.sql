-- doctor/count_due_runs: how many runs the due rows stand for.
select coalesce(sum(extra_runs + 1), 0) as due
  from tasuki_due
