-- due/put_between: the runs that were just made in one insert wait, so many in each row. None where this server does not hand
-- out every id: what lies between may be others' runs.
insert into tasuki_due (lane, due_at, run_id, exclusive, skip_at, more)
select lane, scheduled_for, id, exclusive,
       case when skip_at is null or expires_at < skip_at then expires_at else skip_at end,
       case when :last - id < :each then :last - id else :each - 1 end
  from tasuki_run
 where id between :first and :last
   and (id - :first) % :each = 0
   and @@session.auto_increment_increment = 1
