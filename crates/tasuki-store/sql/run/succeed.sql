-- run/succeed: T4, RUNNING -> SUCCEEDED. Only under the token it was started with; it wins over a cancel that was asked.
update tasuki_run
   set state = 'SUCCEEDED',
       outcome = 'SUCCEEDED',
       finished_at = :now,
       exit_code = :exit_code,
       result = :result,
       rows_affected = :rows_affected,
       log_ref = :log_ref,
       version = version + 1
 where id = :run_id
   and state = 'RUNNING'
   and lease_token = :token
