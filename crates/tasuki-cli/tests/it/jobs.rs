//! `tasuki job`: what is asked of the server and what is shown of its answers.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::fake::{Fake, Reply, Request, TOKEN};

/// As the contract shows a job.
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
    let withdrawn = |job: Value| json!({ "job": job, "withdrawn": [8, 9] });
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
        "PATCH /jobs/hello" | "POST /jobs/hello/disable" => Reply::Json(200, withdrawn(hello())),
        "POST /jobs/hello/pause" => Reply::Json(200, json!({"job": report(), "withdrawn": []})),
        "DELETE /jobs/hello" => Reply::Json(200, json!({"withdrawn": [8]})),
        "POST /schedules/preview" => Reply::Json(
            200,
            json!({"words": "every day at 02:30", "ends": true, "fires": [
            {"at": "2020-03-07T17:30:00Z", "local": "2020-03-08T02:30:00+09:00", "shifted": false, "note": null}]}),
        ),
        _ => problem(404, "not_found", "there is no such thing"),
    }
}

#[test]
fn a_list_is_one_list_however_many_pages_it_had() {
    let fake = Fake::new(jobs);
    assert_snapshot!(fake.told(&["job", "list"]), @r"
    exit 0
    NAME          STATE     RUNS                             NEXT                  DOES
    hello         enabled   every 5 seconds                  2020-01-01 00:00:05Z  echo 'hi there'
    日次レポート  paused    every day at 02:30 (Asia/Tokyo)                        manage.py make_report
    ship          disabled  on order.paid, gift.*                                  function ship_order
    ");
    assert_eq!(fake.asked()[0].header("authorization"), format!("Bearer {TOKEN}"));
    let listed = fake.told(&["job", "list", "--json"]);
    assert!(listed.starts_with("exit 0\n{\n  \"items\": ["), "{listed}");
    assert!(listed.contains("\"name\": \"ship\""), "{listed}");
}

#[test]
fn a_job_is_shown_whole() {
    let fake = Fake::new(jobs);
    assert_snapshot!(fake.told(&["job", "show", "日次レポート"]), @r#"
    exit 0
    name         日次レポート
    state        paused
    paused       since 2020-01-01 00:00:00Z: moving
    description  for 経理
    runs         every day at 02:30 (daily_at 02:30, Asia/Tokyo, gap: skip)
    when missed  those of the last 1h run
    kind         django
    does         manage.py make_report
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
    assert_snapshot!(fake.told(&["job", "show", "ship"]), @r#"
    exit 0
    name         ship
    state        disabled
    runs         on order.paid, gift.*
    filter       {"country":"JP"}
    kind         function
    does         function ship_order
    concurrency  forbid
    dispatch     assign
    retries      none
    version      3
    updated      2020-01-01 00:00:00Z
    "#);
}

#[test]
fn creating_sends_what_was_typed_and_nothing_else() {
    let fake = Fake::new(jobs);
    assert_snapshot!(fake.told(&["job", "create", "hello", "--every", "5s", "--", "echo", "hi"]), @r"
    exit 0
    created hello: every 5 seconds; first at 2020-01-01 00:00:05Z
    ");
    assert_eq!(
        fake.asked()[0].body,
        json!({"name": "hello", "kind": "command", "command": ["echo", "hi"],
            "trigger": {"type": "time", "schedule": {"type": "every", "value": "5s"}}})
    );
}

#[test]
fn an_update_is_a_small_patch_under_the_version_that_was_read() {
    let fake = Fake::new(jobs);
    let told =
        fake.told(&["job", "update", "hello", "--every", "10s", "--function", "f", "--env", "A=b"]);
    assert_snapshot!(told, @r#"
    exit 0
      command: ["echo","hi there"] -> nothing
      env.A: nothing -> ***
      handler: nothing -> f
      kind: command -> function
      trigger.schedule.value: 5s -> 10s
    hello is enabled, version 3: every 5 seconds; next at 2020-01-01 00:00:05Z; 2 waiting runs withdrawn
    "#);
    let patch = &fake.asked()[1];
    assert_eq!((patch.line.as_str(), patch.header("if-match")), ("PATCH /jobs/hello", "\"3\""));
    assert_eq!(
        patch.body,
        json!({"kind": "function", "command": null, "handler": "f", "env": {"A": "b"},
            "trigger": {"schedule": {"value": "10s"}}})
    );
    assert_snapshot!(fake.told(&["job", "update", "hello", "--every", "5s"]), @r"
    exit 0
    hello: nothing to change
    ");
    assert_eq!(fake.asked().len(), 3, "nothing to change, nothing sent");
}

#[test]
fn pausing_and_disabling_say_what_came_of_it() {
    let fake = Fake::new(jobs);
    assert_snapshot!(fake.told(&["job", "disable", "hello"]), @r"
    exit 0
    hello is enabled, version 3: every 5 seconds; next at 2020-01-01 00:00:05Z; 2 waiting runs withdrawn
    ");
    assert_eq!(fake.asked()[0].header("if-match"), "*");
    assert_snapshot!(fake.told(&["job", "pause", "hello", "--reason", "moving", "--until", "2030-01-01T00:00:00Z"]), @r"
    exit 0
    日次レポート is paused (since 2020-01-01 00:00:00Z: moving), version 12: every day at 02:30 (Asia/Tokyo)
    ");
    assert_eq!(fake.asked()[1].body, json!({"reason": "moving", "until": "2030-01-01T00:00:00Z"}));
}

#[test]
fn deleting_shows_what_it_touches_and_wants_a_yes() {
    let fake = Fake::new(jobs);
    assert_snapshot!(fake.told(&["job", "delete", "hello"]), @r"
    exit 2
    --
    this job will be deleted, and runs of it that wait are withdrawn:

    name         hello
    state        enabled
    runs         every 5 seconds (every 5s, UTC)
    next         2020-01-01 00:00:05Z
    kind         command
    does         echo 'hi there'
    concurrency  forbid
    dispatch     assign
    retries      none
    version      3
    updated      2020-01-01 00:00:00Z

    error: nobody is there to be asked, so nothing was done

    hint: --yes does it without asking
    ");
    assert_eq!(fake.lines(), ["GET /jobs/hello"]);
    assert_snapshot!(fake.told(&["job", "delete", "hello", "--yes"]), @r"
    exit 0
    deleted hello; 1 waiting run withdrawn
    --
    this job will be deleted, and runs of it that wait are withdrawn:

    name         hello
    state        enabled
    runs         every 5 seconds (every 5s, UTC)
    next         2020-01-01 00:00:05Z
    kind         command
    does         echo 'hi there'
    concurrency  forbid
    dispatch     assign
    retries      none
    version      3
    updated      2020-01-01 00:00:00Z
    ");
    assert_eq!(fake.asked()[2].header("if-match"), "\"3\"");
}

#[test]
fn a_preview_of_a_job() {
    let fake = Fake::new(jobs);
    assert_snapshot!(fake.told(&["job", "preview", "日次レポート", "-n", "1"]), @r"
    exit 0
    日次レポート: every day at 02:30 (Asia/Tokyo)
    LOCAL                      UTC                   NOTE
    2020-03-08T02:30:00+09:00  2020-03-07 17:30:00Z
    then never again
    ");
    assert_snapshot!(fake.told(&["job", "preview", "ship"]), @r"
    exit 1
    --
    error: ship has no schedule: on order.paid, gift.*
    ");
}

#[test]
fn bad_usage_never_reaches_the_server() {
    let fake = Fake::new(jobs);
    for (arguments, expected) in [
        (
            &["create", "x", "--every", "5s", "--daily-at", "09:00", "--", "y"][..],
            "cannot be used with",
        ),
        (&["create", "x", "--function", "f", "--", "y"], "cannot be used with"),
        (&["create", "x"], "x: what is it to run? -- COMMAND is missing"),
        (&["create", "x", "--every", "5s", "--kind", "command"], "-- COMMAND is missing"),
        (&["create", "x", "--arg", "y", "--", "z"], "--arg: found \"y\", expected NAME=VALUE"),
        (
            &["create", "x", "--args", "[1]", "--", "z"],
            "--args: found \"[1]\", expected a JSON object",
        ),
        (&["create", "x", "--zone", "UTC", "--", "z"], "--zone has no use with"),
        (&["create", "x", "--retries", "many", "--", "z"], "--retries"),
        (&["trigger", "x", "--at", "soon"], "--at: found \"soon\", expected an instant"),
        (&["trigger", "x", "--scope", "tenant"], "expected KIND/ID"),
        (&["trigger", "x", "--wait", "--timeout", "x"], "--timeout: found \"x\""),
        (&["show", ".."], "cannot be part of an address"),
        (&["list", "--enabled", "maybe"], "invalid value"),
    ] {
        let told = fake.told(&[&["job"], arguments].concat());
        assert!(told.starts_with("exit 2\n") && told.contains(expected), "{arguments:?}: {told}");
    }
    assert_eq!(fake.lines(), [] as [&str; 0]);
}
