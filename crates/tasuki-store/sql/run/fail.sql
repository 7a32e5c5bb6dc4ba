-- run/fail: T6, T8 and T11, RUNNING -> an end that is not a success. The row is locked and its move was decided on it.
update tasuki_run
   set state = :state,
       outcome = :outcome,
       finished_at = :now,
       ended_badly_at = case when :state <> 'CANCELED' then :now end,
       exit_code = :exit_code,
       exit_signal = :exit_signal,
       error_code = :error_code,
       error_message = :error_message,
       result = :result,
       rows_affected = :rows_affected,
       log_ref = :log_ref,
       reason = :reason,
       tries_allowed = :tries_allowed,
       alone = :alone,
       version = version + 1
 where id = :run_id
   and state = 'RUNNING'
   and lease_token = :token
