-- attempt/insert: record an attempt that has ended while its run continues. The row is written once and never changed.
-- The clock may have been set back since the start; a run never ends before its start.
insert into tasuki_attempt (run_id, attempt_no, outcome, token, worker_id, epoch, job_version, assigned_at, started_at,
    finished_at, exit_code, exit_signal, error_code, error_message, result, rows_affected, log_ref)
select id, attempt_no, :outcome, lease_token, worker_id, epoch, job_version, assigned_at, started_at,
    case when started_at > :now then started_at else :now end, :exit_code, :exit_signal, :error_code, :error_message, :result, :rows_affected, :log_ref
  from tasuki_run
 where id = :run_id
