-- run/early: whether a start that did not match was merely too early.
select id
  from tasuki_run
 where id = :run_id
   and state = 'ASSIGNED'
   and lease_token = :token
   and worker_id = :worker_id
   and cancel_requested_at is null
   and coalesce(next_retry_at, scheduled_for) > :now
