-- Rules that hold even for SQL typed by hand. The legal moves are those of the table in ARCHITECTURE.md; a test compares.

-- After the row, which is then not read a second time; and without lists of three or more, for which SQLite builds a
-- table anew for every row.
create trigger tasuki_run_legal_move after update of state on tasuki_run for each row
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

create trigger tasuki_run_legal_entry before insert on tasuki_run for each row
    when new.state is not 'PENDING'
begin
    select raise(abort, 'tasuki: a run begins as PENDING');
end;

create trigger tasuki_run_legal_delete before delete on tasuki_run for each row
    when old.finished_at is null
begin
    select raise(abort, 'tasuki: a run that has not ended is not deleted');
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
