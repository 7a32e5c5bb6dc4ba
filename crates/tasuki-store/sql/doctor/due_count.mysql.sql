-- doctor/due_count: how many runs the rows in due stand for. A sum is a decimal here unless it is cast.
select cast(coalesce(sum(more + 1), 0) as signed) as due
  from tasuki_due
