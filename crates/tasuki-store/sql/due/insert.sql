-- due/insert: add a waiting run to the due table. skip_at is the instant after which it must not start: its skip time
-- or its expiry, whichever is earlier. A run that has been started before is never skipped.
insert into tasuki_due (lane, due_at, run_id, exclusive, isolated, skip_at)
select lane,
       coalesce(next_retry_at, scheduled_for),
       id,
       exclusive,
       isolated,
       case when tries > 0 or skip_at is null or expires_at < skip_at then expires_at else skip_at end
  from tasuki_run
 where id = :run_id
