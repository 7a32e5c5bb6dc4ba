//! The expected query plan of each PostgreSQL statement.

/// For each set of access paths, the statements that use it. Names of tables and indexes are without `tasuki_`. `by
/// INDEX on COLUMNS`: through an index with a condition on these columns. `along INDEX`: a scan in the order of the
/// index. `sorted`: rows are sorted before the first one is returned, so there must be few. A statement that occurs
/// twice may have either plan.
pub(super) const EXPECTED_PLANS: &[(&[&str], &str)] = &[
    // Transitions of a run, and other statements with the id of a run.
    (
        &["run by run_pkey on id"],
        "run/assign run/start run/fail run/requeue run/retry run/end_waiting run/lock run/find
         run/request_cancel run/cancel_assigned run/end_confirming run/is_too_early run/is_late run/is_due run/is_expired
         run/list_leased_by_token run/list_filter_fields run/list_by_ids run/lock_prunable run/delete due/insert hold/acquire attempt/insert attempt/insert_last
         log/insert log/insert_many stat/add due/insert_ranges due/find_position run/free_slot run/reset_extra_runs",
    ),
    (&["run by run_pkey on id", "worker by worker_pkey on id"], "run/lock_orphanable"),
    // Sorted: the exclusive runs of one batch, so that all transactions acquire holds in the same order.
    (
        &[
            "due by due_pkey on lane, due_at, run_id",
            "due by ctid",
            "hold by hold_pkey on job_id, scope_kind, scope_id",
            "run by run_pkey on id",
            "sorted",
            "worker by worker_pkey on id",
        ],
        "run/claim_batch",
    ),
    (
        &["due by due_pkey on lane, due_at", "sorted", "worker by worker_pkey on id"],
        "run/submit_and_claim",
    ),
    (
        &[
            "hold by hold_pkey on job_id, scope_kind, scope_id",
            "lease by lease_pkey on token",
            "run by run_pkey on id",
        ],
        "run/succeed_batch",
    ),
    (
        &[
            "due by due_pkey on lane, due_at, run_id",
            "due by ctid",
            "hold by hold_pkey on job_id, scope_kind, scope_id",
            "run by run_pkey on id",
        ],
        "run/assign_batch",
    ),
    (&["lease by lease_pkey on token", "run by run_pkey on id"], "run/start_batch run/begin_confirming"),
    // Sorted: the runs of one worker.
    (
        &["lease by lease_pkey on token", "sorted", "worker by worker_pkey on id"],
        "lease/renew_batch",
    ),
    // Sorted: two rows at most.
    (
        &[
            "run by run_idempotency on idempotency_key",
            "run by run_slot on job_id, scope_kind, scope_id, slot",
            "sorted",
        ],
        "run/find_by_key",
    ),
    (&["run by run_scheduled on scheduled_for, id"], "run/list_scheduled run/list_prunable"),
    (&["run by run_scheduled on scheduled_for"], "run/list_unstarted_future"),
    (&["run by run_job on job_id, id"], "run/list_of_job"),
    (&["run by run_failed on failed_at"], "run/list_failed"),
    // Waiting runs.
    (&["due by due_pkey on lane, due_at", "run by run_pkey on id"], "due/list_in_lane"),
    (&["due by due_pkey on lane, due_at"], "due/find_next"),
    (
        &["due by due_pkey on lane, due_at, run_id"],
        "due/delete due/delete_range due/find_range due/split due/list_next_page due/list_lane_due_times",
    ),
    (&["due along due_pkey"], "due/list_first_page due/find_first_lane"),
    (&["due by due_pkey on lane"], "due/find_next_lane"),
    (
        &[
            "due by due_pkey on lane, due_at",
            "hold by hold_pkey on job_id, scope_kind, scope_id",
            "run by run_pkey on id",
        ],
        "due/list_assignable due/list_past_due",
    ),
    (
        &["cursor by cursor_next_fire on next_fire", "due along due_pkey", "event along event_unprocessed"],
        "leader/find_pending_work",
    ),
    (&["cursor by cursor_next_fire on next_fire", "job by job_pkey on id"], "cursor/list_due"),
    (&["cursor by cursor_pkey on job_id, scope_kind, scope_id"], "cursor/move cursor/delete"),
    (&["cursor by cursor_pkey on job_id"], "cursor/delete_of_job cursor/move_all_of_job"),
    (&["cursor by cursor_pkey on job_id", "job by job_pkey on id"], "cursor/list_of_job"),
    // Leases and holds.
    (
        &[
            "leader_term by leader_term_pkey on id",
            "lease by lease_worker on worker_id",
            "setting_version by setting_version_pkey on id",
            "worker by worker_pkey on id",
        ],
        "worker/heartbeat",
    ),
    (&["lease by lease_pkey on token"], "lease/renew lease/find lease/lock lease/delete"),
    (&["lease by lease_pkey on token", "run by run_pkey on id"], "lease/delete_if_empty run/list_started_by_token"),
    // Reads all leases, whose number is that of the active batches.
    (&["lease by a Seq Scan", "run by run_pkey on id"], "lease/list_assignments"),
    (&["lease by lease_pkey on token", "worker by worker_pkey on id"], "lease/delete_expired"),
    // Sorted: expired leases. There are few workers, and no index contains the dead ones.
    (
        &[
            "lease by lease_until on lease_until",
            "lease by lease_worker on worker_id",
            "sorted",
            "worker by a Seq Scan",
        ],
        "lease/list_expired",
    ),
    (&["lease by lease_worker on worker_id"], "lease/list_of_worker"),
    (&["lease along lease_worker"], "lease/count_per_worker"),
    (&["lease by lease_worker on worker_id", "run by run_pkey on id"], "lease/count_used_slots lease/list_runs_of_worker"),
    (&["lease along lease_pkey"], "lease/list_run_ids"),
    (&["hold by hold_pkey on job_id, scope_kind, scope_id"], "hold/release hold/find"),
    // Attempts, logs and transition records. Sorted: the attempts of one run.
    (&["attempt by attempt_pkey on run_id"], "attempt/find_by_token attempt/list_of_run attempt/delete"),
    (
        &["attempt by attempt_pkey on run_id", "run by run_pkey on id", "sorted"],
        "attempt/list_executions",
    ),
    (&["log by log_pkey on run_id, attempt_no"], "log/lock log/find log/update_counters log/mark_archived"),
    (
        &[
            "log by log_pkey on run_id, attempt_no",
            "log_chunk by log_chunk_pkey on run_id, attempt_no",
        ],
        "log/delete_archived_chunks",
    ),
    (&["log_chunk by log_chunk_pkey on run_id, attempt_no, first_line"], "log/list_chunks"),
    (&["log by log_pkey on run_id"], "log/delete"),
    (&["log_chunk by log_chunk_pkey on run_id"], "log/delete_chunks"),
    (&["run_note by run_note_run on run_id"], "transition_record/list_of_run transition_record/delete"),
    // Events. Two indexes find an unprocessed event by its id.
    (&["event along event_unprocessed"], "event/list_unprocessed"),
    (&["event by event_unprocessed on id"], "event/lock_unprocessed event/mark_processed"),
    (
        &["event by event_pkey on id"],
        "event/lock_unprocessed event/mark_processed event/find event/list event/list_prunable event/delete",
    ),
    (&["event by event_dedupe on source, dedupe_key"], "event/find_by_key"),
    // Jobs, statistics and the audit log.
    (&["job by job_pkey on id"], "job/lock job/is_version job/lock_version job/update job/list_names"),
    (&["job by job_name on name"], "job/lock_by_name"),
    (
        &["job by job_pkey on id", "job_version by job_version_pkey on job_id, version"],
        "job/find_by_id",
    ),
    (
        &["job by job_name on name", "job_version by job_version_pkey on job_id, version"],
        "job/find_by_name job/list",
    ),
    (
        &[
            "job by job_trigger on trigger_type, id",
            "job_version by job_version_pkey on job_id, version",
        ],
        "job/list_with_event_trigger",
    ),
    (
        &["job by job_pkey on id", "job_version by job_version_pkey on job_id, version"],
        "job/list_versions",
    ),
    // Either plan is good, because a job has few versions.
    (
        &["job by job_pkey on id", "job_version by job_version_pkey on job_id"],
        "job/list_versions",
    ),
    (&["job_version by job_version_pkey on job_id, version"], "job/find_version"),
    (&["stat along stat_pkey"], "stat/list_prunable"),
    (&["stat by stat_pkey on minute"], "stat/delete_until"),
    (&["audit by audit_pkey on seq"], "audit/list"),
    (&["audit_head by audit_head_pkey on id"], "audit/find_head audit/lock_head audit/update_head"),
    // Workers, leader, tokens and settings. All workers and all settings are read, because there are few.
    (
        &["worker by worker_pkey on id"],
        "worker/find worker/lock worker/resize worker/drain worker/detach worker/mark_dead worker/mark_gone",
    ),
    (&["sorted", "worker by a Seq Scan"], "worker/list"),
    (
        &[
            "lease by lease_worker on worker_id",
            "sorted",
            "worker along worker_pkey",
            "worker by worker_pkey on id",
        ],
        "worker/mark_silent_gone worker/delete_gone",
    ),
    (&["leader_term by leader_term_pkey on id"], "leader/find_epoch leader/begin_term"),
    (
        &["leader_lease by leader_lease_pkey on id"],
        "leader/take_lease leader/renew_lease leader/end_lease",
    ),
    (
        &[
            "leader_lease by leader_lease_pkey on id",
            "leader_term by leader_term_pkey on id",
        ],
        "leader/find",
    ),
    (&["term_history along term_history_pkey"], "leader/list_terms leader/list_recent_terms"),
    (&["api_token by api_token_hash on token_hash"], "token/find_by_hash"),
    (&["api_token by api_token_pkey on id"], "token/lock_by_id token/record_use token/revoke"),
    (&["api_token along api_token_pkey"], "token/list"),
    (&["setting by setting_pkey on name"], "setting/update"),
    (&["setting_version by setting_version_pkey on id"], "setting/increment_version"),
    (
        &[
            "setting along setting_pkey",
            "setting_version by setting_version_pkey on id",
            "sorted",
        ],
        "setting/list_with_version",
    ),
    // These read no table: they insert parameters, or take a lock.
    (
        &[],
        "run/insert_batch run/insert_uniform run/allocate_ids due/insert_range lease/insert_assigned lease/insert_claimed cursor/insert cursor/upsert_global event/insert job/insert job/insert_version
         log/insert_chunk transition_record/insert audit/insert setting/insert worker/insert leader/insert_term leader/lock_term_exclusive
         leader/lock_term_shared token/insert",
    ),
];
