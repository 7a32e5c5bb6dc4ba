//! `tasuki job apply` and `tasuki job export`, with a fake server that stores jobs.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::fake_job_server::{FakeJobServer, start_job_server};
use crate::fake_server::FakeServer;
use crate::jobs::hello;

fn apply(fake: &FakeServer, text: &str, more: &[&str]) -> String {
    let file = fake.folder.join("jobs.toml");
    std::fs::write(&file, text).unwrap();
    let output = fake.output(&[&["job", "apply", "-f", file.to_str().unwrap()], more].concat());
    output.replace(file.to_str().unwrap(), "jobs.toml")
}

const FILE: &str = r#"
[[job]]
name = "hello"
trigger = { type = "time", schedule = { type = "every", value = "10s" } }
command = ["echo", "hi there"]
timeout = "300s"

[[job]]
name = "日次"
handler = "report"
env = { API_KEY = "s3cret" }
[job.trigger]
type = "event"
events = ["order.*"]
[job.args]
day = 2026-11-16
ratio = 0.5
nested = { list = [1, "two"] }
[job.retry]
max_retries = 3
exit_codes = { "3" = "NO_DATA" }
"#;

#[test]
fn apply_shows_changes_field_by_field_and_applies_them() {
    let (job_server, fake) = start_job_server();
    job_server.put(hello());
    let mut old = hello();
    old["name"] = json!("old");
    job_server.put(old);
    assert_snapshot!(apply(&fake, FILE, &["--prune", "--dry-run"]), @r#"
    exit 0
    change hello
      timeout: (none) -> 5m
      trigger.schedule.value: 5s -> 10s
    create 日次
      args.day: 2026-11-16
      args.nested.list: [1,"two"]
      args.ratio: 0.5
      env.API_KEY: ***
      handler: report
      retry.exit_codes.3: NO_DATA
      retry.max_retries: 3
      trigger.events: ["order.*"]
      trigger.type: event
    delete old
    3 jobs: 1 to create, 1 to change, 1 to delete, 0 unchanged
    "#);
    assert_snapshot!(apply(&fake, FILE, &["--prune"]), @r#"
    exit 2
    --
    change hello
      timeout: (none) -> 5m
      trigger.schedule.value: 5s -> 10s
    create 日次
      args.day: 2026-11-16
      args.nested.list: [1,"two"]
      args.ratio: 0.5
      env.API_KEY: ***
      handler: report
      retry.exit_codes.3: NO_DATA
      retry.max_retries: 3
      trigger.events: ["order.*"]
      trigger.type: event
    delete old
    3 jobs: 1 to create, 1 to change, 1 to delete, 0 unchanged

    error: this needs a confirmation, and standard input is not a terminal; nothing was changed

    hint: pass --yes to skip the confirmation
    "#);
    assert_eq!(job_server.names(), ["hello", "old"]);
    let output = apply(&fake, FILE, &["--prune", "--yes"]);
    assert!(
        output.starts_with("exit 0\ncreated 日次\nchanged hello\ndeleted old\n--\n"),
        "{output}"
    );
    assert_eq!(job_server.job("hello")["timeout"], "5m");
    assert_eq!(job_server.job("日次")["args"]["day"], "2026-11-16");
    assert_eq!(job_server.job("日次")["env"], json!({"API_KEY": "s3cret"}));
    assert_snapshot!(apply(&fake, FILE, &["--prune", "--yes"]), @r"
    exit 0
    no changes
    ");
}

#[test]
fn fields_missing_in_the_file_are_reset() {
    let (job_server, fake) = start_job_server();
    let mut job = hello();
    for (field, value) in [
        ("description", json!("old words")),
        ("env", json!({"A": "1", "B": "2"})),
        ("enabled", json!(false)),
        ("concurrency", json!("replace")),
        ("labels", json!(["gpu"])),
    ] {
        job[field] = value;
    }
    job["trigger"]["misfire"] = json!({"policy": "latest_only"});
    job_server.put(job);
    let file = "[[job]]\nname = \"hello\"\ncommand = [\"echo\"]\nenv = { A = \"1\" }\n";
    assert_snapshot!(apply(&fake, file, &["--yes"]), @r#"
    exit 0
    changed hello
    --
    change hello
      command: ["echo","hi there"] -> ["echo"]
      description: old words -> (none)
      env.B: *** -> (none)
      labels: ["gpu"] -> []
      trigger.misfire.policy: latest_only -> (none)
      trigger.schedule.type: every -> (none)
      trigger.schedule.value: 5s -> (none)
      trigger.schedule.zone: UTC -> (none)
      trigger.type: time -> task
    1 job: 0 to create, 1 to change, 0 to delete, 0 unchanged
    "#);
    let job = job_server.job("hello");
    assert_eq!((&job["trigger"], &job["enabled"]), (&json!({"type": "task"}), &json!(false)));
}

#[test]
fn applying_an_export_changes_nothing() {
    let (job_server, fake) = start_job_server();
    let mut job = hello();
    for (field, value) in [
        ("name", json!("odd \"name\"\n日本")),
        ("enabled", json!(false)),
        ("description", json!("two\nlines, 'quotes' and \\ \u{1f600} \u{7}")),
        ("kind", json!("django")),
        ("command", json!(["make_report"])),
        ("args", json!({"null": null, "deep": [{"x": [1, -2.5, 1e300]}], "big": u64::MAX})),
        ("env", json!({"A.b c": "x=y", "": "empty"})),
        ("timeout", json!("90s")),
        ("labels", json!(["gpu"])),
        ("paused", json!({"since": "2020-01-01T00:00:00Z", "until": null, "reason": "x"})),
        (
            "trigger",
            json!({"type": "time", "misfire": {"policy": "at_most", "count": 3}, "schedule":
            {"type": "cron", "value": "*/5 9-17 * * MON-FRI", "zone": "Asia/Tokyo", "dst_gap": "skip", "dst_fold": null}}),
        ),
    ] {
        job[field] = value;
    }
    job["retry"]["exit_codes"] = json!({"3": "NO_DATA"});
    job_server.put(job);
    let mut event = hello();
    for (field, value) in [
        ("name", json!("event")),
        ("kind", json!("function")),
        ("command", Value::Null),
        ("handler", json!("f")),
        ("args", json!({"day": "2026-11-16", "nested": {"a": {"b": true}}})),
        ("trigger", json!({"type": "event", "events": ["a", "b.*"], "filter": {"x": {"y": 1}}})),
    ] {
        event[field] = value;
    }
    job_server.put(event);
    job_server.put(hello());
    let exported = fake.output(&["job", "export"]);
    assert_snapshot!(exported, @r#"
    exit 0
    [[job]]
    name = "event"
    trigger = { type = "event", events = ["a", "b.*"], filter = { x = { y = 1 } } }
    handler = "f"
    args = { day = "2026-11-16", nested = { a = { b = true } } }
    dispatch = "assign"
    concurrency = "forbid"
    retry = { max_retries = 0, backoff = "30s", backoff_cap = "15m", jitter_percent = 0, retry_lost = true, retry_on = [], fail_on = [], exit_codes = {} }

    [[job]]
    name = "hello"
    trigger = { type = "time", schedule = { type = "every", value = "5s", zone = "UTC" } }
    command = ["echo", "hi there"]
    dispatch = "assign"
    concurrency = "forbid"
    retry = { max_retries = 0, backoff = "30s", backoff_cap = "15m", jitter_percent = 0, retry_lost = true, retry_on = [], fail_on = [], exit_codes = {} }

    [[job]]
    name = """
    odd "name"
    日本"""
    description = """
    two
    lines, 'quotes' and \\ 😀 \u0007"""
    enabled = false
    trigger = { type = "time", schedule = { type = "cron", value = "*/5 9-17 * * MON-FRI", zone = "Asia/Tokyo", dst_gap = "skip" }, misfire = { policy = "at_most", count = 3 } }
    kind = "django"
    command = ["make_report"]
    args = '{"big":18446744073709551615,"deep":[{"x":[1,-2.5,1e+300]}],"null":null}'
    env = { "" = "empty", "A.b c" = "x=y" }
    timeout = "90s"
    dispatch = "assign"
    concurrency = "forbid"
    labels = ["gpu"]
    retry = { max_retries = 0, backoff = "30s", backoff_cap = "15m", jitter_percent = 0, retry_lost = true, retry_on = [], fail_on = [], exit_codes = { 3 = "NO_DATA" } }
    "#);
    let text = exported.strip_prefix("exit 0\n").unwrap();
    assert_snapshot!(apply(&fake, text, &["--prune"]), @r"
    exit 0
    no changes
    ");
    let one = fake.output(&["job", "export", "hello"]);
    assert!(one.starts_with("exit 0\n[[job]]\nname = \"hello\"\n"), "{one}");
    assert_eq!(one.matches("[[job]]").count(), 1);
}

#[test]
fn hidden_values_are_not_exported() {
    let (job_server, fake) = start_job_server();
    let mut job = hello();
    job["env"] = json!({"SECRET": "***"});
    job_server.put(job);
    assert_snapshot!(fake.output(&["job", "export"]), @r"
    exit 1
    --
    error: the environment of job hello is hidden from this token

    hint: use a token with role author; without the environment the export would be incomplete
    ");
}

/// Another user changes one job between the read and the change; that change is refused, the other one is applied.
#[test]
fn a_conflict_is_reported_and_other_changes_are_applied() {
    let job_server = FakeJobServer::default();
    job_server.put(hello());
    let server = job_server.clone();
    let fake = FakeServer::new(move |request| {
        let reply = server.respond(request);
        if request.line.starts_with("GET") {
            let mut job = server.job("hello");
            job["version"] = json!(9);
            server.put(job);
        }
        reply
    });
    let output = apply(&fake, FILE, &["--yes"]);
    let after_plan = output.split_once("unchanged\n").unwrap().1;
    assert!(
        output.starts_with("exit 1\ncreated 日次\nrefused hello: job hello has version 9\n"),
        "{output}"
    );
    assert_snapshot!(after_plan, @r"
    error: the server refused the changes of 1 job

    hint: all other changes were applied; repeat the command with --dry-run to see the changes that are left
    ");
    assert_eq!(job_server.names(), ["hello", "日次"]);
}

#[test]
fn errors_in_a_file_have_line_job_and_field() {
    let (_, fake) = start_job_server();
    let refused: Vec<String> = [
        "[[job]]\nname = \"a\"\ncomand = [\"x\"]\n",
        "[[job]]\nname = \"a\"\n\n[job.retry]\nbackof = \"1s\"\n",
        "[[job]]\nname = \"a\"\ncommand = \"echo hi\"\n",
        "[[job]]\nname = \"a\"\ntimeout = 5\n",
        "[[job]]\nname = \"a\"\ntimeout = \"soon\"\n",
        "[[job]]\nname = \"a\"\nretry = { max_retries = -1 }\n",
        "[[job]]\nname = \"a\"\nenv = { A = 1 }\n",
        "[[job]]\nname = \"a\"\nargs = \"[1]\"\n",
        "[[job]]\nname = \"a\"\ntrigger = { type = \"time\", schedule = { type = \"every\", value = \"x\" } }\n",
        "[[job]]\nname = \"a\"\ntrigger = { type = \"time\", schedule = { type = \"cron\", value = \"@daily\", zone = \"Asia/Tokio\" } }\n",
        "[[job]]\ncommand = [\"x\"]\n",
        "[[job]]\nname = \"a\"\n[[job]]\nname = \"b\"\n[[job]]\nname = \"a\"\n",
        "[[jobs]]\nname = \"a\"\n",
        "job = 1\n",
        "[[job]]\nname = \n",
        "[[job]]\nname = \"a\"\nname = \"b\"\n",
    ]
    .iter()
    .map(|text| {
        let output = apply(&fake, text, &["--yes"]);
        output.strip_prefix("exit 2\n--\nerror: ").unwrap_or(&output).to_owned()
    })
    .collect();
    assert_snapshot!(refused.concat(), @r#"
    jobs.toml:3: job "a": comand: unknown field, expected one of name, description, enabled, trigger, kind, command, handler, args, env, directory, timeout, heartbeat_timeout, stop_grace, dispatch, queue, priority, concurrency, labels, retry
    jobs.toml:5: job "a": retry.backof: unknown field, expected one of max_retries, backoff, backoff_cap, jitter_percent, retry_lost, retry_on, fail_on, exit_codes
    jobs.toml:3: job "a": command: found string, expected a list of strings
    jobs.toml:3: job "a": timeout: found integer, expected a duration such as 300ms, 1.5s, 5m, 2h or 7d
    jobs.toml:3: job "a": timeout: found "soon", expected a duration such as 300ms, 1.5s, 5m, 2h or 7d
    jobs.toml:3: job "a": retry.max_retries: found integer, expected a whole number, 0 or more
    jobs.toml:3: job "a": env: found inline table, expected a table of strings
    jobs.toml:3: job "a": args: found string, expected a table, or a string that contains a JSON object
    jobs.toml:3: job "a": trigger.schedule.value: found "x", expected a whole number with its unit, such as 30s, 5m, 2h or 1d, from 1s to 366d
    jobs.toml:3: job "a": trigger.schedule.zone: found "Asia/Tokio", expected the IANA name of a zone; did you mean Asia/Tokyo?
    jobs.toml:1: job: name is missing
    jobs.toml:5: job "a": duplicate job name; the job in line 1 has the same name
    jobs.toml:1: jobs: unknown key; a job is a table named [[job]]
    jobs.toml:1: job: expected tables named [[job]]
    jobs.toml:2: invalid TOML: string values must be quoted, expected literal string
    jobs.toml:3: invalid TOML: duplicate key
    "#);
    assert_eq!(fake.lines(), [] as [&str; 0]);
}
