-- Jobs, runs and everything a run's life needs. Instants are microseconds since 1970, UTC.

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

-- What a run is made of, once for each edit of its job and never changed: a run points at the copy it was made from.
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

-- The next fire of each (job, scope) that has no run yet.
create table tasuki_cursor (
    job_id integer not null,
    scope_kind text not null default 'global',
    scope_id text not null default 'global',
    next_fire integer not null,
    primary key (job_id, scope_kind, scope_id)
);
create index tasuki_cursor_next_fire on tasuki_cursor (next_fire);

-- The run, which is also its live attempt and, once ended, its last one. SQLite writes a row anew, column by column, whatever
-- was changed in it: what a run was born with is in one table, and what its transitions change in another, which has few
-- and short columns. tasuki_run shows both as one. No index mentions what a transition changes.
create table tasuki_run_birth (
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
    -- As it was born; what counts is in its life.
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
create unique index tasuki_run_slot on tasuki_run_birth (job_id, scope_kind, scope_id, slot) where slot is not null;
create unique index tasuki_run_idempotency on tasuki_run_birth (idempotency_key) where idempotency_key is not null;
create index tasuki_run_job on tasuki_run_birth (job_id, id);
create index tasuki_run_scheduled on tasuki_run_birth (scheduled_for, id);

create table tasuki_run_life (
    id integer primary key,
    state text not null default 'PENDING',
    tries integer not null default 0,
    tries_allowed integer not null,
    attempt_no integer not null default 0,
    releases integer not null default 0,
    version integer not null default 1,
    alone integer not null default 0,
    -- As in its birth: guards ask for it.
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
    ended_badly_at integer,
    outcome text,
    exit_code integer,
    exit_signal integer,
    error_code text,
    error_message text,
    result text,
    rows_affected integer,
    log_ref text,
    reason text,
    -- What must be true of each state, asked in the order in which a run that goes well has them: a row is checked with
    -- every move, and most of those are the first three.
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
    constraint tasuki_run_tries check (tries >= 0 and tries <= tries_allowed and tries <= attempt_no and releases >= 0),
    constraint tasuki_run_rare check (
        (continuation is null or continuation = 'NONE' or continuation = 'CONFIRMING') and (result is null or length(result) <= 65536))
);
create index tasuki_run_badly on tasuki_run_life (ended_badly_at) where ended_badly_at is not null;

create view tasuki_run as
select
    birth.id,
    birth.job_id,
    birth.scheduled_for,
    birth.created_at,
    birth.job_version,
    birth.max_attempts,
    life.tries_allowed,
    life.tries,
    life.attempt_no,
    life.releases,
    life.version,
    birth.exclusive,
    life.alone,
    life.state,
    birth.origin,
    birth.scope_kind,
    birth.scope_id,
    birth.lane,
    birth.slot,
    birth.idempotency_key,
    birth.event_id,
    birth.rerun_of,
    birth.args,
    life.next_retry_at,
    life.skip_at,
    life.expires_at,
    life.worker_id,
    life.lease_token,
    life.epoch,
    life.assigned_at,
    life.start_by,
    life.started_at,
    life.cancel_requested_at,
    life.cancel_requested_by,
    life.continuation,
    life.continuation_started_at,
    life.continuation_deadline,
    life.finished_at,
    life.ended_badly_at,
    life.outcome,
    life.exit_code,
    life.exit_signal,
    life.error_code,
    life.error_message,
    life.result,
    life.rows_affected,
    life.log_ref,
    life.reason
from tasuki_run_birth birth
join tasuki_run_life life on life.id = birth.id;

-- Exactly the runs that wait. Whoever takes one deletes its row, and that delete lets one taker through.
-- lane: '' is for the leader to assign, anything else is a queue to claim from.
create table tasuki_due (
    lane text not null,
    due_at integer not null,
    run_id integer not null,
    exclusive integer not null,
    alone integer not null default 0,
    skip_at integer,
    primary key (lane, due_at, run_id)
) without rowid;

-- One row for each (job, scope) of which a run is assigned or running, where only one may be.
create table tasuki_hold (
    job_id integer not null,
    scope_kind text not null,
    scope_id text not null,
    run_id integer not null,
    token blob not null,
    primary key (job_id, scope_kind, scope_id)
);

-- What a worker took in one go. Its runs carry its token; run_ids never changes.
create table tasuki_lease (
    token blob not null primary key,
    worker_id blob not null,
    epoch integer,
    lease_until integer not null,
    heartbeat_at integer not null,
    run_ids text not null
);
create index tasuki_lease_until on tasuki_lease (lease_until);
create index tasuki_lease_worker on tasuki_lease (worker_id);

-- Attempts that ended without ending their run. Written once.
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
    constraint tasuki_attempt_started check ((outcome = 'RELEASED') = (started_at is null))
);

-- The rare moves, told: who, why, under which epoch or token.
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
