-- Rules that hold even for SQL typed by hand. The legal moves are those of the table in ARCHITECTURE.md; a test compares.
-- As WHEN conditions: a legal move never calls the function. After the update and not before it: a trigger before an update
-- makes PostgreSQL lock every row once more, in the log too.

create function tasuki_refuse() returns trigger language plpgsql as $$
begin
    raise exception 'tasuki: %', tg_argv[0] using errcode = 'integrity_constraint_violation';
end
$$;

create trigger tasuki_run_legal_move after update of state on tasuki_run for each row
    when (old.state is distinct from new.state and not (
        old.state = 'PENDING' and new.state in ('ASSIGNED', 'RUNNING', 'CANCELED', 'SKIPPED', 'EXPIRED')
        or old.state = 'ASSIGNED' and new.state in ('RUNNING', 'ORPHANED', 'CANCELED')
        or old.state = 'RUNNING' and new.state in ('RETRY_WAIT', 'SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'EXPIRED')
        or old.state = 'ORPHANED' and new.state in ('ASSIGNED', 'RUNNING', 'CANCELED', 'SKIPPED', 'EXPIRED')
        or old.state = 'RETRY_WAIT' and new.state in ('ASSIGNED', 'RUNNING', 'CANCELED', 'EXPIRED')
        or old.state = 'FAILED' and new.state in ('RETRY_WAIT')
        or old.state = 'TIMED_OUT' and new.state in ('RETRY_WAIT')
        or old.state = 'EXPIRED' and new.state in ('RETRY_WAIT'))
    )
    execute function tasuki_refuse('a run does not move like this');
alter table tasuki_run enable always trigger tasuki_run_legal_move;

-- Or it begins and is claimed in one write.
create trigger tasuki_run_legal_entry before insert on tasuki_run for each row
    when (new.state is distinct from 'PENDING'
        and (new.state <> 'RUNNING' or new.tries <> 1 or new.attempt_no <> 1 or new.lease_token is null or new.worker_id is null))
    execute function tasuki_refuse('a run begins as PENDING');
alter table tasuki_run enable always trigger tasuki_run_legal_entry;

create trigger tasuki_run_legal_delete before delete on tasuki_run for each row
    when (old.finished_at is null)
    execute function tasuki_refuse('a run that has not ended is not deleted');
alter table tasuki_run enable always trigger tasuki_run_legal_delete;

create trigger tasuki_attempt_no_update before update on tasuki_attempt for each row
    execute function tasuki_refuse('an appended attempt is never changed');
alter table tasuki_attempt enable always trigger tasuki_attempt_no_update;

create trigger tasuki_run_note_no_update before update on tasuki_run_note for each row
    execute function tasuki_refuse('a note is never changed');
alter table tasuki_run_note enable always trigger tasuki_run_note_no_update;

create trigger tasuki_term_history_no_update before update on tasuki_term_history for each row
    execute function tasuki_refuse('the term history is never changed');
alter table tasuki_term_history enable always trigger tasuki_term_history_no_update;

create trigger tasuki_term_history_no_delete before delete on tasuki_term_history for each row
    execute function tasuki_refuse('the term history is never deleted');
alter table tasuki_term_history enable always trigger tasuki_term_history_no_delete;

create trigger tasuki_audit_no_update before update on tasuki_audit for each row
    execute function tasuki_refuse('the audit is never changed');
alter table tasuki_audit enable always trigger tasuki_audit_no_update;

create trigger tasuki_audit_no_delete before delete on tasuki_audit for each row
    execute function tasuki_refuse('the audit is never deleted');
alter table tasuki_audit enable always trigger tasuki_audit_no_delete;

create trigger tasuki_job_version_no_update before update on tasuki_job_version for each row
    execute function tasuki_refuse('a version of a job is never changed');
alter table tasuki_job_version enable always trigger tasuki_job_version_no_update;

create trigger tasuki_audit_no_truncate before truncate on tasuki_audit
    execute function tasuki_refuse('the audit is never emptied');
alter table tasuki_audit enable always trigger tasuki_audit_no_truncate;

create trigger tasuki_term_history_no_truncate before truncate on tasuki_term_history
    execute function tasuki_refuse('the term history is never emptied');
alter table tasuki_term_history enable always trigger tasuki_term_history_no_truncate;

-- The fence: shared with other writes of the same leader, exclusive for a mint. The check is a statement of its own after
-- the lock, so that it sees every term that was committed before the lock was had.
create function tasuki_fence(wanted_epoch bigint) returns boolean language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock_shared(8391473622816);
    return exists (select from tasuki_leader_term where id = 1 and epoch = wanted_epoch);
end
$$;

-- How many more runs a worker takes from a leader of this epoch: -1 if a newer one leads. What it claimed has slots of its own. The worker is held still, so that
-- two that give do not both see its room. Each statement here sees what was committed before it, also after a wait.
create function tasuki_room(wanted_epoch bigint, wanted_worker uuid, now bigint) returns integer language plpgsql volatile as $$
declare
    room integer;
begin
    if not tasuki_fence(wanted_epoch) then
        return -1;
    end if;
    select slots into room
      from tasuki_worker
     where id = wanted_worker
       and draining_at is null and detached_at is null and dead_at is null and gone_at is null
       for update;
    if not found then
        return 0;
    end if;
    return greatest(room - (
        select count(*)
          from tasuki_run r
         where r.id = any(array(
                   select x.id::bigint
                     from tasuki_lease l, json_array_elements_text(l.run_ids::json) as x (id)
                    where l.worker_id = wanted_worker and l.epoch is not null))
           and r.worker_id = wanted_worker
           and (r.state = 'RUNNING'
                or r.state = 'ASSIGNED' and coalesce(r.next_retry_at, r.scheduled_for) <= now + 1000000)), 0);
end
$$;

-- A lease of a worker, held still. Whether it is there, and its worker not cut off, after whatever wait that took.
create function tasuki_hold_lease(wanted_token uuid, wanted_worker uuid) returns boolean language plpgsql volatile as $$
begin
    perform from tasuki_lease where token = wanted_token and worker_id = wanted_worker for update;
    return found and exists (
        select
          from tasuki_worker w
         where w.id = wanted_worker and w.detached_at is null and w.dead_at is null and w.gone_at is null);
end
$$;

-- What is still carried under a lease that this transaction holds: as it is after the wait for the lease, not before.
create function tasuki_carried(wanted_token uuid, run_ids text)
    returns table (id bigint, state text, cancel_requested_at bigint) language plpgsql volatile as $$
begin
    return query
        select r.id, r.state, r.cancel_requested_at
          from tasuki_run r
         where r.id = any(array(select x.id::bigint from json_array_elements_text(run_ids::json) as x (id)))
           and r.lease_token = wanted_token
           and r.state in ('ASSIGNED', 'RUNNING');
end
$$;
