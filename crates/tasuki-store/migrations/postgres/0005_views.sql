-- The same tables for people: instants as timestamps.

create view tasuki_run_view as
select
    id,
    job_id,
    state,
    origin,
    scope_kind,
    scope_id,
    lane,
    to_timestamp(scheduled_for / 1000000.0) as scheduled_for,
    slot,
    attempt_no,
    tries,
    tries_allowed,
    releases,
    worker_id,
    to_timestamp(assigned_at / 1000000.0) as assigned_at,
    to_timestamp(started_at / 1000000.0) as started_at,
    to_timestamp(finished_at / 1000000.0) as finished_at,
    to_timestamp(next_retry_at / 1000000.0) as next_retry_at,
    to_timestamp(cancel_requested_at / 1000000.0) as cancel_requested_at,
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
    to_timestamp(created_at / 1000000.0) as created_at
from tasuki_run;

create view tasuki_attempt_view as
select
    run_id,
    attempt_no,
    outcome,
    worker_id,
    epoch,
    to_timestamp(assigned_at / 1000000.0) as assigned_at,
    to_timestamp(started_at / 1000000.0) as started_at,
    to_timestamp(finished_at / 1000000.0) as finished_at,
    exit_code,
    exit_signal,
    error_code,
    error_message
from tasuki_attempt;

create view tasuki_due_view as
select
    lane,
    to_timestamp(due_at / 1000000.0) as due_at,
    run_id,
    exclusive,
    alone,
    to_timestamp(skip_at / 1000000.0) as skip_at
from tasuki_due;

create view tasuki_worker_view as
select
    id,
    node,
    pid,
    address,
    slots,
    function_slots,
    to_timestamp(started_at / 1000000.0) as started_at,
    to_timestamp(heartbeat_at / 1000000.0) as heartbeat_at,
    to_timestamp(draining_at / 1000000.0) as draining_at,
    to_timestamp(detached_at / 1000000.0) as detached_at,
    detach_reason,
    to_timestamp(dead_at / 1000000.0) as dead_at,
    to_timestamp(gone_at / 1000000.0) as gone_at
from tasuki_worker;

create view tasuki_event_view as
select
    id,
    event_type,
    source,
    dedupe_key,
    job_name,
    to_timestamp(created_at / 1000000.0) as created_at,
    to_timestamp(processed_at / 1000000.0) as processed_at,
    runs,
    problem
from tasuki_event;

create view tasuki_audit_view as
select
    seq,
    to_timestamp(at / 1000000.0) as at,
    actor,
    action,
    object,
    address,
    before_state,
    after_state
from tasuki_audit;
