//! `tasuki job`: the requests that it sends and the output for the responses, with a fake server.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::fake_server::{FakeServer, Reply, Request, TOKEN};

/// A job in the format of the API.
pub(crate) fn hello() -> Value {
    json!({
        "id": 1, "name": "hello", "version": 3, "enabled": true, "description": null,
        "trigger": {"type": "time", "misfire": null, "schedule":
            {"type": "every", "value": "5s", "zone": "UTC", "dst_gap": null, "dst_fold": null}},
        "kind": "command", "command": ["echo", "hi there"], "handler": null,
        "args": {}, "env": {}, "directory": null,
        "timeout": null, "heartbeat_timeout": null, "stop_grace": null,
        "dispatch": "assign", "concurrency": "forbid", "labels": [],
        "retry": {"max_retries": 0, "backoff": "30s", "backoff_cap": "15m", "jitter_percent": 0,
            "retry_lost": true, "retry_on": [], "fail_on": [], "exit_codes": {}},
        "paused": null, "next_fire": "2020-01-01T00:00:05.000000Z",
        "schedule_words": "every 5 seconds", "updated_at": "2020-01-01T00:00:00.000000Z"
    })
}

fn report() -> Value {
    let mut job = hello();
    for (field, value) in [
        ("name", json!("日次レポート")),
        ("version", json!(12)),
        ("description", json!("for 経理")),
        ("kind", json!("django")),
        ("command", json!(["make_report"])),
        ("args", json!({"day": "today"})),
        ("env", json!({"A": "1", "B": "two words"})),
        ("timeout", json!("10m")),
        ("labels", json!(["gpu", "ssd"])),
        ("schedule_words", json!("every day at 02:30")),
        ("paused", json!({"since": "2020-01-01T00:00:00Z", "until": null, "reason": "moving"})),
        ("next_fire", Value::Null),
    ] {
        job[field] = value;
    }
    job["trigger"] = json!({"type": "time", "misfire": {"policy": "every_within", "window": "1h"},
        "schedule": {"type": "daily_at", "value": "02:30", "zone": "Asia/Tokyo", "dst_gap": "skip", "dst_fold": null}});
    job["retry"]["max_retries"] = json!(3);
    job["retry"]["exit_codes"] = json!({"3": "NO_DATA"});
    job
}

fn ship() -> Value {
    let mut job = hello();
    for (field, value) in [
        ("name", json!("ship")),
        ("enabled", json!(false)),
        ("kind", json!("function")),
        ("command", Value::Null),
        ("handler", json!("ship_order")),
        (
            "trigger",
            json!({"type": "event", "events": ["order.paid", "gift.*"], "filter": {"country": "JP"}}),
        ),
        ("schedule_words", Value::Null),
        ("next_fire", Value::Null),
    ] {
        job[field] = value;
    }
    job
}

pub(crate) fn problem(status: u16, code: &str, detail: &str) -> Reply {
    Reply::Json(
        status,
        json!({"type": format!("/docs/errors#{code}"), "title": code, "status": status,
            "code": code, "detail": detail}),
    )
}

pub(crate) fn jobs(request: &Request) -> Reply {
    let canceled_runs = |job: Value| json!({ "job": job, "canceled_runs": [8, 9] });
    match request.line.as_str() {
        "GET /jobs?limit=200" => {
            Reply::Json(200, json!({"items": [hello(), report()], "next": "日次レポート"}))
        }
        line if line.starts_with("GET /jobs?after=") => {
            Reply::Json(200, json!({"items": [ship()], "next": null}))
        }
        "GET /jobs/hello" => Reply::Json(200, hello()),
        "GET /jobs/ship" => Reply::Json(200, ship()),
        "GET /jobs/%E6%97%A5%E6%AC%A1%E3%83%AC%E3%83%9D%E3%83%BC%E3%83%88" => {
            Reply::Json(200, report())
        }
        "POST /jobs" => Reply::Json(201, hello()),
        "PATCH /jobs/hello" | "POST /jobs/hello/disable" => {
            Reply::Json(200, canceled_runs(hello()))
        }
        "POST /jobs/hello/pause" => Reply::Json(200, json!({"job": report(), "canceled_runs": []})),
        "DELETE /jobs/hello" => Reply::Json(200, json!({"canceled_runs": [8]})),
        "POST /schedules/preview" => Reply::Json(
            200,
            json!({"words": "every day at 02:30", "ends": true, "fires": [
            {"at": "2020-03-07T17:30:00Z", "local": "2020-03-08T02:30:00+09:00", "shifted": false, "note": null}]}),
        ),
        _ => problem(404, "not_found", "there is no such thing"),
    }
}

#[test]
fn a_list_contains_the_items_of_all_pages() {
    let fake = FakeServer::new(jobs);
    assert_snapshot!(fake.output(&["job", "list"]), @r"
    exit 0
    NAME          STATE     TRIGGER                          NEXT                  ACTION
    hello         enabled   every 5 seconds                  2020-01-01 00:00:05Z  echo 'hi there'
    日次レポート  paused    every day at 02:30 (Asia/Tokyo)                        manage.py make_report
    ship          disabled  on order.paid, gift.*                                  function ship_order
    ");
    assert_eq!(fake.requests()[0].header("authorization"), format!("Bearer {TOKEN}"));
    let listed = fake.output(&["job", "list", "--json"]);
    assert!(listed.starts_with("exit 0\n{\n  \"items\": ["), "{listed}");
    assert!(listed.contains("\"name\": \"ship\""), "{listed}");
}

#[test]
fn a_job_is_shown_with_all_fields() {
    let fake = FakeServer::new(jobs);
    assert_snapshot!(fake.output(&["job", "show", "日次レポート"]), @r#"
    exit 0
    name         日次レポート
    state        paused
    paused       since 2020-01-01 00:00:00Z: moving
    description  for 経理
    trigger      every day at 02:30 (daily_at 02:30, Asia/Tokyo, gap: skip)
    misfire      run for each planned time that was missed in the last 1h
    kind         django
    action       manage.py make_report
    args         {"day":"today"}
    env          A=1
                 B=two words
    timeout      10m
    concurrency  forbid
    dispatch     assign
    labels       gpu, ssd
    retries      3, the first after 30s, then doubling up to 15m
    exit codes   3=NO_DATA
    version      12
    updated      2020-01-01 00:00:00Z
    "#);
    assert_snapshot!(fake.output(&["job", "show", "ship"]), @r#"
    exit 0
    name         ship
    state        disabled
    trigger      on order.paid, gift.*
    filter       {"country":"JP"}
    kind         function
    action       function ship_order
    concurrency  forbid
    dispatch     assign
    retries      none
    version      3
    updated      2020-01-01 00:00:00Z
    "#);
}

#[test]
fn create_sends_only_given_fields() {
    let fake = FakeServer::new(jobs);
    assert_snapshot!(fake.output(&["job", "create", "hello", "--every", "5s", "--", "echo", "hi"]), @r"
    exit 0
    created hello: every 5 seconds; first at 2020-01-01 00:00:05Z
    ");
    assert_eq!(
        fake.requests()[0].body,
        json!({"name": "hello", "kind": "command", "command": ["echo", "hi"],
            "trigger": {"type": "time", "schedule": {"type": "every", "value": "5s"}}})
    );
}

#[test]
fn update_sends_a_minimal_patch_for_the_read_version() {
    let fake = FakeServer::new(jobs);
    let output = fake.output(&[
        "job",
        "update",
        "hello",
        "--every",
        "10s",
        "--function",
        "f",
        "--env",
        "A=b",
    ]);
    assert_snapshot!(output, @r#"
    exit 0
      command: ["echo","hi there"] -> (none)
      env.A: (none) -> ***
      handler: (none) -> f
      kind: command -> function
      trigger.schedule.value: 5s -> 10s
    hello is enabled, version 3: every 5 seconds; next at 2020-01-01 00:00:05Z; 2 future scheduled runs canceled
    "#);
    let patch = &fake.requests()[1];
    assert_eq!((patch.line.as_str(), patch.header("if-match")), ("PATCH /jobs/hello", "\"3\""));
    assert_eq!(
        patch.body,
        json!({"kind": "function", "command": null, "handler": "f", "env": {"A": "b"},
            "trigger": {"schedule": {"value": "10s"}}})
    );
    assert_snapshot!(fake.output(&["job", "update", "hello", "--every", "5s"]), @r"
    exit 0
    hello: no changes
    ");
    assert_eq!(fake.requests().len(), 3, "no patch is sent without changes");
}

#[test]
fn pause_and_disable_print_the_new_state() {
    let fake = FakeServer::new(jobs);
    assert_snapshot!(fake.output(&["job", "disable", "hello"]), @r"
    exit 0
    hello is enabled, version 3: every 5 seconds; next at 2020-01-01 00:00:05Z; 2 future scheduled runs canceled
    ");
    assert_eq!(fake.requests()[0].header("if-match"), "*");
    assert_snapshot!(fake.output(&["job", "pause", "hello", "--reason", "moving", "--until", "2030-01-01T00:00:00Z"]), @r"
    exit 0
    日次レポート is paused (since 2020-01-01 00:00:00Z: moving), version 12: every day at 02:30 (Asia/Tokyo)
    ");
    assert_eq!(
        fake.requests()[1].body,
        json!({"reason": "moving", "until": "2030-01-01T00:00:00Z"})
    );
}

#[test]
fn delete_shows_the_job_and_needs_a_confirmation() {
    let fake = FakeServer::new(jobs);
    assert_snapshot!(fake.output(&["job", "delete", "hello"]), @r"
    exit 2
    --
    this job will be deleted, and its future scheduled runs will be canceled:

    name         hello
    state        enabled
    trigger      every 5 seconds (every 5s, UTC)
    next         2020-01-01 00:00:05Z
    kind         command
    action       echo 'hi there'
    concurrency  forbid
    dispatch     assign
    retries      none
    version      3
    updated      2020-01-01 00:00:00Z

    error: this needs a confirmation, and standard input is not a terminal; nothing was changed

    hint: pass --yes to skip the confirmation
    ");
    assert_eq!(fake.lines(), ["GET /jobs/hello"]);
    assert_snapshot!(fake.output(&["job", "delete", "hello", "--yes"]), @r"
    exit 0
    deleted hello; 1 future scheduled run canceled
    --
    this job will be deleted, and its future scheduled runs will be canceled:

    name         hello
    state        enabled
    trigger      every 5 seconds (every 5s, UTC)
    next         2020-01-01 00:00:05Z
    kind         command
    action       echo 'hi there'
    concurrency  forbid
    dispatch     assign
    retries      none
    version      3
    updated      2020-01-01 00:00:00Z
    ");
    assert_eq!(fake.requests()[2].header("if-match"), "\"3\"");
}

#[test]
fn a_preview_of_a_job() {
    let fake = FakeServer::new(jobs);
    assert_snapshot!(fake.output(&["job", "preview", "日次レポート", "-n", "1"]), @r"
    exit 0
    日次レポート: every day at 02:30 (Asia/Tokyo)
    LOCAL                      UTC                   NOTE
    2020-03-08T02:30:00+09:00  2020-03-07 17:30:00Z
    there are no later fire times
    ");
    assert_snapshot!(fake.output(&["job", "preview", "ship"]), @r"
    exit 1
    --
    error: job ship has no schedule; it runs on order.paid, gift.*
    ");
}

#[test]
fn bad_usage_never_reaches_the_server() {
    let fake = FakeServer::new(jobs);
    for (arguments, expected) in [
        (
            &["create", "x", "--every", "5s", "--daily-at", "09:00", "--", "y"][..],
            "cannot be used with",
        ),
        (&["create", "x", "--function", "f", "--", "y"], "cannot be used with"),
        (&["create", "x"], "job x has nothing to run; add `-- COMMAND`, --django or --function"),
        (&["create", "x", "--every", "5s", "--kind", "command"], "add `-- COMMAND`"),
        (&["create", "x", "--arg", "y", "--", "z"], "--arg: found \"y\", expected NAME=VALUE"),
        (
            &["create", "x", "--args", "[1]", "--", "z"],
            "--args: found \"[1]\", expected a JSON object",
        ),
        (&["create", "x", "--zone", "UTC", "--", "z"], "--zone cannot be used with"),
        (&["create", "x", "--retries", "many", "--", "z"], "--retries"),
        (&["trigger", "x", "--at", "soon"], "--at: found \"soon\", expected an instant"),
        (&["trigger", "x", "--scope", "tenant"], "expected KIND/ID"),
        (&["trigger", "x", "--wait", "--timeout", "x"], "--timeout: found \"x\""),
        (&["show", ".."], "cannot be part of a URL path"),
        (&["list", "--enabled", "maybe"], "invalid value"),
    ] {
        let output = fake.output(&[&["job"], arguments].concat());
        assert!(
            output.starts_with("exit 2\n") && output.contains(expected),
            "{arguments:?}: {output}"
        );
    }
    assert_eq!(fake.lines(), [] as [&str; 0]);
}
