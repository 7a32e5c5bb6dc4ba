// The rules of the modules. Included by `architecture.rs`.

/// Folders that are compiled for tests only.
const TEST_ONLY: [&str; 2] = ["tasuki/src/sim/", "tasuki/src/node/manual_clock_tests"];

const FOLDERS: [Folders; 4] = [
    Folders {
        source: "crates/tasuki-core/src",
        module: &[],
        rules: &[
            ("argv_template", &["invalid_input"], "command lines are text; they know nothing of jobs"),
            ("assign", &["id"], "the choice of a worker is a decision about ids and numbers"),
            ("concurrency", &["id", "run", "string_enum"], "a decision about states of runs"),
            ("duration", &["invalid_input"], "durations are text and numbers"),
            ("attempt_error_code", &["invalid_input"], "a code is a checked text"),
            ("event_trigger_match", &["invalid_input"], "a filter is JSON; it knows nothing of events in a database"),
            ("exit", &["attempt_error_code", "invalid_input"], "an exit becomes an error code; retries come later"),
            ("id", &["invalid_input"], "ids are the lowest layer"),
            ("queue_lane", &["id", "invalid_input", "string_enum"], "a lane is a name"),
            ("text_language", &["string_enum"], "a language is a name"),
            ("plan_scheduled_runs", &["invalid_input", "schedule"], "missed slots are a question of schedules alone"),
            ("retry", &["attempt_error_code", "exit", "invalid_input", "run"], "a decision about counters and an error code"),
            ("access_role", &["string_enum"], "a role is a name"),
            ("run", &["string_enum"], "states and transitions depend on no decision"),
            ("schedule", &["did_you_mean", "invalid_input", "text_language", "string_enum"], "schedules know nothing of jobs and runs"),
            ("settings", &["did_you_mean", "duration", "invalid_input", "text_language"], "settings are values with bounds"),
            ("work_spec", &["argv_template", "duration", "attempt_error_code", "exit", "invalid_input", "queue_lane", "string_enum"], "the description of the work of a job; schedules and states are apart"),
        ],
    },
    Folders {
        source: "crates/tasuki-store/src",
        module: &[],
        rules: &[
            ("audit", &["db", "error"], "every change writes an audit entry, so the audit depends on nothing that changes"),
            ("cluster", &["audit", "db", "error", "job", "run"], "leadership and workers"),
            ("db", &["error"], "connections and statements; the meaning of the statements is elsewhere"),
            ("doctor", &["audit", "db", "error", "run"], "the doctor reads tables and writes nothing; it needs the length of id ranges"),
            ("emitted_events", &["cluster", "db", "error", "job", "run", "validate"], "an event creates runs, fenced by the leader's epoch"),
            ("job", &["audit", "db", "error", "run", "validate"], "an edit cancels runs and writes an audit entry"),
            ("logs", &["db", "error", "validate"], "lines of text under a run and an attempt number"),
            ("retention", &["db", "error", "run"], "deletes old rows"),
            ("run", &["audit", "cluster", "db", "error", "guarded_write_outcome", "job", "logs", "validate"], "the verbs of a run"),
            ("settings", &["audit", "db", "error"], "a change of settings writes an audit entry"),
            ("token", &["audit", "db", "error", "validate"], "a token is audited when it is issued and revoked"),
            ("validate", &["run"], "checks of input, before it reaches a statement"),
        ],
    },
    Folders {
        source: "crates/tasuki/src",
        module: &[],
        rules: &[
            ("client", &["node", "operator"], "what an embedding program uses"),
            ("handler", &["line_splitter", "node"], "typed functions"),
            ("job_declaration", &["node", "operator"], "jobs declared in code"),
            ("node", &["handler", "job_declaration", "line_splitter", "operator", "spawner", "wakeups_and_hints"], "the node puts the parts together"),
            ("wakeups_and_hints", &["node"], "hints reach other nodes through the node's coordination traits"),
            ("operator", &["wakeups_and_hints"], "people act on the database; an operator needs no node"),
            ("testing", &["client", "node"], "a node for the tests of an embedding program"),
        ],
    },
    Folders {
        source: "crates/tasuki/src/node",
        module: &["node"],
        rules: &[
            ("coordination", &["clock_and_random", "leader", "store_timeout", "worker"], "other nodes talk to the leader and the worker of this one"),
            ("data_dir", &["clock_and_random", "executor", "job_version_cache"], "reports what an earlier incarnation could not report"),
            ("executor", &["clock_and_random", "config", "job_version_cache"], "an executor runs attempts; it knows no leases and no leader"),
            ("leader", &["clock_and_random", "coordination", "worker_ids_of_process", "job_version_cache", "store_timeout"], "the leader assigns runs to any worker, and has no access to its own"),
            ("loops", &["clock_and_random", "coordination", "executor", "leader", "outage_log", "worker"], "intervals, backoff and stopping of all ticks"),
            ("worker", &["clock_and_random", "coordination", "executor", "worker_ids_of_process", "job_version_cache", "leader", "store_timeout"], "a worker holds leases and runs attempts"),
        ],
    },
];
