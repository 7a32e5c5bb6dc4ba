-- due/put: the run waits. What has been started before is never skipped, so it carries no skip_at.
insert into tasuki_due (lane, due_at, run_id, exclusive, alone, skip_at)
select lane,
       coalesce(next_retry_at, scheduled_for),
       id,
       exclusive,
       alone,
       case when tries = 0 then skip_at end
  from tasuki_run
 where id = :run_id
