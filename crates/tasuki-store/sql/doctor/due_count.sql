-- doctor/due_count: how many rows are in due.
select count(*) as due
  from tasuki_due
