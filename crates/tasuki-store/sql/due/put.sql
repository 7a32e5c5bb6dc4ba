-- due/put: the run waits, and is not started after it would be skipped or expires, whichever is first. What has been
-- started before is never skipped.
insert into tasuki_due (lane, due_at, run_id, exclusive, alone, skip_at)
select lane,
       coalesce(next_retry_at, scheduled_for),
       id,
       exclusive,
       alone,
       case when tries > 0 or skip_at is null or expires_at < skip_at then expires_at else skip_at end
  from tasuki_run
 where id = :run_id
