-- run/cancel_ask: T10, RUNNING, a cancel is asked. Once.
update tasuki_run
   set cancel_requested_at = :now,
       cancel_requested_by = :asked_by,
       version = version + 1
 where id = :run_id
   and state = 'RUNNING'
   and cancel_requested_at is null
