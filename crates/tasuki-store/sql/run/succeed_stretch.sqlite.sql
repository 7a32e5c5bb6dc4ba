-- run/succeed_stretch: T4 for runs under one token of which the same is told, and whose ids follow one another.
update tasuki_run_life
   set state = 'SUCCEEDED',
       outcome = 'SUCCEEDED',
       finished_at = :now,
       exit_code = :exit_code,
       result = :result,
       rows_affected = :rows_affected,
       log_ref = :log_ref,
       version = version + 1
 where id >= (select :first)
   and id <= (select :last)
   and state = 'RUNNING'
   and lease_token = :token
