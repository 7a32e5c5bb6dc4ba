-- run/is_too_early: whether a start that matched no row was only too early.
select id
  from tasuki_run
 where id = :run_id
   and state = 'ASSIGNED'
   and lease_token = :token
   and worker_id = :worker_id
   and cancel_requested_at is null
   and coalesce(next_retry_at, scheduled_for) > :now
