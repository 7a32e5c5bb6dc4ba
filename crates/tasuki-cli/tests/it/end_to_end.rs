//! The commands with the real API, from the creation of a job to following its run.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tasuki_core::{LeaseToken, WorkerId};
use tasuki_store::{
    AttemptReport, AttemptResult, ClaimRequest, ClaimResult, LogLine, NewWorker, OutputStream,
    StartedRun, Store,
};

use crate::api_server::ApiServer;
use crate::fake_server::output_of;

#[test]
fn the_life_of_a_job() {
    let server = ApiServer::new("job");
    let created =
        server.expect_success(&["job", "create", "hello", "--every", "5s", "--", "echo", "hi"]);
    assert!(created.starts_with("created hello: every 5 seconds"), "{created}");
    server.expect_refusal(&["job", "create", "hello", "--", "true"], "hello");
    server.expect_refusal(
        &["job", "create", "x", "--every", "soon", "--", "true"],
        "trigger.schedule.value",
    );
    server.expect_refusal(&["job", "create", "x", "--timeout=-5s", "--", "true"], "timeout");
    server.expect_refusal(&["job", "show", "nobody"], "nobody");
    assert!(server.expect_success(&["job", "list"]).contains("hello"));

    let changed = server.expect_success(&[
        "job",
        "update",
        "hello",
        "--daily-at",
        "09:00",
        "--zone",
        "Asia/Tokyo",
        "--env",
        "A=b",
        "--dst-gap",
        "skip",
    ]);
    assert!(changed.contains("trigger.schedule.type: every -> daily_at\n"), "{changed}");
    server.expect_success(&["job", "update", "hello", "--weekdays-at", "09:00"]);
    let job = server.json(&["job", "show", "hello"]);
    assert_eq!(job["trigger"]["schedule"]["type"], "weekdays_at");
    assert_eq!(job["trigger"]["schedule"]["zone"], "Asia/Tokyo");
    assert_eq!(job["env"], json!({"A": "b"}));
    server.expect_success(&["job", "update", "hello", "--misfire", "skip_late:10m"]);
    server.expect_success(&["job", "update", "hello", "--misfire", "latest_only"]);
    server.expect_success(&["job", "update", "hello", "--function", "greet", "--without-env", "A"]);
    server.expect_success(&[
        "job",
        "update",
        "hello",
        "--on-event",
        "order.*",
        "--filter",
        "{\"x\": 1}",
    ]);
    server.expect_success(&["job", "update", "hello", "--on-request", "--", "echo", "hi"]);
    assert!(
        server.expect_success(&["job", "update", "hello", "--on-request"]).contains("no changes")
    );
    let job = server.json(&["job", "show", "hello"]);
    assert_eq!(
        (&job["trigger"], &job["command"]),
        (&json!({"type": "task"}), &json!(["echo", "hi"]))
    );

    assert!(server.expect_success(&["job", "disable", "hello"]).starts_with("hello is disabled"));
    assert!(server.expect_success(&["job", "enable", "hello"]).starts_with("hello is enabled"));
    let paused =
        server.expect_success(&["job", "pause", "hello", "--reason", "moving", "--until", "2h"]);
    assert!(paused.contains("hello is paused") && paused.contains("moving"), "{paused}");
    assert!(server.expect_success(&["job", "resume", "hello"]).starts_with("hello is enabled"));
    server.expect_refusal(&["job", "preview", "hello"], "has no schedule");
    server.expect_success(&["job", "update", "hello", "--monthly-at", "last 18:00"]);
    assert!(server.expect_success(&["job", "preview", "hello", "-n", "2"]).contains("18:00"));
    assert!(
        server.expect_success(&["job", "delete", "hello", "--yes"]).starts_with("deleted hello")
    );
    assert!(server.expect_success(&["job", "list"]).starts_with("there are no jobs"));
}

#[test]
fn a_waiting_run_is_explained_canceled_and_rerun() {
    let server = ApiServer::new("run");
    server.expect_success(&["job", "create", "日報", "--", "echo", "{day}"]);
    assert!(
        server
            .expect_success(&["run", "list"])
            .contains("--planned includes runs with a future planned time")
    );
    let run = server.json(&["job", "trigger", "日報", "--arg", "day=today", "--key", "k"]);
    let id = run["id"].to_string();
    assert_eq!(run["args"], json!({"day": "today"}));
    let again =
        server.expect_success(&["job", "trigger", "日報", "--arg", "day=today", "--key", "k"]);
    assert!(again.contains("it already existed with this key"), "{again}");
    assert!(
        server
            .expect_success(&["run", "list", "--job", "日報", "--state", "PENDING"])
            .contains("日報")
    );
    assert!(server.expect_success(&["run", "show", &id]).contains("PENDING"));
    assert!(!server.expect_success(&["run", "explain", &id]).is_empty());
    server.expect_refusal(&["run", "wait", &id, "--timeout", "50ms"], "has not ended within 50ms");
    assert!(server.output(&["run", "logs", &id]).contains("has not started yet"));
    server.expect_refusal(&["run", "retry", &id], "");
    assert!(
        server
            .expect_success(&["run", "cancel", &id, "--reason", "wrong day"])
            .contains("CANCELED")
    );
    assert_eq!(server.output(&["run", "logs", &id, "-f"]), "exit 0\n");
    server.expect_refusal(&["run", "wait", &id], "CANCELED");
    server.expect_refusal(&["run", "show", "999"], "999");
    let again = server.json(&["run", "rerun", &id]);
    assert_eq!(again["rerun_of"].to_string(), id);
    let listed = server.json(&["run", "list", "-n", "1"]);
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    assert!(listed["next"].is_string(), "{listed}");

    // By default the list does not contain future runs.
    let later = server.json(&["job", "trigger", "日報", "--at", "1h"])["id"].clone();
    let first = |more: &[&str]| {
        let listed = server.json(&[&["run", "list", "-n", "1"], more].concat());
        listed["items"][0]["id"].clone()
    };
    assert_eq!(first(&[]), again["id"]);
    assert_eq!(first(&["--since", "2h"]), again["id"]);
    assert_eq!(first(&["--planned"]), later);
    assert_eq!(first(&["--until", "2100-01-01T00:00:00Z"]), later);
    assert_eq!(first(&["--since", "2020-01-01T00:00:00Z", "--planned"]), later);
    let all = server.expect_success(&["run", "list", "--state", "PENDING"]);
    assert!(all.contains(&format!("\n{later} ")) || all.contains(&format!("{later}  ")), "{all}");

    let file = server.folder.join("tasks.jsonl");
    let lines: Vec<String> = (0..1_200)
        .map(|n| format!("{{\"args\":{{\"n\":{n}}},\"idempotency_key\":\"t{n}\"}}"))
        .collect();
    fs::write(&file, lines.join("\n")).unwrap();
    let submit =
        || server.expect_success(&["task", "submit", "日報", "--file", file.to_str().unwrap()]);
    assert!(submit().starts_with("1200 tasks submitted"));
    assert!(submit().ends_with("1200 of them already existed\n"));
    assert_eq!(
        server.json(&["run", "list", "-n", "2000", "--origin", "task"])["items"]
            .as_array()
            .unwrap()
            .len(),
        1_200
    );
    server.expect_refusal(&["task", "submit", "nobody"], "nobody");
}

#[test]
fn events_settings_tokens_and_the_audit() {
    let server = ApiServer::new("rest");
    let emit = ["event", "emit", "order.paid", "--payload", "{\"order\": 42}", "--key", "order-42"];
    assert_eq!(server.expect_success(&emit), "created event 1\n");
    assert_eq!(server.expect_success(&emit), "event 1 already exists with this key\n");
    assert!(server.expect_success(&["event", "list"]).contains("order.paid"));
    assert_eq!(server.json(&["event", "show", "1"])["payload"], json!({"order": 42}));
    server.expect_refusal(&["event", "emit", ""], "type");
    server.expect_refusal(
        &["event", "emit", "bad type!"],
        "type: found \"bad type!\", expected 1 to 191",
    );
    let on = |wanted| ["job", "create", "x", "--on-event", wanted, "--", "true"];
    server.expect_refusal(&on("bad type!"), "trigger.events: found \"bad type!\"");
    server
        .expect_refusal(&on("*"), "trigger.events: found \"*\", expected types such as order.paid");
    server.expect_success(&on("order.*"));

    assert!(server.expect_success(&["setting", "list"]).contains("lease_ttl"));
    assert_eq!(
        server.expect_success(&["setting", "set", "leader_tick=500ms"]),
        "leader_tick: 1s -> 500ms\n"
    );
    assert!(
        server.expect_success(&["setting", "list", "--changed"]).contains("leader_tick  500ms *")
    );
    assert!(server.expect_success(&["setting", "get", "leader_tick"]).contains("500ms"));
    server.expect_refusal(&["setting", "set", "lease_ttl=1s"], "lease_ttl");
    server.expect_refusal(&["setting", "set", "no_such=1"], "no_such");
    let set = ["setting", "set", "leader_tick", "600ms", "lease_ttl=40s", "lease_renew", "2s"];
    let changed = server.expect_success(&set);
    assert!(
        changed.starts_with("leader_tick: 500ms -> 600ms\nlease_renew: 3s -> 2s\n"),
        "{changed}"
    );
    server.expect_refusal(&["setting", "set", "lease_tl", "9s"], "did you mean lease_ttl?");
    server.expect_refusal(
        &["setting", "set", "lease_tl", "9s"],
        "hint: `tasuki setting list` shows all settings",
    );
    server.expect_refusal(&["setting", "get", "lease_tl"], "did you mean lease_ttl?");
    let missing = server.output(&["setting", "set", "lease_ttl"]);
    assert!(missing.starts_with("exit 2\n") && missing.contains("is missing"), "{missing}");

    assert!(server.expect_success(&["worker", "list"]).starts_with("there are no workers"));
    server.expect_refusal(&["worker", "show", "11111111-2222-4333-8444-555555555555"], "worker");
    assert!(server.expect_success(&["leader", "show"]).contains("epoch"));

    let created = server.expect_success(&[
        "token",
        "create",
        "eye",
        "--role",
        "viewer",
        "--expires-in",
        "30d",
    ]);
    let (token, note) = created.split_once('\n').unwrap();
    assert!(token.starts_with("tsk_") && note.contains("shown only once"), "{created}");
    let run_as_viewer =
        |arguments: &[&str]| output_of(server.command(arguments).env("TASUKI_TOKEN", token));
    assert!(run_as_viewer(&["job", "list"]).starts_with("exit 0\n"));
    assert!(run_as_viewer(&["job", "create", "x", "--", "y"]).starts_with("exit 1\n"));
    assert!(
        run_as_viewer(&["audit", "list"]).contains("role"),
        "{}",
        run_as_viewer(&["audit", "list"])
    );
    let id = server.json(&["token", "list"])["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "eye")
        .unwrap()["id"]
        .to_string();
    server.expect_success(&["token", "revoke", &id, "--yes"]);
    assert!(run_as_viewer(&["job", "list"]).starts_with("exit 1\n"));

    let audit = server.expect_success(&["audit", "list"]);
    assert!(audit.contains("test"), "{audit}");
    let head = server.json(&["audit", "head"]);
    let last = server.json(&["audit", "list"])["items"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(head, json!({"seq": last["seq"], "hash": last["hash"]}));
}

/// Jobs of every kind are created with flags and exported. Applying the export changes nothing; an edited export changes
/// the jobs.
#[test]
fn applying_an_export_changes_nothing() {
    let server = ApiServer::new("apply");
    for arguments in [
        &[
            "every",
            "--every",
            "90s",
            "--misfire",
            "skip_late:300s",
            "--timeout",
            "90s",
            "--",
            "echo",
            "a b",
        ][..],
        &[
            "daily",
            "--daily-at",
            "02:30",
            "--zone",
            "europe/berlin",
            "--misfire",
            "every_within:1h",
            "--",
            "x",
        ],
        &[
            "gap",
            "--daily-at",
            "02:30,14:00",
            "--zone",
            "America/New_York",
            "--dst-gap",
            "skip",
            "--dst-fold",
            "twice",
            "--",
            "x",
        ],
        &[
            "cron",
            "--cron",
            "*/5 9-17 * * MON-FRI",
            "--misfire",
            "at_most:3",
            "--concurrency",
            "replace",
            "--",
            "x",
        ],
        &[
            "cron6",
            "--cron",
            "@daily",
            "--misfire",
            "latest_only",
            "--dispatch",
            "claim",
            "--",
            "x",
        ],
        &["hourly", "--hourly-at", "0,30", "--zone", "Asia/Tokyo", "--", "x"],
        &["weekly", "--weekly-at", "mon,thu 09:00", "--disabled", "--", "x"],
        &["monthly", "--monthly-at", "last 18:00", "--label", "gpu", "--label", "a b", "--", "x"],
        &[
            "event",
            "--on-event",
            "order.*",
            "--on-event",
            "x",
            "--filter",
            "{\"a\": {\"b\": [1, 2.5, null]}}",
            "--function",
            "f",
        ],
        &["queued", "--function", "f", "--queue", "slow", "--priority", "high"],
        &[
            "django",
            "--django",
            "clearsessions",
            "--args",
            "{\"options\": {\"v\": 2, \"n\": null}, \"args\": [\"日本\"]}",
        ],
        &[
            "行",
            "--env",
            "A=b=c",
            "--env",
            "B=\u{1f600}\n",
            "--directory",
            "/tmp",
            "--description",
            "two\nlines",
            "--retries",
            "3",
            "--backoff",
            "1s",
            "--backoff-cap",
            "60s",
            "--stop-grace",
            "1500ms",
            "--heartbeat-timeout",
            "2h",
            "--",
            "sh",
            "-c",
            "echo \"$A\" 'x'",
        ],
    ] {
        server.expect_success(&[&["job", "create"], arguments].concat());
    }
    let exported = server.expect_success(&["job", "export"]);
    let file = server.folder.join("jobs.toml");
    fs::write(&file, &exported).unwrap();
    let apply = |more: &[&str]| {
        server.output(&[&["job", "apply", "-f", file.to_str().unwrap()], more].concat())
    };
    assert_eq!(apply(&["--prune"]), "exit 0\nno changes\n", "{exported}");

    // Delete all jobs and create them again from the file: the export is the same.
    fs::write(&file, "").unwrap();
    assert!(apply(&["--prune", "--yes"]).starts_with("exit 0\ndeleted cron\n"));
    fs::write(&file, &exported).unwrap();
    let created = apply(&["--yes"]);
    assert!(
        created.starts_with("exit 0\ncreated cron\n") && !created.contains("note:"),
        "{created}"
    );
    assert_eq!(apply(&["--prune"]), "exit 0\nno changes\n");
    assert_eq!(server.expect_success(&["job", "export"]), exported);

    let changed = exported
        .replace("value = \"90s\"", "value = \"10s\"")
        .replace("[\"echo\", \"a b\"]", "[\"true\"]");
    fs::write(&file, &changed).unwrap();
    let output = apply(&["--yes"]);
    assert!(output.starts_with("exit 0\nchanged every\n--\nchange every\n  command: "), "{output}");
    assert!(output.contains("  trigger.schedule.value: 90s -> 10s\n"), "{output}");
    assert_eq!(server.expect_success(&["job", "export"]), changed);
}

/// Registers a worker and claims the only run as soon as it is due.
async fn claim_run(store: &Store, token: LeaseToken) -> StartedRun {
    let worker = WorkerId::from_random(1);
    let new = NewWorker {
        id: worker,
        node: "here".parse().unwrap(),
        pid: None,
        address: None,
        labels: None,
        slots: 1,
        function_slots: 1,
    };
    store.register_worker(&new).await.unwrap();
    let lease_ttl = Duration::from_secs(60);
    let lane = "function greet";
    loop {
        let batch = ClaimRequest { worker, token, lane, max_runs: 1, lease_ttl, after: None };
        if let ClaimResult::Runs(mut runs) = store.claim(&batch).await.unwrap()
            && let Some(run) = runs.pop()
        {
            return run;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Output is printed while the run is running, and the exit code is its outcome.
#[test]
fn a_run_is_followed_while_it_is_running() {
    let server = ApiServer::new("follow");
    server.expect_success(&["job", "create", "greet", "--function", "greet"]);
    let mut follow = server.command(&["job", "trigger", "greet", "--follow", "--timeout", "60s"]);
    let mut child = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap());
    let mut next_line = || {
        let mut line = String::new();
        printed.read_line(&mut line).unwrap();
        line
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = server.store().await;
        let token = LeaseToken::from_random(2);
        let run = claim_run(&store, token).await;
        for (first_line, stream, text) in [
            (0, OutputStream::Stdout, "おはよう"),
            (1, OutputStream::Stderr, "a warning"),
            (2, OutputStream::Stdout, "good night"),
        ] {
            let line = LogLine { stream, at: jiff::Timestamp::now(), text: text.to_owned() };
            store.append_log(run.id, 1, first_line, &[line], 1 << 20).await.unwrap();
            if stream == OutputStream::Stdout {
                assert_eq!(next_line(), format!("{text}\n"));
            }
        }
        let ended = store
            .finish(&[AttemptReport::new(token, run.id, AttemptResult::default())], &[token])
            .await
            .unwrap();
        assert!(ended[0].is_applied());
        store.close().await;
    });
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{errors}");
    // The run may have been claimed before the command read its state.
    let (first, rest) = errors.split_once('\n').unwrap();
    assert!(["run 1 of greet is PENDING", "run 1 of greet is RUNNING"].contains(&first), "{first}");
    assert_eq!(rest, "a warning\nrun 1 of greet is SUCCEEDED\n");
    assert!(server.expect_success(&["run", "wait", "1"]).contains("SUCCEEDED"));
    assert_eq!(
        server.output(&["run", "logs", "1"]),
        "exit 0\nおはよう\ngood night\n--\na warning\n"
    );
    assert!(server.expect_success(&["run", "show", "1"]).contains("ATTEMPT  OUTCOME    STARTED"));
}
