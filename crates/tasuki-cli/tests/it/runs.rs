//! `tasuki run`, `task` and `event`: the requests that they send and the output for the responses, with a fake server.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::fake_server::{FakeServer, Reply, Request};

pub(crate) fn run(id: i64, state: &str) -> Value {
    json!({
        "id": id, "job": "hello", "job_id": 1, "job_version": 3, "state": state, "origin": "time",
        "scope": "global/global", "scheduled_for": "2020-01-01T00:00:00.000000Z",
        "due_at": "2020-01-01T00:00:00.000000Z", "slot": "2020-01-01T00:00:00", "args": null,
        "attempt_no": 1, "tries": 1, "tries_allowed": 1, "retry_count": 0, "max_attempts": 1,
        "version": 4, "next_retry_at": null, "skip_at": null, "expires_at": null,
        "worker": "11111111-2222-4333-8444-555555555555",
        "locked_by": "11111111-2222-4333-8444-555555555555", "epoch": 2, "start_by": null,
        "started_at": "2020-01-01T00:00:00.100000Z", "heartbeat_at": null, "finished_at": null,
        "cancel_requested_at": null, "outcome": null, "exit_code": null, "exit_signal": null,
        "error_code": null, "error_message": null, "reason": null, "result": null,
        "rows_affected": null, "log_ref": null, "event_id": null, "rerun_of": null,
        "idempotency_key": null
    })
}

pub(crate) fn failed() -> Value {
    let mut run = run(8, "FAILED");
    for (field, value) in [
        ("finished_at", json!("2020-01-01T00:01:10.100000Z")),
        ("outcome", json!("FAILED")),
        ("exit_code", json!(3)),
        ("error_code", json!("NO_DATA")),
        ("error_message", json!("nothing to \u{1b}[31mreport")),
        ("retry_count", json!(1)),
        ("attempt_no", json!(2)),
        ("max_attempts", json!(2)),
        ("args", json!({"day": "today"})),
    ] {
        run[field] = value;
    }
    run
}

fn succeeded() -> Value {
    let mut run = run(7, "SUCCEEDED");
    run["finished_at"] = json!("2020-01-01T00:00:01.600000Z");
    run["exit_code"] = json!(0);
    run
}

fn runs(request: &Request) -> Reply {
    let page = |from: i64| {
        json!({"attempt": 1, "next": (from + 2).min(3), "lines_count": 3, "bytes": 30, "truncated": true,
        "log_ref": null, "ended": true, "lines": match from {
            0 => json!([line(0, "out", "one"), line(1, "err", "two")]),
            2 => json!([line(2, "out", "三")]),
            _ => json!([]),
        }})
    };
    let mut detailed = failed();
    detailed["executions"] = json!([
        {"attempt_no": 1, "outcome": "FAILED", "worker": "w", "started_at": "2020-01-01T00:00:00.1Z",
            "finished_at": "2020-01-01T00:00:09.1Z", "exit_signal": "KILL", "error_code": "KILLED"},
        {"attempt_no": 2, "outcome": "FAILED", "worker": "w", "started_at": "2020-01-01T00:01:00.1Z",
            "finished_at": "2020-01-01T00:01:10.1Z", "exit_code": 3, "error_code": "NO_DATA"}]);
    detailed["notes"] = json!([{"attempt_no": 1, "verb": "retry", "actor": "花子", "reason": "again",
        "epoch": 2, "at": "2020-01-01T00:00:30Z"}]);
    match request.line.as_str() {
        "GET /runs?job=hello&state=FAILED%2CSUCCEEDED&limit=2" => Reply::Json(
            200,
            json!({"items": [failed(), succeeded()], "next": "abc", "looked_at": 2}),
        ),
        "GET /runs/8" => Reply::Json(200, detailed),
        "GET /runs/11" => {
            let mut function_run = run(11, "PENDING");
            (function_run["queue"], function_run["priority"]) = (json!("slow"), json!("high"));
            Reply::Json(200, function_run)
        }
        "GET /runs/7/logs?from=0&limit=1000" => Reply::Json(200, page(0)),
        "GET /runs/7/logs?attempt=1&from=2&limit=1000" => Reply::Json(200, page(2)),
        line if line.starts_with("GET /runs/7/wait") => Reply::Json(200, succeeded()),
        line if line.starts_with("GET /runs/8/wait") => Reply::Json(200, failed()),
        line if line.starts_with("GET /runs/9/wait") => Reply::Json(200, run(9, "RUNNING")),
        "POST /runs/9/cancel" => Reply::Json(200, json!({"run": run(9, "RUNNING"), "done": false})),
        "POST /runs/10/cancel" => {
            Reply::Json(200, json!({"run": run(10, "CANCELED"), "done": true}))
        }
        "POST /runs/8/retry" => Reply::Json(200, json!({"run": run(8, "PENDING")})),
        "POST /runs/8/rerun" | "POST /jobs/hello/trigger" | "POST /tasks" => {
            Reply::Json(201, run(7, "PENDING"))
        }
        "GET /runs/8/explain" => Reply::Json(
            200,
            json!({"run": 8, "state": "FAILED",
            "sentences": ["It was created for the fire time 2020-01-01.", "It failed after 2 tries; no try is left."]}),
        ),
        "POST /tasks/batch" => Reply::Json(
            200,
            json!({"items": [{"id": 7, "existed": true}, {"id": 8, "existed": false}]}),
        ),
        "POST /events" => Reply::Json(201, json!({"id": 3, "existed": false})),
        "GET /events?limit=50" => Reply::Json(
            200,
            json!({"next": null, "items": [event(5, &Value::Null), event(4, &json!(0)), event(3, &json!(2))]}),
        ),
        "GET /events/3" => Reply::Json(200, event(3, &json!(2))),
        other => Reply::Json(
            404,
            json!({"code": "not_found", "detail": format!("no fake response for: {other}")}),
        ),
    }
}

pub(crate) fn line(n: i64, stream: &str, text: &str) -> Value {
    json!({"attempt": 1, "n": n, "stream": stream, "at": "2020-01-01T00:00:00Z", "text": text})
}

fn event(id: i64, runs: &Value) -> Value {
    let processed = (!runs.is_null()).then_some("2020-01-01T00:00:01Z");
    json!({"id": id, "type": "order.paid", "source": "cli", "dedupe_key": null, "job": null,
        "payload": {"order": 42}, "created_at": "2020-01-01T00:00:00Z", "processed_at": processed,
        "runs": runs, "problem": null})
}

#[test]
fn a_list_of_runs() {
    let fake = FakeServer::new(runs);
    let arguments = ["run", "list", "--job", "hello", "--state", "FAILED,SUCCEEDED", "-n", "2"];
    assert_snapshot!(fake.output(&arguments), @r"
    exit 0
    ID  STATE      JOB    ORIGIN  SCHEDULED FOR         TOOK    NOTE
    8   FAILED     hello  time    2020-01-01 00:00:00Z  1m 10s  retry 1, NO_DATA
    7   SUCCEEDED  hello  time    2020-01-01 00:00:00Z  1.5s
    more runs: --cursor abc
    ");
}

#[test]
fn a_run_with_its_attempts_and_notes() {
    let fake = FakeServer::new(runs);
    assert_snapshot!(fake.output(&["run", "show", "8"]), @r#"
    exit 0
    run            8
    job            hello (version 3)
    state          FAILED
    origin         time
    scheduled for  2020-01-01 00:00:00Z
    due            2020-01-01 00:00:00Z
    args           {"day":"today"}
    attempt        2 of 2
    worker         11111111-2222-4333-8444-555555555555
    started        2020-01-01 00:00:00Z
    finished       2020-01-01 00:01:10Z
    took           1m 10s
    outcome        FAILED
    exit           3
    error          NO_DATA: nothing to �[31mreport

    ATTEMPT  OUTCOME  STARTED               TOOK  EXIT         ERROR
    1        FAILED   2020-01-01 00:00:00Z  9s    signal KILL  KILLED
    2        FAILED   2020-01-01 00:01:00Z  10s   3            NO_DATA

    AT                    ATTEMPT  VERB   BY    REASON
    2020-01-01 00:00:30Z  1        retry  花子  again
    "#);
    assert_snapshot!(fake.output(&["run", "explain", "8"]), @r"
    exit 0
    It was created for the fire time 2020-01-01.
    It failed after 2 tries; no try is left.
    ");
}

#[test]
fn output_goes_to_the_stream_the_job_wrote_to() {
    let fake = FakeServer::new(runs);
    assert_snapshot!(fake.output(&["run", "logs", "7"]), @r"
    exit 0
    one
    三
    --
    two
    note: the output was cut at 30 bytes
    ");
}

#[test]
fn the_exit_code_of_wait_is_the_outcome_of_the_run() {
    let fake = FakeServer::new(runs);
    assert_snapshot!(fake.output(&["run", "wait", "7"]), @r"
    exit 0
    run 7 of hello is SUCCEEDED
    ");
    assert_snapshot!(fake.output(&["run", "wait", "8"]), @r"
    exit 1
    --
    error: run 8 of hello is FAILED: NO_DATA: nothing to �[31mreport

    hint: `tasuki run logs 8` shows its output, `tasuki run explain 8` explains its state
    ");
    assert_snapshot!(fake.output(&["run", "wait", "9", "--timeout", "10ms"]), @r"
    exit 1
    --
    error: run 9 has not ended within 10ms; it continues

    hint: `tasuki run explain 9` explains the state of the run
    ");
    assert_snapshot!(fake.output(&["job", "trigger", "hello", "--wait", "--arg", "n=1"]), @r"
    exit 0
    run 7 of hello is SUCCEEDED
    ");
    let requests = fake.requests();
    let trigger = requests.iter().find(|one| one.line == "POST /jobs/hello/trigger").unwrap();
    assert_eq!(trigger.body, json!({"args": {"n": 1}}));
}

#[test]
fn actions_print_the_new_state_of_the_run() {
    let fake = FakeServer::new(runs);
    assert_snapshot!(fake.output(&["run", "cancel", "9", "--reason", "why not"]), @r"
    exit 0
    cancel of run 9 requested: its worker will stop the attempt; `tasuki run wait 9` waits until the run has ended
    ");
    assert_eq!(fake.requests()[0].body, json!({"reason": "why not"}));
    assert_snapshot!(fake.output(&["run", "cancel", "10"]), @r"
    exit 0
    run 10 of hello is CANCELED
    ");
    assert_snapshot!(fake.output(&["run", "retry", "8"]), @r"
    exit 0
    run 8 of hello is PENDING
    ");
    assert_snapshot!(fake.output(&["run", "rerun", "8"]), @r"
    exit 0
    run 7 of hello is PENDING
    ");
}

#[test]
fn tasks_of_a_file_are_checked_before_any_is_sent() {
    let fake = FakeServer::new(runs);
    let submit = |text: &str| {
        let file = fake.folder.join("tasks.jsonl");
        std::fs::write(&file, text).unwrap();
        fake.output(&["task", "submit", "hello", "--file", file.to_str().unwrap()])
    };
    assert_snapshot!(submit("{\"args\":{\"n\":1}}\n\n{\"job\":\"b\",\"idempotency_key\":\"k\"}\n"), @r"
    exit 0
    2 tasks submitted: runs 7 to 8; 1 of them already existed
    ");
    assert_eq!(
        fake.requests()[0].body,
        json!({"tasks": [{"job": "hello", "args": {"n": 1}}, {"job": "b", "idempotency_key": "k"}]})
    );
    for (text, expected) in [
        ("{}\n{\"arg\":1}", "line 2: arg: unknown field, expected one of job, args"),
        ("{}\n[1]\n", "line 2: not a JSON object"),
        ("{}\n\n{\"args\":", "line 3: not a JSON object"),
        ("\n", "the file contains no tasks"),
    ] {
        let output = submit(text);
        assert!(output.starts_with("exit 2\n") && output.contains(expected), "{text:?}: {output}");
    }
    assert_eq!(fake.lines(), ["POST /tasks/batch"]);
}

#[test]
fn a_task_contains_all_given_fields() {
    let fake = FakeServer::new(runs);
    let arguments = [
        "task",
        "submit",
        "hello",
        "--arg",
        "n=1",
        "--at",
        "2030-01-01T00:00:00Z",
        "--expires",
        "2030-01-02T00:00:00Z",
        "--scope",
        "tenant/42",
        "--key",
        "once",
        "--queue",
        "slow",
        "--priority",
        "high",
    ];
    assert_snapshot!(fake.output(&arguments), @r"
    exit 0
    run 7 of hello is PENDING
    ");
    let request = &fake.requests()[0];
    assert_eq!(request.header("idempotency-key"), "once");
    assert_eq!(
        request.body,
        json!({"job": "hello", "args": {"n": 1}, "scheduled_for": "2030-01-01T00:00:00Z",
            "expires_at": "2030-01-02T00:00:00Z", "scope": {"kind": "tenant", "id": "42"},
            "queue": "slow", "priority": "high"})
    );
}

#[test]
fn a_run_shows_its_queue_and_its_priority() {
    let fake = FakeServer::new(runs);
    let output = fake.output(&["run", "show", "11"]);
    let shows = |name: &str, value: &str| {
        output.lines().any(|line| line.split_whitespace().eq([name, value]))
    };
    assert!(shows("queue", "slow") && shows("priority", "high"), "{output}");
    assert!(!fake.output(&["run", "show", "8"]).contains("queue"), "a command has no queue");
}

#[test]
fn events_and_their_runs() {
    let fake = FakeServer::new(runs);
    let emit = ["event", "emit", "order.paid", "--payload", "{\"order\": 42}", "--key", "order-42"];
    assert_snapshot!(fake.output(&emit), @r"
    exit 0
    created event 3
    ");
    assert_eq!(
        fake.requests()[0].body,
        json!({"type": "order.paid", "payload": {"order": 42}, "dedupe_key": "order-42", "source": "cli"})
    );
    assert_snapshot!(fake.output(&["event", "list"]), @r"
    exit 0
    ID  TYPE        SOURCE  CREATED               RESULT
    5   order.paid  cli     2020-01-01 00:00:00Z  not processed yet
    4   order.paid  cli     2020-01-01 00:00:00Z  no matching job
    3   order.paid  cli     2020-01-01 00:00:00Z  2 runs
    ");
    assert_snapshot!(fake.output(&["event", "show", "3"]), @r#"
    exit 0
    event      3
    type       order.paid
    source     cli
    created    2020-01-01 00:00:00Z
    processed  2020-01-01 00:00:01Z
    result     2 runs
    payload    {
                 "order": 42
               }
    "#);
}
