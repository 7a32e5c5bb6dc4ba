-- run/request_cancel: T10, RUNNING: request the cancel of a running run. Guard: not requested before.
update tasuki_run
   set cancel_requested_at = :now,
       cancel_requested_by = :requested_by,
       version = version + 1
 where id = :run_id
   and state = 'RUNNING'
   and cancel_requested_at is null
