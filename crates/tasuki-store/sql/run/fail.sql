-- run/fail: T6, T8 and T11, RUNNING -> an end without success. The row is locked, and the new state was decided from
-- it.
-- The clock may have been set back since the start; a run never ends before its start.
update tasuki_run
   set state = :state,
       outcome = :outcome,
       finished_at = case when started_at > :now then started_at else :now end,
       failed_at = case when :state <> 'CANCELED' then :now end,
       exit_code = :exit_code,
       exit_signal = :exit_signal,
       error_code = :error_code,
       error_message = :error_message,
       result = :result,
       rows_affected = :rows_affected,
       log_ref = :log_ref,
       reason = :reason,
       tries_allowed = :tries_allowed,
       isolated = :isolated,
       version = version + 1
 where id = :run_id
   and state = 'RUNNING'
   and lease_token = :token
