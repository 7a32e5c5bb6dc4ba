-- Rules that hold even for SQL typed by hand. The legal moves are those of the table in ARCHITECTURE.md; a test compares.

-- After the row, which is then not read a second time; and without lists of three or more, for which SQLite builds a
-- table anew for every row.
create trigger tasuki_run_legal_move after update of state on tasuki_run_life for each row
    when old.state is not new.state and not (
        old.state = 'RUNNING' and (
            new.state = 'SUCCEEDED' or new.state = 'RETRY_WAIT' or new.state = 'FAILED' or new.state = 'TIMED_OUT'
            or new.state = 'CANCELED' or new.state = 'EXPIRED')
        or old.state = 'PENDING' and (
            new.state = 'RUNNING' or new.state = 'ASSIGNED' or new.state = 'CANCELED' or new.state = 'SKIPPED'
            or new.state = 'EXPIRED')
        or old.state = 'ASSIGNED' and (new.state = 'RUNNING' or new.state = 'ORPHANED' or new.state = 'CANCELED')
        or old.state = 'ORPHANED' and (
            new.state = 'RUNNING' or new.state = 'ASSIGNED' or new.state = 'CANCELED' or new.state = 'SKIPPED'
            or new.state = 'EXPIRED')
        or old.state = 'RETRY_WAIT' and (
            new.state = 'RUNNING' or new.state = 'ASSIGNED' or new.state = 'CANCELED' or new.state = 'EXPIRED')
        or old.state = 'FAILED' and new.state = 'RETRY_WAIT'
        or old.state = 'TIMED_OUT' and new.state = 'RETRY_WAIT'
        or old.state = 'EXPIRED' and new.state = 'RETRY_WAIT'
    )
begin
    select raise(abort, 'tasuki: a run does not move like this');
end;

create trigger tasuki_run_legal_entry before insert on tasuki_run_life for each row
    when new.state is not 'PENDING' or not exists (select 1 from tasuki_run_birth where id = new.id)
begin
    select raise(abort, 'tasuki: a run begins as PENDING');
end;

create trigger tasuki_run_legal_delete before delete on tasuki_run_life for each row
    when old.finished_at is null
begin
    select raise(abort, 'tasuki: a run that has not ended is not deleted');
end;

-- The two tables of a run are born, changed and deleted together.
create trigger tasuki_run_birth_insert after insert on tasuki_run_birth for each row
begin
    insert into tasuki_run_life (id, tries_allowed, scheduled_for, skip_at, expires_at)
    values (new.id, new.max_attempts, new.scheduled_for, new.skip_at, new.expires_at);
end;

create trigger tasuki_run_birth_update after update on tasuki_run_birth for each row
begin
    update tasuki_run_life
       set scheduled_for = new.scheduled_for,
           version = version + 1
     where id = new.id;
end;

create trigger tasuki_run_birth_delete before delete on tasuki_run_birth for each row
    when exists (select 1 from tasuki_run_life where id = old.id)
begin
    select raise(abort, 'tasuki: a run is deleted as a whole');
end;

create trigger tasuki_run_life_delete after delete on tasuki_run_life for each row
begin
    delete from tasuki_run_birth where id = old.id;
end;

-- For SQL typed by hand a run is one row, as it is on other databases, and held to the same rules. What came of a statement
-- before is asked for: "or ignore" passes over it without a word.
create trigger tasuki_run_typed_insert instead of insert on tasuki_run for each row
begin
    select raise(abort, 'tasuki: a run begins as PENDING')
     where coalesce(new.state, 'PENDING') <> 'PENDING'
        or coalesce(new.tries, 0) <> 0
        or coalesce(new.attempt_no, 0) <> 0
        or coalesce(new.releases, 0) <> 0
        or coalesce(new.alone, 0) <> 0
        or coalesce(new.version, 1) <> 1
        or coalesce(new.next_retry_at, new.worker_id, new.lease_token, new.epoch, new.assigned_at, new.start_by, new.started_at,
            new.cancel_requested_at, new.cancel_requested_by, new.continuation, new.continuation_started_at,
            new.continuation_deadline, new.finished_at, new.ended_badly_at, new.outcome, new.exit_code, new.exit_signal,
            new.error_code, new.error_message, new.result, new.rows_affected, new.log_ref, new.reason) is not null;
    insert into tasuki_run_birth (id, job_id, scheduled_for, created_at, job_version, max_attempts, exclusive, origin, scope_kind, scope_id, lane,
        slot, idempotency_key, event_id, rerun_of, args, skip_at, expires_at)
    values (new.id, new.job_id, new.scheduled_for, new.created_at, new.job_version, new.max_attempts, new.exclusive, new.origin,
        coalesce(new.scope_kind, 'global'), coalesce(new.scope_id, 'global'), new.lane, new.slot, new.idempotency_key,
        new.event_id, new.rerun_of, new.args, new.skip_at, new.expires_at);
    update tasuki_run_life
       set tries_allowed = coalesce(new.tries_allowed, tries_allowed)
     where id = coalesce(new.id, last_insert_rowid())
       and changes() = 1;
end;

create trigger tasuki_run_typed_update instead of update on tasuki_run for each row
begin
    select raise(abort, 'tasuki: a run keeps its id') where new.id is not old.id;
    update tasuki_run_life
       set (tries_allowed, tries, attempt_no, releases, version, alone, state, next_retry_at, skip_at, expires_at,
            worker_id, lease_token, epoch, assigned_at, start_by, started_at, cancel_requested_at, cancel_requested_by,
            continuation, continuation_started_at, continuation_deadline, finished_at, ended_badly_at, outcome,
            exit_code, exit_signal, error_code, error_message, result, rows_affected, log_ref, reason)
         = (new.tries_allowed, new.tries, new.attempt_no, new.releases, new.version, new.alone, new.state,
            new.next_retry_at, new.skip_at, new.expires_at, new.worker_id, new.lease_token, new.epoch, new.assigned_at,
            new.start_by, new.started_at, new.cancel_requested_at, new.cancel_requested_by, new.continuation,
            new.continuation_started_at, new.continuation_deadline, new.finished_at, new.ended_badly_at, new.outcome,
            new.exit_code, new.exit_signal, new.error_code, new.error_message, new.result, new.rows_affected,
            new.log_ref, new.reason)
     where id = old.id;
    update tasuki_run_birth
       set (job_id, scheduled_for, created_at, job_version, max_attempts, exclusive, origin, scope_kind, scope_id, lane,
            slot, idempotency_key, event_id, rerun_of, args)
         = (new.job_id, new.scheduled_for, new.created_at, new.job_version, new.max_attempts, new.exclusive, new.origin,
            new.scope_kind, new.scope_id, new.lane, new.slot, new.idempotency_key, new.event_id, new.rerun_of, new.args)
     where id = old.id
       and changes() = 1
       and (job_id, scheduled_for, created_at, job_version, max_attempts, exclusive, origin, scope_kind, scope_id, lane,
            slot, idempotency_key, event_id, rerun_of, args)
           is not (new.job_id, new.scheduled_for, new.created_at, new.job_version, new.max_attempts, new.exclusive, new.origin,
            new.scope_kind, new.scope_id, new.lane, new.slot, new.idempotency_key, new.event_id, new.rerun_of, new.args);
end;

create trigger tasuki_run_typed_delete instead of delete on tasuki_run for each row
begin
    delete from tasuki_run_life where id = old.id;
end;

create trigger tasuki_attempt_no_update before update on tasuki_attempt for each row
begin
    select raise(abort, 'tasuki: an appended attempt is never changed');
end;

create trigger tasuki_run_note_no_update before update on tasuki_run_note for each row
begin
    select raise(abort, 'tasuki: a note is never changed');
end;

create trigger tasuki_term_history_no_update before update on tasuki_term_history for each row
begin
    select raise(abort, 'tasuki: the term history is never changed');
end;

create trigger tasuki_term_history_no_delete before delete on tasuki_term_history for each row
begin
    select raise(abort, 'tasuki: the term history is never deleted');
end;

create trigger tasuki_audit_no_update before update on tasuki_audit for each row
begin
    select raise(abort, 'tasuki: the audit is never changed');
end;

create trigger tasuki_audit_no_delete before delete on tasuki_audit for each row
begin
    select raise(abort, 'tasuki: the audit is never deleted');
end;

create trigger tasuki_job_version_no_update before update on tasuki_job_version for each row
begin
    select raise(abort, 'tasuki: a version of a job is never changed');
end;
