-- run/succeed_alike: T4 for runs under one token of which the same is told.
update tasuki_run_life
   set state = 'SUCCEEDED',
       outcome = 'SUCCEEDED',
       finished_at = :now,
       exit_code = :exit_code,
       result = :result,
       rows_affected = :rows_affected,
       log_ref = :log_ref,
       version = version + 1
 where id in (select value from json_each(:ids))
   and state = 'RUNNING'
   and lease_token = :token
