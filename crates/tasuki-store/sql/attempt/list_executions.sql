-- attempt/list_executions: all attempts of a run. Each attempt is in exactly one place, its own row or the run row, and
-- one statement reads both.
select attempt_no, outcome, worker_id, epoch, assigned_at, started_at, finished_at, exit_code, exit_signal, error_code,
       error_message, result, rows_affected, log_ref
  from tasuki_attempt
 where run_id = :run_id
union all
select attempt_no, outcome, worker_id, epoch, assigned_at, started_at, finished_at, exit_code, exit_signal, error_code,
       error_message, result, rows_affected, log_ref
  from tasuki_run
 where id = :run_id
   and lease_token is not null
 order by attempt_no
