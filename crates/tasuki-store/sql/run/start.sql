-- run/start: T2, ASSIGNED -> RUNNING: the worker starts the attempt. Guard: this worker still has the lease token, in
-- time, and no cancel was requested.
update tasuki_run
   set state = 'RUNNING',
       tries = tries + 1,
       releases = 0,
       started_at = :now,
       version = version + 1
 where id = :run_id
   and state = 'ASSIGNED'
   and lease_token = :token
   and worker_id = :worker_id
   and cancel_requested_at is null
   and coalesce(next_retry_at, scheduled_for) <= :now
   and start_by > :now
   and tries < tries_allowed
