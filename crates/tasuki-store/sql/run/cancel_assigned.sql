-- run/cancel_assigned: T9, ASSIGNED -> CANCELED. The attempt stays on the row as its last one; its start will find no match.
update tasuki_run
   set state = 'CANCELED',
       outcome = 'CANCELED',
       finished_at = :now,
       error_code = 'CANCELED',
       reason = :reason,
       cancel_requested_at = :now,
       cancel_requested_by = :asked_by,
       version = version + 1
 where id = :run_id
   and state = 'ASSIGNED'
