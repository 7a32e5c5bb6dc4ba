-- Rules that hold even for SQL typed by hand. The legal moves are those of the table in ARCHITECTURE.md; a test compares.

-- One look at one list: what a trigger asks is made ready anew for every row, word by word, and long conditions cost twice as
-- much as the update itself. In the letters of the column, or each word is turned into another alphabet, every time.
create trigger tasuki_run_legal_move before update on tasuki_run for each row
    if not find_in_set(concat(old.state, _ascii'>', new.state), _ascii
           'PENDING>RUNNING,RUNNING>SUCCEEDED,'
           'PENDING>ASSIGNED,PENDING>CANCELED,PENDING>SKIPPED,PENDING>EXPIRED,'
           'RUNNING>RETRY_WAIT,RUNNING>FAILED,RUNNING>TIMED_OUT,RUNNING>CANCELED,RUNNING>EXPIRED,'
           'ASSIGNED>RUNNING,ASSIGNED>ORPHANED,ASSIGNED>CANCELED,'
           'ORPHANED>ASSIGNED,ORPHANED>RUNNING,ORPHANED>CANCELED,ORPHANED>SKIPPED,ORPHANED>EXPIRED,'
           'RETRY_WAIT>ASSIGNED,RETRY_WAIT>RUNNING,RETRY_WAIT>CANCELED,RETRY_WAIT>EXPIRED,'
           'FAILED>RETRY_WAIT,TIMED_OUT>RETRY_WAIT,EXPIRED>RETRY_WAIT,'
           'PENDING>PENDING,RUNNING>RUNNING,ASSIGNED>ASSIGNED,ORPHANED>ORPHANED,RETRY_WAIT>RETRY_WAIT,'
           'SUCCEEDED>SUCCEEDED,FAILED>FAILED,TIMED_OUT>TIMED_OUT,CANCELED>CANCELED,SKIPPED>SKIPPED,EXPIRED>EXPIRED')
    then
        signal sqlstate '45000' set message_text = 'tasuki: a run does not move like this';
    end if;

create trigger tasuki_run_legal_entry before insert on tasuki_run for each row
begin
    if new.state <> _ascii'PENDING' then
        signal sqlstate '45000' set message_text = 'tasuki: a run begins as PENDING';
    end if;
end;

create trigger tasuki_run_legal_delete before delete on tasuki_run for each row
begin
    if old.finished_at is null then
        signal sqlstate '45000' set message_text = 'tasuki: a run that has not ended is not deleted';
    end if;
end;

create trigger tasuki_attempt_no_update before update on tasuki_attempt for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: an appended attempt is never changed';
end;

create trigger tasuki_run_note_no_update before update on tasuki_run_note for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: a note is never changed';
end;

create trigger tasuki_term_history_no_update before update on tasuki_term_history for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: the term history is never changed';
end;

create trigger tasuki_term_history_no_delete before delete on tasuki_term_history for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: the term history is never deleted';
end;

create trigger tasuki_audit_no_update before update on tasuki_audit for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: the audit is never changed';
end;

create trigger tasuki_audit_no_delete before delete on tasuki_audit for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: the audit is never deleted';
end;

create trigger tasuki_job_version_no_update before update on tasuki_job_version for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: a version of a job is never changed';
end;
