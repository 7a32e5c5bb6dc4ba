-- run/succeed_between: T4 for runs under one token whose ids follow one another, and of which the same is told.
update tasuki_run
   set state = 'SUCCEEDED',
       outcome = 'SUCCEEDED',
       finished_at = :now,
       exit_code = :exit_code,
       result = :result,
       rows_affected = :rows_affected,
       log_ref = :log_ref,
       version = version + 1
 where id between :first and :last
   and state = 'RUNNING'
   and lease_token = :token
