-- run/succeed_range: T4 for runs with one token, consecutive ids and the same report.
-- The clock may have been set back since the start; a run never ends before its start.
update tasuki_run_state
   set state = 'SUCCEEDED',
       outcome = 'SUCCEEDED',
       finished_at = max(:now, started_at),
       exit_code = :exit_code,
       result = :result,
       rows_affected = :rows_affected,
       log_ref = :log_ref,
       version = version + 1
 where id >= (select :first)
   and id <= (select :last)
   and state = 'RUNNING'
   and lease_token = :token
