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
    alone,
    strftime('%Y-%m-%dT%H:%M:%fZ', skip_at / 1000000.0, 'unixepoch') as skip_at
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
