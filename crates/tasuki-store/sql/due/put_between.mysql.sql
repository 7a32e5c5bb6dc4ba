-- due/put_between: the runs that were just made in one insert wait. None where this server does not hand out every id:
-- what lies between may be others' runs.
insert into tasuki_due (lane, due_at, run_id, exclusive, skip_at)
select lane, scheduled_for, id, exclusive, skip_at
  from tasuki_run
 where id between :first and :last
   and @@session.auto_increment_increment = 1
