-- doctor/due_count: how many runs the rows in due stand for.
select coalesce(sum(more + 1), 0) as due
  from tasuki_due
