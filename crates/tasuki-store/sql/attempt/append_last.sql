-- attempt/append_last: a retry by hand moves the last attempt off the row, as it stands there.
insert into tasuki_attempt (run_id, attempt_no, outcome, token, worker_id, epoch, job_version, assigned_at, started_at,
    finished_at, exit_code, exit_signal, error_code, error_message, result, rows_affected, log_ref)
select id, attempt_no, outcome, lease_token, worker_id, epoch, job_version, assigned_at, started_at,
    finished_at, exit_code, exit_signal, error_code, error_message, result, rows_affected, log_ref
  from tasuki_run
 where id = :run_id
   and lease_token is not null
