-- The schema of tasuki for MySQL and MariaDB. All instants are microseconds since 1970 in UTC, all durations (..._us)
-- are microseconds, and flags are 0 or 1. The tables and columns are those of the other databases, except where a
-- comment says that they exist on this database only.

-- ======================================================================
-- Jobs and runs
-- ======================================================================

-- A job definition. A deleted job keeps its row (deleted_at), because runs refer to it. Every change increments
-- version.
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
-- The leader reads the jobs with an event trigger for every event; this index avoids a scan of all jobs.
create index tasuki_job_trigger on tasuki_job (trigger_type, id);

-- An immutable copy of what a job executes: one row for each edit of the job's spec. A run names the version that it
-- executes.
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

-- The scheduling position of each (job, scope): the next instant of its schedule for which no run exists yet.
create table tasuki_cursor (
    job_id bigint not null,
    scope_kind varchar(191) not null default 'global',
    scope_id varchar(191) not null default 'global',
    next_fire bigint not null,
    primary key (job_id, scope_kind, scope_id)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;
create index tasuki_cursor_next_fire on tasuki_cursor (next_fire);

-- A run. The row also holds the live attempt of the run or, after the run has ended, its last attempt. No index
-- contains a column that a state transition changes, so updates stay in place. In the redundant row format a column of
-- fixed length has its space in the row before it has a value, so setting it moves nothing. In the other formats a row
-- grows with each transition, and InnoDB splits pages. The price: a text reserves its full length, or 768 bytes, and
-- the whole row must fit into half a page.
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
    isolated smallint not null default 0,
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
    failed_at bigint,
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
    constraint tasuki_run_times check (finished_at >= started_at),
    constraint tasuki_run_tries check (tries >= 0 and tries <= tries_allowed and tries <= attempt_no and releases >= 0),
    constraint tasuki_run_values check (
        (continuation is null or continuation in ('NONE', 'CONFIRMING')) and (result is null or length(result) <= 65536))
) engine=InnoDB row_format=redundant default charset=utf8mb4 collate=utf8mb4_bin;
create index tasuki_run_job on tasuki_run (job_id, id);
create index tasuki_run_scheduled on tasuki_run (scheduled_for, id);
create index tasuki_run_failed on tasuki_run (failed_at);

-- The due table: the queue of exactly those runs that wait. A process that takes a run deletes its row, so only one
-- process can take it.
-- lane '': the leader assigns the run; any other lane: workers claim from it.
-- extra_runs: a row can stand for a range of runs with consecutive ids: run_id and this many after it. Only for tasks
-- that were submitted together, without a hold, without an expiry and without a skip time.
create table tasuki_due (
    lane varchar(191) not null,
    due_at bigint not null,
    run_id bigint not null,
    exclusive smallint not null,
    isolated smallint not null default 0,
    skip_at bigint,
    extra_runs smallint not null default 0,
    primary key (lane, due_at, run_id),
    constraint tasuki_due_extra_runs check (extra_runs >= 0 and extra_runs < 64 and (extra_runs = 0 or (exclusive = 0 and isolated = 0 and skip_at is null)))
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- The concurrency locks: one row for each (job, scope) with an assigned or running run, if the job allows one run at a
-- time.
create table tasuki_hold (
    job_id bigint not null,
    scope_kind varchar(191) not null,
    scope_id varchar(191) not null,
    run_id bigint not null,
    token binary(16) not null,
    primary key (job_id, scope_kind, scope_id)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- A lease: all runs that a worker was assigned or claimed in one statement, and until when it holds them. The runs have
-- its token in lease_token. run_ids is a JSON list of the ids; it never changes.
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

-- Ended attempts that were not the last one of their run. A row is written once and never changed.
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
    constraint tasuki_attempt_started check ((outcome = 'RELEASED') = (started_at is null)),
    constraint tasuki_attempt_times check (finished_at >= started_at)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- Transition records: the rare transitions of runs, with the actor, the reason, and the epoch or the hash of the lease
-- token.
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

-- ======================================================================
-- Workers, leader, events, settings, statistics
-- ======================================================================

-- Workers: one row for each incarnation (one process). gone_at: when it left, or when a leader removed it as silent for
-- too long.
create table tasuki_worker (
    id binary(16) not null primary key,
    node varchar(191) not null,
    pid integer,
    address varchar(191),
    labels longtext,
    slots integer not null,
    function_slots integer not null,
    version varchar(191),
    started_at bigint not null,
    heartbeat_at bigint not null,
    draining_at bigint,
    detached_at bigint,
    detach_reason longtext,
    dead_at bigint,
    gone_at bigint,
    constraint tasuki_worker_slots check (slots >= 0 and function_slots >= 0)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- The current term. Every write of a leader compares its epoch with this row. The leader's lease is a row of its own,
-- so a renewal does not touch the term.
create table tasuki_leader_term (
    id smallint not null primary key,
    epoch bigint not null,
    holder binary(16),
    began_at bigint,
    constraint tasuki_leader_term_single_row check (id = 1)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- The leader's lease. unbroken_since: since when the leader has renewed it without a long gap.
create table tasuki_leader_lease (
    id smallint not null primary key,
    epoch bigint not null,
    holder binary(16),
    lease_until bigint not null,
    renewed_at bigint,
    unbroken_since bigint,
    constraint tasuki_leader_lease_single_row check (id = 1)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- Every term that ever began: its epoch, its holder, and when it began.
create table tasuki_term_history (
    epoch bigint not null primary key,
    holder binary(16) not null,
    began_at bigint not null
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

insert into tasuki_leader_term (id, epoch) values (1, 0);
insert into tasuki_leader_lease (id, epoch, lease_until) values (1, 0, 0);

-- Events, which may create runs. A program in any language may insert a row: event_type and payload, optionally
-- dedupe_key and job_name; all other columns have defaults.
create table tasuki_event (
    id bigint not null auto_increment primary key,
    event_type varchar(191) not null,
    payload longtext,
    source varchar(191) not null default 'sql',
    dedupe_key varchar(191),
    job_name varchar(191),
    created_at bigint not null default (timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))),
    processed_at bigint,
    runs integer,
    problem longtext,
    constraint tasuki_event_dedupe unique (source, dedupe_key)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;
create index tasuki_event_unprocessed on tasuki_event (processed_at, id);

-- Settings that differ from their default.
create table tasuki_setting (
    name varchar(191) not null primary key,
    value varchar(191) not null,
    changed_at bigint not null,
    changed_by varchar(191) not null
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- One row. Every change of a setting increments the version, so that nodes notice the change.
create table tasuki_setting_version (
    id smallint not null primary key,
    version bigint not null,
    constraint tasuki_setting_version_single_row check (id = 1)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;
insert into tasuki_setting_version (id, version) values (1, 0);

-- Counts and sums of ended runs per minute. worker_id is in the key so that workers do not wait for each other's row
-- lock, and shard (derived from the connection) so that the connections of one worker do not.
create table tasuki_stat (
    minute bigint not null,
    job_id bigint not null,
    outcome varchar(64) not null,
    worker_id binary(16) not null,
    shard smallint not null,
    runs bigint not null,
    wait_us bigint not null,
    run_us bigint not null,
    primary key (minute, job_id, outcome, worker_id, shard)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- ======================================================================
-- Logs, audit, tokens
-- ======================================================================

-- The captured output of an attempt: its size, and where it is archived, if it is.
create table tasuki_log (
    run_id bigint not null,
    attempt_no integer not null,
    bytes bigint not null default 0,
    lines_count bigint not null default 0,
    truncated smallint not null default 0,
    log_ref longtext,
    sha256 binary(32),
    archived_at bigint,
    primary key (run_id, attempt_no)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- A chunk of captured output: the lines first_line to last_line of an attempt.
create table tasuki_log_chunk (
    run_id bigint not null,
    attempt_no integer not null,
    first_line bigint not null,
    last_line bigint not null,
    at bigint not null,
    body longtext not null,
    primary key (run_id, attempt_no, first_line)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- The audit log: actor, action, object and address of each change. Each row contains the hash of the previous row.
create table tasuki_audit (
    seq bigint not null primary key,
    at bigint not null,
    actor varchar(191) not null,
    action varchar(64) not null,
    object varchar(191) not null,
    address varchar(191),
    before_state longtext,
    after_state longtext,
    prev_hash binary(32) not null,
    hash binary(32) not null
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- The last row of the audit chain. A transaction that appends locks this row, so the sequence has no gaps.
create table tasuki_audit_head (
    id smallint not null primary key,
    seq bigint not null,
    hash binary(32) not null,
    constraint tasuki_audit_head_single_row check (id = 1)
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;
insert into tasuki_audit_head (id, seq, hash) values (1, 0, repeat(x'00', 32));

-- Reserved for the users and sessions of the operations pages.
create table tasuki_user (
    id bigint not null auto_increment primary key,
    name varchar(191) not null,
    password_hash longtext,
    role varchar(64) not null,
    language varchar(64),
    disabled_at bigint,
    created_at bigint not null,
    constraint tasuki_user_name unique (name),
    constraint tasuki_user_role check (role in ('viewer', 'operator', 'author', 'admin'))
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

create table tasuki_session (
    token_hash binary(32) not null primary key,
    user_id bigint not null,
    csrf_hash binary(32) not null,
    created_at bigint not null,
    seen_at bigint not null,
    expires_at bigint not null
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- Tokens of the REST API. Only the hash of a token is stored.
create table tasuki_api_token (
    id bigint not null auto_increment primary key,
    name varchar(191) not null,
    token_hash binary(32) not null,
    role varchar(64) not null,
    created_at bigint not null,
    created_by varchar(191) not null,
    expires_at bigint,
    last_used_at bigint,
    revoked_at bigint,
    constraint tasuki_api_token_hash unique (token_hash),
    constraint tasuki_api_token_role check (role in ('viewer', 'operator', 'author', 'admin'))
) engine=InnoDB default charset=utf8mb4 collate=utf8mb4_bin;

-- ======================================================================
-- Triggers: rules that hold even for SQL typed by hand. The legal transitions are those of the table in
-- ARCHITECTURE.md; a test compares the two.
-- ======================================================================

-- One lookup in one list, because MariaDB prepares the expressions of a trigger again for every row, and a long
-- condition costs twice as much as the update itself. The literals have the character set of the column, so that they
-- need no conversion for each row.
create trigger tasuki_run_legal_transition before update on tasuki_run for each row
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
        signal sqlstate '45000' set message_text = 'tasuki: illegal state transition of a run';
    end if;

create trigger tasuki_run_legal_insert before insert on tasuki_run for each row
begin
    if new.state <> _ascii'PENDING' then
        signal sqlstate '45000' set message_text = 'tasuki: a new run must be PENDING';
    end if;
end;

create trigger tasuki_run_legal_delete before delete on tasuki_run for each row
begin
    if old.finished_at is null then
        signal sqlstate '45000' set message_text = 'tasuki: a run that has not ended cannot be deleted';
    end if;
end;

-- Rows that are written once.
create trigger tasuki_attempt_no_update before update on tasuki_attempt for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: a recorded attempt cannot be changed';
end;

create trigger tasuki_run_note_no_update before update on tasuki_run_note for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: a transition record cannot be changed';
end;

create trigger tasuki_term_history_no_update before update on tasuki_term_history for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: the term history cannot be changed';
end;

create trigger tasuki_term_history_no_delete before delete on tasuki_term_history for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: the term history cannot be deleted';
end;

create trigger tasuki_audit_no_update before update on tasuki_audit for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: the audit log cannot be changed';
end;

create trigger tasuki_audit_no_delete before delete on tasuki_audit for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: the audit log cannot be deleted';
end;

create trigger tasuki_job_version_no_update before update on tasuki_job_version for each row
begin
    signal sqlstate '45000' set message_text = 'tasuki: a job version cannot be changed';
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
    from_unixtime(scheduled_for / 1000000.0) as scheduled_for,
    slot,
    attempt_no,
    tries,
    tries_allowed,
    releases,
    worker_id,
    from_unixtime(assigned_at / 1000000.0) as assigned_at,
    from_unixtime(started_at / 1000000.0) as started_at,
    from_unixtime(finished_at / 1000000.0) as finished_at,
    from_unixtime(next_retry_at / 1000000.0) as next_retry_at,
    from_unixtime(cancel_requested_at / 1000000.0) as cancel_requested_at,
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
    from_unixtime(created_at / 1000000.0) as created_at
from tasuki_run;

create view tasuki_attempt_view as
select
    run_id,
    attempt_no,
    outcome,
    worker_id,
    epoch,
    from_unixtime(assigned_at / 1000000.0) as assigned_at,
    from_unixtime(started_at / 1000000.0) as started_at,
    from_unixtime(finished_at / 1000000.0) as finished_at,
    exit_code,
    exit_signal,
    error_code,
    error_message
from tasuki_attempt;

create view tasuki_due_view as
select
    lane,
    from_unixtime(due_at / 1000000.0) as due_at,
    run_id,
    exclusive,
    isolated,
    from_unixtime(skip_at / 1000000.0) as skip_at,
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
    from_unixtime(started_at / 1000000.0) as started_at,
    from_unixtime(heartbeat_at / 1000000.0) as heartbeat_at,
    from_unixtime(draining_at / 1000000.0) as draining_at,
    from_unixtime(detached_at / 1000000.0) as detached_at,
    detach_reason,
    from_unixtime(dead_at / 1000000.0) as dead_at,
    from_unixtime(gone_at / 1000000.0) as gone_at
from tasuki_worker;

create view tasuki_event_view as
select
    id,
    event_type,
    source,
    dedupe_key,
    job_name,
    from_unixtime(created_at / 1000000.0) as created_at,
    from_unixtime(processed_at / 1000000.0) as processed_at,
    runs,
    problem
from tasuki_event;

create view tasuki_audit_view as
select
    seq,
    from_unixtime(at / 1000000.0) as at,
    actor,
    action,
    object,
    address,
    before_state,
    after_state
from tasuki_audit;
