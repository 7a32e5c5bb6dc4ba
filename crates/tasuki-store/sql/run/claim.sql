-- run/claim: T1c, a waiting run -> RUNNING. A worker takes and starts it in one.
update tasuki_run
   set state = 'RUNNING',
       attempt_no = attempt_no + 1,
       tries = tries + 1,
       releases = 0,
       worker_id = :worker_id,
       lease_token = :token,
       assigned_at = :now,
       started_at = :now,
       version = version + 1
 where id = :run_id
   and state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
   and cancel_requested_at is null
   and coalesce(next_retry_at, scheduled_for) <= :now
   and (tries > 0 or skip_at is null or skip_at >= :now)
   and tries < tries_allowed
