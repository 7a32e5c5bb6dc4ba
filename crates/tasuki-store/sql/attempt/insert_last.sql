-- attempt/insert_last: record the last attempt of an ended run as it is on the run row, before a manual retry clears it
-- there.
insert into tasuki_attempt (run_id, attempt_no, outcome, token, worker_id, epoch, job_version, assigned_at, started_at,
    finished_at, exit_code, exit_signal, error_code, error_message, result, rows_affected, log_ref)
select id, attempt_no, outcome, lease_token, worker_id, epoch, job_version, assigned_at, started_at,
    finished_at, exit_code, exit_signal, error_code, error_message, result, rows_affected, log_ref
  from tasuki_run
 where id = :run_id
   and lease_token is not null
