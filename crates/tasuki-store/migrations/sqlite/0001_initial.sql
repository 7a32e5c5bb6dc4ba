-- The schema of tasuki for SQLite. All instants are microseconds since 1970 in UTC, all durations (..._us) are
-- microseconds, and flags are 0 or 1. The tables and columns are those of the other databases, except where a comment
-- says that they exist on this database only.

-- ======================================================================
-- Jobs and runs
-- ======================================================================

-- A job definition. A deleted job keeps its row (deleted_at), because runs refer to it. Every change increments
-- version.
create table tasuki_job (
    id integer primary key autoincrement,
    name text not null,
    enabled integer not null default 1,
    trigger_type text not null,
    schedule_type text,
    schedule_value text,
    zone text,
    dst_gap text,
    dst_fold text,
    misfire text,
    misfire_value integer,
    event_types text,
    event_filter text,
    paused_at integer,
    paused_until integer,
    paused_reason text,
    deleted_at integer,
    version integer not null default 1,
    created_at integer not null,
    updated_at integer not null,
    constraint tasuki_job_name unique (name),
    constraint tasuki_job_trigger check (trigger_type in ('time', 'event', 'task')),
    constraint tasuki_job_schedule check ((trigger_type = 'time') = (schedule_type is not null)),
    constraint tasuki_job_paused check (paused_at is not null or (paused_until is null and paused_reason is null))
);
-- The leader reads the jobs with an event trigger for every event; this index avoids a scan of all jobs.
create index tasuki_job_trigger on tasuki_job (trigger_type, id);

-- An immutable copy of what a job executes: one row for each edit of the job's spec. A run names the version that it
-- executes.
create table tasuki_job_version (
    job_id integer not null,
    version integer not null,
    kind text not null,
    spec text not null,
    lane text not null,
    concurrency text not null,
    max_attempts integer not null,
    max_releases integer not null,
    backoff_us integer not null,
    backoff_cap_us integer not null,
    jitter_percent integer not null default 0,
    retry_lost integer not null default 1,
    labels text,
    created_at integer not null,
    primary key (job_id, version),
    constraint tasuki_job_version_kind check (kind in ('command', 'django', 'function')),
    constraint tasuki_job_version_concurrency check (concurrency in ('forbid', 'allow', 'replace')),
    constraint tasuki_job_version_numbers check (max_attempts >= 1 and max_releases >= 1 and backoff_us >= 0 and backoff_cap_us >= backoff_us)
);

-- The scheduling position of each (job, scope): the next instant of its schedule for which no run exists yet.
create table tasuki_cursor (
    job_id integer not null,
    scope_kind text not null default 'global',
    scope_id text not null default 'global',
    next_fire integer not null,
    primary key (job_id, scope_kind, scope_id)
);
create index tasuki_cursor_next_fire on tasuki_cursor (next_fire);

-- SQLite only: a run is one row of each of two tables, and the view tasuki_run joins them. Reason: SQLite rewrites a
-- whole row, column by column, for every update. So tasuki_run_data holds the columns that no state transition changes
-- (they may be long), and tasuki_run_state holds the few short columns that state transitions change. The row also
-- holds the live attempt of the run or, after the run has ended, its last attempt. No index contains a column that a
-- transition changes.
create table tasuki_run_data (
    id integer primary key autoincrement,
    job_id integer not null,
    scheduled_for integer not null,
    created_at integer not null,
    job_version integer not null,
    max_attempts integer not null,
    exclusive integer not null,
    origin text not null,
    scope_kind text not null default 'global',
    scope_id text not null default 'global',
    lane text not null,
    slot text,
    idempotency_key text,
    event_id integer,
    rerun_of integer,
    args text,
    -- Values at the insert. The current values are in tasuki_run_state.
    skip_at integer,
    expires_at integer,
    constraint tasuki_run_origin check (
        case origin
            when 'task' then slot is null
            when 'time' then slot is not null
            when 'event' then slot is null
            when 'manual' then slot is null
            when 'rerun' then slot is null
            else 0
        end)
);
create unique index tasuki_run_slot on tasuki_run_data (job_id, scope_kind, scope_id, slot) where slot is not null;
create unique index tasuki_run_idempotency on tasuki_run_data (idempotency_key) where idempotency_key is not null;
create index tasuki_run_job on tasuki_run_data (job_id, id);
create index tasuki_run_scheduled on tasuki_run_data (scheduled_for, id);

create table tasuki_run_state (
    id integer primary key,
    state text not null default 'PENDING',
    tries integer not null default 0,
    tries_allowed integer not null,
    attempt_no integer not null default 0,
    releases integer not null default 0,
    version integer not null default 1,
    isolated integer not null default 0,
    -- A copy of tasuki_run_data.scheduled_for, because the guards of updates compare it.
    scheduled_for integer not null,
    next_retry_at integer,
    skip_at integer,
    expires_at integer,
    worker_id blob,
    lease_token blob,
    epoch integer,
    assigned_at integer,
    start_by integer,
    started_at integer,
    cancel_requested_at integer,
    cancel_requested_by text,
    continuation text,
    continuation_started_at integer,
    continuation_deadline integer,
    finished_at integer,
    failed_at integer,
    outcome text,
    exit_code integer,
    exit_signal integer,
    error_code text,
    error_message text,
    result text,
    rows_affected integer,
    log_ref text,
    reason text,
    -- What must hold in each state. The states of a successful run come first: the check is evaluated for every
    -- transition, and most transitions lead to one of the first three.
    constraint tasuki_run_state check (
        case state
            when 'PENDING' then finished_at is null
            when 'RUNNING' then lease_token is not null and started_at is not null and finished_at is null
            when 'SUCCEEDED' then finished_at is not null
            when 'ASSIGNED' then lease_token is not null and finished_at is null
            when 'ORPHANED' then finished_at is null
            when 'RETRY_WAIT' then finished_at is null
            when 'FAILED' then finished_at is not null
            when 'TIMED_OUT' then finished_at is not null
            when 'CANCELED' then finished_at is not null
            when 'SKIPPED' then finished_at is not null and tries = 0
            when 'EXPIRED' then finished_at is not null
            else 0
        end),
    constraint tasuki_run_times check (finished_at >= started_at),
    constraint tasuki_run_tries check (tries >= 0 and tries <= tries_allowed and tries <= attempt_no and releases >= 0),
    constraint tasuki_run_values check (
        (continuation is null or continuation = 'NONE' or continuation = 'CONFIRMING') and (result is null or length(result) <= 65536))
);
create index tasuki_run_failed on tasuki_run_state (failed_at) where failed_at is not null;

create view tasuki_run as
select
    run_data.id,
    run_data.job_id,
    run_data.scheduled_for,
    run_data.created_at,
    run_data.job_version,
    run_data.max_attempts,
    run_state.tries_allowed,
    run_state.tries,
    run_state.attempt_no,
    run_state.releases,
    run_state.version,
    run_data.exclusive,
    run_state.isolated,
    run_state.state,
    run_data.origin,
    run_data.scope_kind,
    run_data.scope_id,
    run_data.lane,
    run_data.slot,
    run_data.idempotency_key,
    run_data.event_id,
    run_data.rerun_of,
    run_data.args,
    run_state.next_retry_at,
    run_state.skip_at,
    run_state.expires_at,
    run_state.worker_id,
    run_state.lease_token,
    run_state.epoch,
    run_state.assigned_at,
    run_state.start_by,
    run_state.started_at,
    run_state.cancel_requested_at,
    run_state.cancel_requested_by,
    run_state.continuation,
    run_state.continuation_started_at,
    run_state.continuation_deadline,
    run_state.finished_at,
    run_state.failed_at,
    run_state.outcome,
    run_state.exit_code,
    run_state.exit_signal,
    run_state.error_code,
    run_state.error_message,
    run_state.result,
    run_state.rows_affected,
    run_state.log_ref,
    run_state.reason
from tasuki_run_data run_data
join tasuki_run_state run_state on run_state.id = run_data.id;

-- The due table: the queue of exactly those runs that wait. A process that takes a run deletes its row, so only one
-- process can take it.
-- lane '': the leader assigns the run; any other lane: workers claim from it.
-- extra_runs: a row can stand for a range of runs with consecutive ids: run_id and this many after it. Only for tasks
-- that were submitted together, without a hold, without an expiry and without a skip time.
create table tasuki_due (
    lane text not null,
    due_at integer not null,
    run_id integer not null,
    exclusive integer not null,
    isolated integer not null default 0,
    skip_at integer,
    extra_runs integer not null default 0,
    primary key (lane, due_at, run_id),
    constraint tasuki_due_extra_runs check (extra_runs >= 0 and extra_runs < 64 and (extra_runs = 0 or (exclusive = 0 and isolated = 0 and skip_at is null)))
) without rowid;

-- The concurrency locks: one row for each (job, scope) with an assigned or running run, if the job allows one run at a
-- time.
create table tasuki_hold (
    job_id integer not null,
    scope_kind text not null,
    scope_id text not null,
    run_id integer not null,
    token blob not null,
    primary key (job_id, scope_kind, scope_id)
);

-- A lease: all runs that a worker was assigned or claimed in one script, and until when it holds them. The runs have
-- its token in lease_token. run_ids is a JSON list of the ids.
-- SQLite only: the last five columns describe the claimed runs as a whole, so that later statements need not read each
-- run. All may be null.
-- first_run, last_run: the first and the last id, if the ids are consecutive. last_due_at: when the last of the runs
-- was due.
-- job_id: the job, if all runs have the same one. due_at_sum: the sum of the instants at which the runs became due.
create table tasuki_lease (
    token blob not null primary key,
    worker_id blob not null,
    epoch integer,
    lease_until integer not null,
    heartbeat_at integer not null,
    run_ids text not null,
    first_run integer,
    last_run integer,
    last_due_at integer,
    job_id integer,
    due_at_sum integer
);
create index tasuki_lease_until on tasuki_lease (lease_until);
create index tasuki_lease_worker on tasuki_lease (worker_id);

-- Ended attempts that were not the last one of their run. A row is written once and never changed.
create table tasuki_attempt (
    run_id integer not null,
    attempt_no integer not null,
    outcome text not null,
    token blob not null,
    worker_id blob not null,
    epoch integer,
    job_version integer not null,
    assigned_at integer not null,
    started_at integer,
    finished_at integer not null,
    exit_code integer,
    exit_signal integer,
    error_code text,
    error_message text,
    result text,
    rows_affected integer,
    log_ref text,
    primary key (run_id, attempt_no),
    constraint tasuki_attempt_outcome check (outcome in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'LOST', 'RELEASED')),
    constraint tasuki_attempt_started check ((outcome = 'RELEASED') = (started_at is null)),
    constraint tasuki_attempt_times check (finished_at >= started_at)
);

-- Transition records: the rare transitions of runs, with the actor, the reason, and the epoch or the hash of the lease
-- token.
create table tasuki_run_note (
    id integer primary key autoincrement,
    run_id integer not null,
    attempt_no integer not null,
    verb text not null,
    actor text not null,
    reason text,
    epoch integer,
    token_hash text,
    at integer not null
);
create index tasuki_run_note_run on tasuki_run_note (run_id, id);

-- ======================================================================
-- Workers, leader, events, settings, statistics
-- ======================================================================

-- Workers: one row for each incarnation (one process). gone_at: when it left, or when a leader removed it as silent for
-- too long.
create table tasuki_worker (
    id blob not null primary key,
    node text not null,
    pid integer,
    address text,
    labels text,
    slots integer not null,
    function_slots integer not null,
    version text,
    started_at integer not null,
    heartbeat_at integer not null,
    draining_at integer,
    detached_at integer,
    detach_reason text,
    dead_at integer,
    gone_at integer,
    constraint tasuki_worker_slots check (slots >= 0 and function_slots >= 0)
);

-- The current term. Every write of a leader compares its epoch with this row. The leader's lease is a row of its own,
-- so a renewal does not touch the term.
create table tasuki_leader_term (
    id integer not null primary key,
    epoch integer not null,
    holder blob,
    began_at integer,
    constraint tasuki_leader_term_single_row check (id = 1)
);

-- The leader's lease. unbroken_since: since when the leader has renewed it without a long gap.
create table tasuki_leader_lease (
    id integer not null primary key,
    epoch integer not null,
    holder blob,
    lease_until integer not null,
    renewed_at integer,
    unbroken_since integer,
    constraint tasuki_leader_lease_single_row check (id = 1)
);

-- Every term that ever began: its epoch, its holder, and when it began.
create table tasuki_term_history (
    epoch integer not null primary key,
    holder blob not null,
    began_at integer not null
);

insert into tasuki_leader_term (id, epoch) values (1, 0);
insert into tasuki_leader_lease (id, epoch, lease_until) values (1, 0, 0);

-- Events, which may create runs. A program in any language may insert a row: event_type and payload, optionally
-- dedupe_key and job_name; all other columns have defaults.
create table tasuki_event (
    id integer primary key autoincrement,
    event_type text not null,
    payload text,
    source text not null default 'sql',
    dedupe_key text,
    job_name text,
    -- Only functions that older SQLite versions have too, because another program's SQLite evaluates this default.
    created_at integer not null default (
        cast(strftime('%s', 'now') as integer) * 1000000 + cast(substr(strftime('%f', 'now'), 4) as integer) * 1000
    ),
    processed_at integer,
    runs integer,
    problem text,
    constraint tasuki_event_dedupe unique (source, dedupe_key)
);
create index tasuki_event_unprocessed on tasuki_event (id) where processed_at is null;

-- Settings that differ from their default.
create table tasuki_setting (
    name text not null primary key,
    value text not null,
    changed_at integer not null,
    changed_by text not null
);

-- One row. Every change of a setting increments the version, so that nodes notice the change.
create table tasuki_setting_version (
    id integer not null primary key,
    version integer not null,
    constraint tasuki_setting_version_single_row check (id = 1)
);
insert into tasuki_setting_version (id, version) values (1, 0);

-- Counts and sums of ended runs per minute. worker_id is in the key so that workers do not wait for each other's row
-- lock, and shard (derived from the connection) so that the connections of one worker do not.
create table tasuki_stat (
    minute integer not null,
    job_id integer not null,
    outcome text not null,
    worker_id blob not null,
    shard integer not null,
    runs integer not null,
    wait_us integer not null,
    run_us integer not null,
    primary key (minute, job_id, outcome, worker_id, shard)
);

-- ======================================================================
-- Logs, audit, tokens
-- ======================================================================

-- The captured output of an attempt: its size, and where it is archived, if it is.
create table tasuki_log (
    run_id integer not null,
    attempt_no integer not null,
    bytes integer not null default 0,
    lines_count integer not null default 0,
    truncated integer not null default 0,
    log_ref text,
    sha256 blob,
    archived_at integer,
    primary key (run_id, attempt_no)
);

-- A chunk of captured output: the lines first_line to last_line of an attempt.
create table tasuki_log_chunk (
    run_id integer not null,
    attempt_no integer not null,
    first_line integer not null,
    last_line integer not null,
    at integer not null,
    body text not null,
    primary key (run_id, attempt_no, first_line)
);

-- The audit log: actor, action, object and address of each change. Each row contains the hash of the previous row.
create table tasuki_audit (
    seq integer not null primary key,
    at integer not null,
    actor text not null,
    action text not null,
    object text not null,
    address text,
    before_state text,
    after_state text,
    prev_hash blob not null,
    hash blob not null
);

-- The last row of the audit chain. A transaction that appends locks this row, so the sequence has no gaps.
create table tasuki_audit_head (
    id integer not null primary key,
    seq integer not null,
    hash blob not null,
    constraint tasuki_audit_head_single_row check (id = 1)
);
insert into tasuki_audit_head (id, seq, hash) values (1, 0, zeroblob(32));

-- Reserved for the users and sessions of the operations pages.
create table tasuki_user (
    id integer primary key autoincrement,
    name text not null,
    password_hash text,
    role text not null,
    language text,
    disabled_at integer,
    created_at integer not null,
    constraint tasuki_user_name unique (name),
    constraint tasuki_user_role check (role in ('viewer', 'operator', 'author', 'admin'))
);

create table tasuki_session (
    token_hash blob not null primary key,
    user_id integer not null,
    csrf_hash blob not null,
    created_at integer not null,
    seen_at integer not null,
    expires_at integer not null
);

-- Tokens of the REST API. Only the hash of a token is stored.
create table tasuki_api_token (
    id integer primary key autoincrement,
    name text not null,
    token_hash blob not null,
    role text not null,
    created_at integer not null,
    created_by text not null,
    expires_at integer,
    last_used_at integer,
    revoked_at integer,
    constraint tasuki_api_token_hash unique (token_hash),
    constraint tasuki_api_token_role check (role in ('viewer', 'operator', 'author', 'admin'))
);

-- ======================================================================
-- Triggers: rules that hold even for SQL typed by hand. The legal transitions are those of the table in
-- ARCHITECTURE.md; a test compares the two.
-- ======================================================================

-- An AFTER trigger, because SQLite reads the row a second time for a BEFORE trigger. No IN list has three or more
-- values, because SQLite builds a temporary table for such a list, again for every row.
create trigger tasuki_run_legal_transition after update of state on tasuki_run_state for each row
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
    select raise(abort, 'tasuki: illegal state transition of a run');
end;

create trigger tasuki_run_legal_insert before insert on tasuki_run_state for each row
    when new.state is not 'PENDING' or not exists (select 1 from tasuki_run_data where id = new.id)
begin
    select raise(abort, 'tasuki: a new run must be PENDING');
end;

create trigger tasuki_run_legal_delete before delete on tasuki_run_state for each row
    when old.finished_at is null
begin
    select raise(abort, 'tasuki: a run that has not ended cannot be deleted');
end;

-- Keep the two tables of a run in step: insert, update and delete both rows together.
create trigger tasuki_run_data_insert after insert on tasuki_run_data for each row
begin
    insert into tasuki_run_state (id, tries_allowed, scheduled_for, skip_at, expires_at)
    values (new.id, new.max_attempts, new.scheduled_for, new.skip_at, new.expires_at);
end;

create trigger tasuki_run_data_update after update on tasuki_run_data for each row
begin
    update tasuki_run_state
       set scheduled_for = new.scheduled_for,
           version = version + 1
     where id = new.id;
end;

create trigger tasuki_run_data_delete before delete on tasuki_run_data for each row
    when exists (select 1 from tasuki_run_state where id = old.id)
begin
    select raise(abort, 'tasuki: a run cannot be deleted from tasuki_run_data alone');
end;

create trigger tasuki_run_state_delete after delete on tasuki_run_state for each row
begin
    delete from tasuki_run_data where id = old.id;
end;

-- Make the view tasuki_run writable for SQL typed by hand, under the same rules as on the other databases. Each trigger
-- checks changes() of the statement before, because with "or ignore" SQLite skips a failed statement silently.
create trigger tasuki_run_view_insert instead of insert on tasuki_run for each row
begin
    select raise(abort, 'tasuki: a new run must be PENDING')
     where coalesce(new.state, 'PENDING') <> 'PENDING'
        or coalesce(new.tries, 0) <> 0
        or coalesce(new.attempt_no, 0) <> 0
        or coalesce(new.releases, 0) <> 0
        or coalesce(new.isolated, 0) <> 0
        or coalesce(new.version, 1) <> 1
        or coalesce(new.next_retry_at, new.worker_id, new.lease_token, new.epoch, new.assigned_at, new.start_by, new.started_at,
            new.cancel_requested_at, new.cancel_requested_by, new.continuation, new.continuation_started_at,
            new.continuation_deadline, new.finished_at, new.failed_at, new.outcome, new.exit_code, new.exit_signal,
            new.error_code, new.error_message, new.result, new.rows_affected, new.log_ref, new.reason) is not null;
    insert into tasuki_run_data (id, job_id, scheduled_for, created_at, job_version, max_attempts, exclusive, origin, scope_kind, scope_id, lane,
        slot, idempotency_key, event_id, rerun_of, args, skip_at, expires_at)
    values (new.id, new.job_id, new.scheduled_for, new.created_at, new.job_version, new.max_attempts, new.exclusive, new.origin,
        coalesce(new.scope_kind, 'global'), coalesce(new.scope_id, 'global'), new.lane, new.slot, new.idempotency_key,
        new.event_id, new.rerun_of, new.args, new.skip_at, new.expires_at);
    update tasuki_run_state
       set tries_allowed = coalesce(new.tries_allowed, tries_allowed)
     where id = coalesce(new.id, last_insert_rowid())
       and changes() = 1;
end;

create trigger tasuki_run_view_update instead of update on tasuki_run for each row
begin
    select raise(abort, 'tasuki: the id of a run cannot be changed') where new.id is not old.id;
    update tasuki_run_state
       set (tries_allowed, tries, attempt_no, releases, version, isolated, state, next_retry_at, skip_at, expires_at,
            worker_id, lease_token, epoch, assigned_at, start_by, started_at, cancel_requested_at, cancel_requested_by,
            continuation, continuation_started_at, continuation_deadline, finished_at, failed_at, outcome,
            exit_code, exit_signal, error_code, error_message, result, rows_affected, log_ref, reason)
         = (new.tries_allowed, new.tries, new.attempt_no, new.releases, new.version, new.isolated, new.state,
            new.next_retry_at, new.skip_at, new.expires_at, new.worker_id, new.lease_token, new.epoch, new.assigned_at,
            new.start_by, new.started_at, new.cancel_requested_at, new.cancel_requested_by, new.continuation,
            new.continuation_started_at, new.continuation_deadline, new.finished_at, new.failed_at, new.outcome,
            new.exit_code, new.exit_signal, new.error_code, new.error_message, new.result, new.rows_affected,
            new.log_ref, new.reason)
     where id = old.id;
    update tasuki_run_data
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

create trigger tasuki_run_view_delete instead of delete on tasuki_run for each row
begin
    delete from tasuki_run_state where id = old.id;
end;

-- Rows that are written once.
create trigger tasuki_attempt_no_update before update on tasuki_attempt for each row
begin
    select raise(abort, 'tasuki: a recorded attempt cannot be changed');
end;

create trigger tasuki_run_note_no_update before update on tasuki_run_note for each row
begin
    select raise(abort, 'tasuki: a transition record cannot be changed');
end;

create trigger tasuki_term_history_no_update before update on tasuki_term_history for each row
begin
    select raise(abort, 'tasuki: the term history cannot be changed');
end;

create trigger tasuki_term_history_no_delete before delete on tasuki_term_history for each row
begin
    select raise(abort, 'tasuki: the term history cannot be deleted');
end;

create trigger tasuki_audit_no_update before update on tasuki_audit for each row
begin
    select raise(abort, 'tasuki: the audit log cannot be changed');
end;

create trigger tasuki_audit_no_delete before delete on tasuki_audit for each row
begin
    select raise(abort, 'tasuki: the audit log cannot be deleted');
end;

create trigger tasuki_job_version_no_update before update on tasuki_job_version for each row
begin
    select raise(abort, 'tasuki: a job version cannot be changed');
end;

-- ======================================================================
-- Views: jobs with their newest version; and the tables with readable timestamps, for people
-- ======================================================================

-- Jobs, each joined with its newest version.
create view tasuki_job_current as
select j.*,
       v.version as spec_version,
       v.kind,
       v.spec,
       v.lane,
       v.concurrency,
       v.max_attempts,
       v.max_releases,
       v.backoff_us,
       v.backoff_cap_us,
       v.jitter_percent,
       v.retry_lost,
       v.labels
  from tasuki_job j
  join tasuki_job_version v
    on v.job_id = j.id
   and v.version = (select max(n.version) from tasuki_job_version n where n.job_id = j.id);

create view tasuki_run_view as
select
    id,
    job_id,
    state,
    origin,
    scope_kind,
    scope_id,
    lane,
    strftime('%Y-%m-%dT%H:%M:%fZ', scheduled_for / 1000000.0, 'unixepoch') as scheduled_for,
    slot,
    attempt_no,
    tries,
    tries_allowed,
    releases,
    worker_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', assigned_at / 1000000.0, 'unixepoch') as assigned_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', started_at / 1000000.0, 'unixepoch') as started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', finished_at / 1000000.0, 'unixepoch') as finished_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', next_retry_at / 1000000.0, 'unixepoch') as next_retry_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', cancel_requested_at / 1000000.0, 'unixepoch') as cancel_requested_at,
    cancel_requested_by,
    outcome,
    exit_code,
    exit_signal,
    error_code,
    error_message,
    reason,
    rows_affected,
    idempotency_key,
    event_id,
    rerun_of,
    version,
    strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000000.0, 'unixepoch') as created_at
from tasuki_run;

create view tasuki_attempt_view as
select
    run_id,
    attempt_no,
    outcome,
    worker_id,
    epoch,
    strftime('%Y-%m-%dT%H:%M:%fZ', assigned_at / 1000000.0, 'unixepoch') as assigned_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', started_at / 1000000.0, 'unixepoch') as started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', finished_at / 1000000.0, 'unixepoch') as finished_at,
    exit_code,
    exit_signal,
    error_code,
    error_message
from tasuki_attempt;

create view tasuki_due_view as
select
    lane,
    strftime('%Y-%m-%dT%H:%M:%fZ', due_at / 1000000.0, 'unixepoch') as due_at,
    run_id,
    exclusive,
    isolated,
    strftime('%Y-%m-%dT%H:%M:%fZ', skip_at / 1000000.0, 'unixepoch') as skip_at,
    extra_runs
from tasuki_due;

create view tasuki_worker_view as
select
    id,
    node,
    pid,
    address,
    slots,
    function_slots,
    strftime('%Y-%m-%dT%H:%M:%fZ', started_at / 1000000.0, 'unixepoch') as started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', heartbeat_at / 1000000.0, 'unixepoch') as heartbeat_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', draining_at / 1000000.0, 'unixepoch') as draining_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', detached_at / 1000000.0, 'unixepoch') as detached_at,
    detach_reason,
    strftime('%Y-%m-%dT%H:%M:%fZ', dead_at / 1000000.0, 'unixepoch') as dead_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', gone_at / 1000000.0, 'unixepoch') as gone_at
from tasuki_worker;

create view tasuki_event_view as
select
    id,
    event_type,
    source,
    dedupe_key,
    job_name,
    strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000000.0, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', processed_at / 1000000.0, 'unixepoch') as processed_at,
    runs,
    problem
from tasuki_event;

create view tasuki_audit_view as
select
    seq,
    strftime('%Y-%m-%dT%H:%M:%fZ', at / 1000000.0, 'unixepoch') as at,
    actor,
    action,
    object,
    address,
    before_state,
    after_state
from tasuki_audit;
