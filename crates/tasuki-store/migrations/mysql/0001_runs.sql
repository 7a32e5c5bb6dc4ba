-- Jobs, runs and everything a run's life needs. Instants are microseconds since 1970, UTC.

create table tasuki_job (
    id bigint not null auto_increment primary key,
    name varchar(191) not null,
    enabled smallint not null default 1,
    trigger_type varchar(64) not null,
    schedule_type varchar(64),
    schedule_value varchar(191),
    zone varchar(191),
    dst_gap varchar(64),
    dst_fold varchar(64),
    misfire varchar(64),
    misfire_value bigint,
    event_types longtext,
    event_filter longtext,
    paused_at bigint,
    paused_until bigint,
    paused_reason longtext,
    deleted_at bigint,
    version bigint not null default 1,
    created_at bigint not null,
    updated_at bigint not null,
    constraint tasuki_job_name unique (name),
    constraint tasuki_job_trigger check (trigger_type in ('time', 'event', 'task')),
    constraint tasuki_job_schedule check ((trigger_type = 'time') = (schedule_type is not null)),
    constraint tasuki_job_paused check (paused_at is not null or (paused_until is null and paused_reason is null))
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- What a run is made of, once for each edit of its job and never changed: a run points at the copy it was made from.
create table tasuki_job_version (
    job_id bigint not null,
    version bigint not null,
    kind varchar(64) not null,
    spec longtext not null,
    lane varchar(191) not null,
    concurrency varchar(64) not null,
    max_attempts integer not null,
    max_releases integer not null,
    backoff_us bigint not null,
    backoff_cap_us bigint not null,
    jitter_percent smallint not null default 0,
    retry_lost smallint not null default 1,
    labels longtext,
    created_at bigint not null,
    primary key (job_id, version),
    constraint tasuki_job_version_kind check (kind in ('command', 'django', 'function')),
    constraint tasuki_job_version_concurrency check (concurrency in ('forbid', 'allow', 'replace')),
    constraint tasuki_job_version_numbers check (max_attempts >= 1 and max_releases >= 1 and backoff_us >= 0 and backoff_cap_us >= backoff_us)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- The next fire of each (job, scope) that has no run yet.
create table tasuki_cursor (
    job_id bigint not null,
    scope_kind varchar(191) not null default 'global',
    scope_id varchar(191) not null default 'global',
    next_fire bigint not null,
    primary key (job_id, scope_kind, scope_id)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;
create index tasuki_cursor_next_fire on tasuki_cursor (next_fire);

-- The run, which is also its live attempt and, once ended, its last one. No index here mentions what a transition
-- changes, so that its updates stay in place. And in this format a column of fixed length has its room in the row before it
-- has a value: to fill it moves nothing. In the others a row grows with each transition, and pages are split for it. The
-- price: texts have room for all of their length, or for 768 bytes, and all of it must fit into half a page.
create table tasuki_run (
    id bigint not null auto_increment primary key,
    job_id bigint not null,
    scheduled_for bigint not null,
    created_at bigint not null,
    job_version bigint not null,
    max_attempts integer not null,
    tries_allowed integer not null,
    tries integer not null default 0,
    attempt_no integer not null default 0,
    releases integer not null default 0,
    version integer not null default 1,
    exclusive smallint not null,
    alone smallint not null default 0,
    state char(10) character set ascii collate ascii_bin not null default 'PENDING',
    origin varchar(16) character set ascii collate ascii_bin not null,
    scope_kind varchar(100) not null default 'global',
    scope_id varchar(191) not null default 'global',
    lane varchar(191) not null,
    slot varchar(64) character set ascii collate ascii_bin,
    idempotency_key varchar(191),
    event_id bigint,
    rerun_of bigint,
    args longtext,
    next_retry_at bigint,
    skip_at bigint,
    expires_at bigint,
    worker_id binary(16),
    lease_token binary(16),
    epoch bigint,
    assigned_at bigint,
    start_by bigint,
    started_at bigint,
    cancel_requested_at bigint,
    cancel_requested_by varchar(191),
    continuation varchar(16) character set ascii collate ascii_bin,
    continuation_started_at bigint,
    continuation_deadline bigint,
    finished_at bigint,
    ended_badly_at bigint,
    outcome char(10) character set ascii collate ascii_bin,
    exit_code integer,
    exit_signal integer,
    error_code varchar(64) character set ascii collate ascii_bin,
    error_message longtext,
    result longtext,
    rows_affected bigint,
    log_ref longtext,
    reason longtext,
    constraint tasuki_run_slot unique (job_id, scope_kind, scope_id, slot),
    constraint tasuki_run_idempotency unique (idempotency_key),
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
            else false
        end),
    constraint tasuki_run_origin check (
        case origin
            when 'task' then slot is null
            when 'time' then slot is not null
            when 'event' then slot is null
            when 'manual' then slot is null
            when 'rerun' then slot is null
            else false
        end),
    constraint tasuki_run_tries check (tries >= 0 and tries <= tries_allowed and tries <= attempt_no and releases >= 0),
    constraint tasuki_run_rare check (
        (continuation is null or continuation in ('NONE', 'CONFIRMING')) and (result is null or length(result) <= 65536))
) engine=InnoDB row_format=redundant default charset=utf8mb4 collate=utf8mb4_bin;
create index tasuki_run_job on tasuki_run (job_id, id);
create index tasuki_run_scheduled on tasuki_run (scheduled_for, id);
create index tasuki_run_badly on tasuki_run (ended_badly_at);

-- Exactly the runs that wait. Whoever takes one deletes its row, and that delete lets one taker through.
-- lane: '' is for the leader to assign, anything else is a queue to claim from.
create table tasuki_due (
    lane varchar(191) not null,
    due_at bigint not null,
    run_id bigint not null,
    exclusive smallint not null,
    alone smallint not null default 0,
    skip_at bigint,
    primary key (lane, due_at, run_id)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- One row for each (job, scope) of which a run is assigned or running, where only one may be.
create table tasuki_hold (
    job_id bigint not null,
    scope_kind varchar(191) not null,
    scope_id varchar(191) not null,
    run_id bigint not null,
    token binary(16) not null,
    primary key (job_id, scope_kind, scope_id)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- What a worker took in one go. Its runs carry its token; run_ids never changes.
create table tasuki_lease (
    token binary(16) not null primary key,
    worker_id binary(16) not null,
    epoch bigint,
    lease_until bigint not null,
    heartbeat_at bigint not null,
    run_ids longtext not null
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;
create index tasuki_lease_until on tasuki_lease (lease_until);
create index tasuki_lease_worker on tasuki_lease (worker_id);

-- Attempts that ended without ending their run. Written once.
create table tasuki_attempt (
    run_id bigint not null,
    attempt_no integer not null,
    outcome varchar(64) not null,
    token binary(16) not null,
    worker_id binary(16) not null,
    epoch bigint,
    job_version bigint not null,
    assigned_at bigint not null,
    started_at bigint,
    finished_at bigint not null,
    exit_code integer,
    exit_signal integer,
    error_code varchar(64),
    error_message longtext,
    result longtext,
    rows_affected bigint,
    log_ref longtext,
    primary key (run_id, attempt_no),
    constraint tasuki_attempt_outcome check (outcome in ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED', 'LOST', 'RELEASED')),
    constraint tasuki_attempt_started check ((outcome = 'RELEASED') = (started_at is null))
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- The rare moves, told: who, why, under which epoch or token.
create table tasuki_run_note (
    id bigint not null auto_increment primary key,
    run_id bigint not null,
    attempt_no integer not null,
    verb varchar(64) not null,
    actor varchar(191) not null,
    reason longtext,
    epoch bigint,
    token_hash varchar(64),
    at bigint not null
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;
create index tasuki_run_note_run on tasuki_run_note (run_id, id);
