-- run/end_waiting: T9, T12 and T13: end a waiting run, which has no attempt on its row.
update tasuki_run
   set state = :state,
       finished_at = :now,
       failed_at = case when :state = 'EXPIRED' then :now end,
       reason = :reason,
       cancel_requested_at = case when :state = 'CANCELED' then :now end,
       cancel_requested_by = :requested_by,
       version = version + 1
 where id = :run_id
   and state = :from_state
