-- due/insert_ranges: add the runs of one multi-row insert to the due table, up to :range_len runs per row. Inserts
-- nothing if the server does not hand out every id (auto_increment_increment > 1), because the ids between may be the
-- runs of others.
insert into tasuki_due (lane, due_at, run_id, exclusive, skip_at, extra_runs)
select lane, scheduled_for, id, exclusive,
       case when skip_at is null or expires_at < skip_at then expires_at else skip_at end,
       case when :last - id < :range_len then :last - id else :range_len - 1 end
  from tasuki_run
 where id between :first and :last
   and (id - :first) % :range_len = 0
   and @@session.auto_increment_increment = 1
