-- run/cancel_assigned: T9, ASSIGNED -> CANCELED. The attempt stays on the row as the last one; its start will find no
-- matching row.
update tasuki_run
   set state = 'CANCELED',
       outcome = 'CANCELED',
       finished_at = :now,
       error_code = 'CANCELED',
       reason = :reason,
       cancel_requested_at = :now,
       cancel_requested_by = :requested_by,
       version = version + 1
 where id = :run_id
   and state = 'ASSIGNED'
