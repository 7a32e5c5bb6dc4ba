//! Which way each statement is to go.

/// For each statement how it reaches its tables, without the `tasuki_` of their names: *by* an index
/// *on* the columns it is given, or *along* an index that has the order of the list. Several ways are
/// parts of one statement. *sorted*: what it reached is sorted before the first row comes out, so it
/// must be a handful by then. A statement that stands here twice may go either way.
pub(super) const PLANS: &[(&[&str], &str)] = &[
    // The transitions of a run, and whatever else knows its run.
    (
        &["run by run_pkey on id"],
        "run/assign run/start run/succeed run/fail run/wait run/retry run/end_waiting run/lock run/show
         run/cancel_ask run/cancel_assigned run/confirmed run/early run/late run/is_due run/expired
         run/under run/brief run/by_ids run/lock_old run/delete due/put hold/take attempt/append attempt/append_last
         log/open log/open_many stat/add due/put_between due/place run/free_slot run/relist",
    ),
    (&["run by run_pkey on id", "worker by worker_pkey on id"], "run/orphanable"),
    // Sorted: the exclusive runs of one batch, so that holds are taken in one order.
    (
        &[
            "due by due_pkey on lane, due_at, run_id",
            "due by its place",
            "hold by hold_pkey on job_id, scope_kind, scope_id",
            "run by run_pkey on id",
            "sorted",
            "worker by worker_pkey on id",
        ],
        "run/claim_batch",
    ),
    (
        &["due by due_pkey on lane, due_at", "sorted", "worker by worker_pkey on id"],
        "run/take_in",
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
            "due by its place",
            "hold by hold_pkey on job_id, scope_kind, scope_id",
            "run by run_pkey on id",
        ],
        "run/assign_batch",
    ),
    (&["lease by lease_pkey on token", "run by run_pkey on id"], "run/start_batch run/confirm"),
    // Sorted: what one worker carries.
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
        "run/by_key",
    ),
    (&["run by run_scheduled on scheduled_for, id"], "run/list_scheduled run/old"),
    (&["run by run_scheduled on scheduled_for"], "run/ahead"),
    (&["run by run_job on job_id, id"], "run/list_of_job"),
    (&["run by run_badly on ended_badly_at"], "run/list_badly"),
    // What waits.
    (&["due by due_pkey on lane, due_at", "run by run_pkey on id"], "due/list"),
    (&["due by due_pkey on lane, due_at"], "due/next"),
    (
        &["due by due_pkey on lane, due_at, run_id"],
        "due/take due/take_stretch due/stretch due/cut due/list_next due/firsts",
    ),
    (&["due along due_pkey"], "due/list_first due/first_lane"),
    (&["due by due_pkey on lane"], "due/lane"),
    (
        &[
            "due by due_pkey on lane, due_at",
            "hold by hold_pkey on job_id, scope_kind, scope_id",
            "run by run_pkey on id",
        ],
        "due/assignable due/sweep",
    ),
    (
        &["cursor by cursor_next_fire on next_fire", "due along due_pkey", "event along event_open"],
        "leader/glance",
    ),
    (&["cursor by cursor_next_fire on next_fire", "job by job_pkey on id"], "cursor/due"),
    (&["cursor by cursor_pkey on job_id, scope_kind, scope_id"], "cursor/move cursor/end"),
    (&["cursor by cursor_pkey on job_id"], "cursor/delete cursor/replan"),
    (&["cursor by cursor_pkey on job_id", "job by job_pkey on id"], "cursor/of_job"),
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
    (&["lease by lease_pkey on token"], "lease/touch lease/show lease/lock lease/close"),
    (&["lease by lease_pkey on token", "run by run_pkey on id"], "lease/close_if_empty run/taken_under"),
    // All leases are read as a whole: as many as there is work under way.
    (&["lease by a Seq Scan", "run by run_pkey on id"], "lease/carried"),
    (&["lease by lease_pkey on token", "worker by worker_pkey on id"], "lease/seize"),
    // Sorted: what lapsed. The workers are few, and no index knows the dead ones.
    (
        &[
            "lease by lease_until on lease_until",
            "lease by lease_worker on worker_id",
            "sorted",
            "worker by a Seq Scan",
        ],
        "lease/lapsed",
    ),
    (&["lease by lease_worker on worker_id"], "lease/of_worker"),
    (&["lease along lease_worker"], "lease/per_worker"),
    (&["lease by lease_worker on worker_id", "run by run_pkey on id"], "lease/occupied lease/mine"),
    (&["lease along lease_pkey"], "lease/run_ids"),
    (&["hold by hold_pkey on job_id, scope_kind, scope_id"], "hold/give hold/look"),
    // What a run leaves behind. Sorted: the attempts of one run.
    (&["attempt by attempt_pkey on run_id"], "attempt/by_token attempt/of_run attempt/delete"),
    (
        &["attempt by attempt_pkey on run_id", "run by run_pkey on id", "sorted"],
        "attempt/executions",
    ),
    (&["log by log_pkey on run_id, attempt_no"], "log/lock log/show log/count log/archive"),
    (
        &[
            "log by log_pkey on run_id, attempt_no",
            "log_chunk by log_chunk_pkey on run_id, attempt_no",
        ],
        "log/delete_body",
    ),
    (&["log_chunk by log_chunk_pkey on run_id, attempt_no, first_line"], "log/read"),
    (&["log by log_pkey on run_id"], "log/delete"),
    (&["log_chunk by log_chunk_pkey on run_id"], "log/delete_lines"),
    (&["run_note by run_note_run on run_id"], "note/of_run note/delete"),
    // Events. One that is known to be open has two indexes that find it alone.
    (&["event along event_open"], "event/open"),
    (&["event by event_open on id"], "event/lock event/take"),
    (
        &["event by event_pkey on id"],
        "event/lock event/take event/show event/list event/old event/delete",
    ),
    (&["event by event_dedupe on source, dedupe_key"], "event/by_key"),
    // Jobs, counts and the audit.
    (&["job by job_pkey on id"], "job/lock job/seen job/share job/update job/names"),
    (&["job by job_name on name"], "job/lock_name"),
    (
        &["job by job_pkey on id", "job_version by job_version_pkey on job_id, version"],
        "job/by_id",
    ),
    (
        &["job by job_name on name", "job_version by job_version_pkey on job_id, version"],
        "job/by_name job/list",
    ),
    (
        &[
            "job by job_trigger on trigger_type, id",
            "job_version by job_version_pkey on job_id, version",
        ],
        "job/of_events",
    ),
    (
        &["job by job_pkey on id", "job_version by job_version_pkey on job_id, version"],
        "job/versions",
    ),
    // Either way: a job has few versions.
    (
        &["job by job_pkey on id", "job_version by job_version_pkey on job_id"],
        "job/versions",
    ),
    (&["job_version by job_version_pkey on job_id, version"], "job/version_show"),
    (&["stat along stat_pkey"], "stat/old"),
    (&["stat by stat_pkey on minute"], "stat/delete"),
    (&["audit by audit_pkey on seq"], "audit/list"),
    (&["audit_head by audit_head_pkey on id"], "audit/head audit/lock audit/advance"),
    // Who is there. All workers and all settings are read as a whole, and are few.
    (
        &["worker by worker_pkey on id"],
        "worker/show worker/lock worker/resize worker/drain worker/detach worker/dead worker/gone",
    ),
    (&["sorted", "worker by a Seq Scan"], "worker/list"),
    (
        &[
            "lease by lease_worker on worker_id",
            "sorted",
            "worker along worker_pkey",
            "worker by worker_pkey on id",
        ],
        "worker/forget worker/delete",
    ),
    (&["leader_term by leader_term_pkey on id"], "leader/check leader/mint_term"),
    (
        &["leader_lease by leader_lease_pkey on id"],
        "leader/mint_lease leader/renew leader/resign",
    ),
    (
        &[
            "leader_lease by leader_lease_pkey on id",
            "leader_term by leader_term_pkey on id",
        ],
        "leader/show",
    ),
    (&["term_history along term_history_pkey"], "leader/history leader/recent"),
    (&["api_token by api_token_hash on token_hash"], "token/by_hash"),
    (&["api_token by api_token_pkey on id"], "token/by_id token/touch token/revoke"),
    (&["api_token along api_token_pkey"], "token/list"),
    (&["setting by setting_pkey on name"], "setting/change"),
    (&["setting_version by setting_version_pkey on id"], "setting/raise"),
    (
        &[
            "setting along setting_pkey",
            "setting_version by setting_version_pkey on id",
            "sorted",
        ],
        "setting/in_force",
    ),
    // These reach for nothing: they insert what they are given, or take a lock.
    (
        &[],
        "run/insert run/insert_batch run/insert_alike run/draw due/put_stretch lease/open lease/open_for cursor/put cursor/begin event/emit job/insert job/version_insert
         log/add note/add audit/append setting/add worker/register leader/mint_history leader/lock_mint
         leader/lock_share token/add",
    ),
];
