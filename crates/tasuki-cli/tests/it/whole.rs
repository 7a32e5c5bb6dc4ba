//! The commands against the real API, from making a job to watching it run.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tasuki_core::{LeaseToken, WorkerId};
use tasuki_store::{ClaimBatch, ClaimResult, AttemptResult, LogLine, NewWorker, Store, Stream, Taken};

use crate::fake::told;
use crate::real::Server;

#[test]
fn a_job_from_its_making_to_its_end() {
    let server = Server::new("job");
    let made = server.done(&["job", "create", "hello", "--every", "5s", "--", "echo", "hi"]);
    assert!(made.starts_with("created hello: every 5 seconds"), "{made}");
    server.refused(&["job", "create", "hello", "--", "true"], "hello");
    server.refused(
        &["job", "create", "x", "--every", "soon", "--", "true"],
        "trigger.schedule.value",
    );
    server.refused(&["job", "create", "x", "--timeout=-5s", "--", "true"], "timeout");
    server.refused(&["job", "show", "nobody"], "nobody");
    assert!(server.done(&["job", "list"]).contains("hello"));

    let changed = server.done(&[
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
    server.done(&["job", "update", "hello", "--weekdays-at", "09:00"]);
    let job = server.json(&["job", "show", "hello"]);
    assert_eq!(job["trigger"]["schedule"]["type"], "weekdays_at");
    assert_eq!(job["trigger"]["schedule"]["zone"], "Asia/Tokyo");
    assert_eq!(job["env"], json!({"A": "b"}));
    server.done(&["job", "update", "hello", "--misfire", "skip_late:10m"]);
    server.done(&["job", "update", "hello", "--misfire", "latest_only"]);
    server.done(&["job", "update", "hello", "--function", "greet", "--without-env", "A"]);
    server.done(&["job", "update", "hello", "--on-event", "order.*", "--filter", "{\"x\": 1}"]);
    server.done(&["job", "update", "hello", "--on-request", "--", "echo", "hi"]);
    assert!(server.done(&["job", "update", "hello", "--on-request"]).contains("nothing to change"));
    let job = server.json(&["job", "show", "hello"]);
    assert_eq!(
        (&job["trigger"], &job["command"]),
        (&json!({"type": "task"}), &json!(["echo", "hi"]))
    );

    assert!(server.done(&["job", "disable", "hello"]).starts_with("hello is disabled"));
    assert!(server.done(&["job", "enable", "hello"]).starts_with("hello is enabled"));
    let paused = server.done(&["job", "pause", "hello", "--reason", "moving", "--until", "2h"]);
    assert!(paused.contains("hello is paused") && paused.contains("moving"), "{paused}");
    assert!(server.done(&["job", "resume", "hello"]).starts_with("hello is enabled"));
    server.refused(&["job", "preview", "hello"], "has no schedule");
    server.done(&["job", "update", "hello", "--monthly-at", "last 18:00"]);
    assert!(server.done(&["job", "preview", "hello", "-n", "2"]).contains("18:00"));
    assert!(server.done(&["job", "delete", "hello", "--yes"]).starts_with("deleted hello"));
    assert!(server.done(&["job", "list"]).starts_with("there are no jobs"));
}

#[test]
fn a_run_that_waits_is_explained_canceled_and_run_again() {
    let server = Server::new("run");
    server.done(&["job", "create", "日報", "--", "echo", "{day}"]);
    assert!(server.done(&["run", "list"]).contains("--planned shows what lies ahead"));
    let run = server.json(&["job", "trigger", "日報", "--arg", "day=today", "--key", "k"]);
    let id = run["id"].to_string();
    assert_eq!(run["args"], json!({"day": "today"}));
    let again = server.done(&["job", "trigger", "日報", "--arg", "day=today", "--key", "k"]);
    assert!(again.contains("made before under this key"), "{again}");
    assert!(server.done(&["run", "list", "--job", "日報", "--state", "PENDING"]).contains("日報"));
    assert!(server.done(&["run", "show", &id]).contains("PENDING"));
    assert!(!server.done(&["run", "explain", &id]).is_empty());
    server.refused(&["run", "wait", &id, "--timeout", "50ms"], "has not ended within 50ms");
    assert!(server.told(&["run", "logs", &id]).contains("has not started yet"));
    server.refused(&["run", "retry", &id], "");
    assert!(server.done(&["run", "cancel", &id, "--reason", "wrong day"]).contains("CANCELED"));
    assert_eq!(server.told(&["run", "logs", &id, "-f"]), "exit 0\n");
    server.refused(&["run", "wait", &id], "CANCELED");
    server.refused(&["run", "show", "999"], "999");
    let again = server.json(&["run", "rerun", &id]);
    assert_eq!(again["rerun_of"].to_string(), id);
    let listed = server.json(&["run", "list", "-n", "1"]);
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    assert!(listed["next"].is_string(), "{listed}");

    // What lies ahead does not stand before what just happened.
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
    let all = server.done(&["run", "list", "--state", "PENDING"]);
    assert!(all.contains(&format!("\n{later} ")) || all.contains(&format!("{later}  ")), "{all}");

    let file = server.folder.join("tasks.jsonl");
    let lines: Vec<String> = (0..1_200)
        .map(|n| format!("{{\"args\":{{\"n\":{n}}},\"idempotency_key\":\"t{n}\"}}"))
        .collect();
    fs::write(&file, lines.join("\n")).unwrap();
    let submit = || server.done(&["task", "submit", "日報", "--file", file.to_str().unwrap()]);
    assert!(submit().starts_with("1200 tasks submitted"));
    assert!(submit().ends_with("1200 existed before\n"));
    assert_eq!(
        server.json(&["run", "list", "-n", "2000", "--origin", "task"])["items"]
            .as_array()
            .unwrap()
            .len(),
        1_200
    );
    server.refused(&["task", "submit", "nobody"], "nobody");
}

#[test]
fn events_settings_tokens_and_the_audit() {
    let server = Server::new("rest");
    let emit = ["event", "emit", "order.paid", "--payload", "{\"order\": 42}", "--key", "order-42"];
    assert_eq!(server.done(&emit), "event 1\n");
    assert_eq!(server.done(&emit), "event 1 existed before under this key\n");
    assert!(server.done(&["event", "list"]).contains("order.paid"));
    assert_eq!(server.json(&["event", "show", "1"])["payload"], json!({"order": 42}));
    server.refused(&["event", "emit", ""], "type");
    server.refused(&["event", "emit", "bad type!"], "type: found \"bad type!\", expected 1 to 191");
    let on = |wanted| ["job", "create", "x", "--on-event", wanted, "--", "true"];
    server.refused(&on("bad type!"), "trigger.events: found \"bad type!\"");
    server.refused(&on("*"), "trigger.events: found \"*\", expected types such as order.paid");
    server.done(&on("order.*"));

    assert!(server.done(&["setting", "list"]).contains("lease_ttl"));
    assert_eq!(server.done(&["setting", "set", "leader_tick=500ms"]), "leader_tick: 1s -> 500ms\n");
    assert!(server.done(&["setting", "list", "--changed"]).contains("leader_tick  500ms *"));
    assert!(server.done(&["setting", "get", "leader_tick"]).contains("500ms"));
    server.refused(&["setting", "set", "lease_ttl=1s"], "lease_ttl");
    server.refused(&["setting", "set", "no_such=1"], "no_such");
    let set = ["setting", "set", "leader_tick", "600ms", "lease_ttl=40s", "lease_renew", "2s"];
    let changed = server.done(&set);
    assert!(
        changed.starts_with("leader_tick: 500ms -> 600ms\nlease_renew: 3s -> 2s\n"),
        "{changed}"
    );
    server.refused(&["setting", "set", "lease_tl", "9s"], "did you mean lease_ttl?");
    server.refused(&["setting", "set", "lease_tl", "9s"], "hint: tasuki setting list shows all");
    server.refused(&["setting", "get", "lease_tl"], "did you mean lease_ttl?");
    let missing = server.told(&["setting", "set", "lease_ttl"]);
    assert!(missing.starts_with("exit 2\n") && missing.contains("value is missing"), "{missing}");

    assert!(server.done(&["worker", "list"]).starts_with("there are no workers"));
    server.refused(&["worker", "show", "11111111-2222-4333-8444-555555555555"], "worker");
    assert!(server.done(&["leader", "show"]).contains("epoch"));

    let created =
        server.done(&["token", "create", "eye", "--role", "viewer", "--expires-in", "30d"]);
    let (token, note) = created.split_once('\n').unwrap();
    assert!(token.starts_with("tsk_") && note.contains("shown this once"), "{created}");
    let viewer = |arguments: &[&str]| told(server.command(arguments).env("TASUKI_TOKEN", token));
    assert!(viewer(&["job", "list"]).starts_with("exit 0\n"));
    assert!(viewer(&["job", "create", "x", "--", "y"]).starts_with("exit 1\n"));
    assert!(viewer(&["audit", "list"]).contains("role"), "{}", viewer(&["audit", "list"]));
    let id = server.json(&["token", "list"])["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "eye")
        .unwrap()["id"]
        .to_string();
    server.done(&["token", "revoke", &id, "--yes"]);
    assert!(viewer(&["job", "list"]).starts_with("exit 1\n"));

    let audit = server.done(&["audit", "list"]);
    assert!(audit.contains("test"), "{audit}");
    let head = server.json(&["audit", "head"]);
    let last = server.json(&["audit", "list"])["items"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(head, json!({"seq": last["seq"], "hash": last["hash"]}));
}

/// Every kind of job there is, by its flags, exported and applied: nothing to do; then changed.
#[test]
fn what_is_exported_is_applied_as_nothing_to_do() {
    let server = Server::new("apply");
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
        server.done(&[&["job", "create"], arguments].concat());
    }
    let exported = server.done(&["job", "export"]);
    let file = server.folder.join("jobs.toml");
    fs::write(&file, &exported).unwrap();
    let apply = |more: &[&str]| {
        server.told(&[&["job", "apply", "-f", file.to_str().unwrap()], more].concat())
    };
    assert_eq!(apply(&["--prune"]), "exit 0\nnothing to do\n", "{exported}");

    // Away with everything, and back from the file: the same.
    fs::write(&file, "").unwrap();
    assert!(apply(&["--prune", "--yes"]).starts_with("exit 0\ndeleted cron\n"));
    fs::write(&file, &exported).unwrap();
    let made = apply(&["--yes"]);
    assert!(made.starts_with("exit 0\ncreated cron\n") && !made.contains("note:"), "{made}");
    assert_eq!(apply(&["--prune"]), "exit 0\nnothing to do\n");
    assert_eq!(server.done(&["job", "export"]), exported);

    let changed = exported
        .replace("value = \"90s\"", "value = \"10s\"")
        .replace("[\"echo\", \"a b\"]", "[\"true\"]");
    fs::write(&file, &changed).unwrap();
    let told = apply(&["--yes"]);
    assert!(told.starts_with("exit 0\nchanged every\n--\nchange every\n  command: "), "{told}");
    assert!(told.contains("  trigger.schedule.value: 90s -> 10s\n"), "{told}");
    assert_eq!(server.done(&["job", "export"]), changed);
}

/// Takes the one run there is, as soon as it is there.
async fn taken(store: &Store, token: LeaseToken) -> Taken {
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
        let batch = ClaimBatch { worker, token, lane, most: 1, lease_ttl };
        if let ClaimResult::Runs(mut runs) = store.claim(&batch).await.unwrap()
            && let Some(run) = runs.pop()
        {
            return run;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What it prints is seen while it runs, and the exit code tells how it ended.
#[test]
fn a_run_is_followed_while_it_happens() {
    let server = Server::new("follow");
    server.done(&["job", "create", "greet", "--function", "greet"]);
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
        let run = taken(&store, token).await;
        for (first_line, stream, text) in [
            (0, Stream::Out, "おはよう"),
            (1, Stream::Err, "a warning"),
            (2, Stream::Out, "good night"),
        ] {
            let line = LogLine { stream, at: jiff::Timestamp::now(), text: text.to_owned() };
            store.append_log(run.id, 1, first_line, &[line], 1 << 20).await.unwrap();
            if stream == Stream::Out {
                assert_eq!(next_line(), format!("{text}\n"));
            }
        }
        let ended = store.finish_many(token, &[(run.id, AttemptResult::default())]).await.unwrap();
        assert!(ended[0].is_applied());
        store.close().await;
    });
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{errors}");
    // It may have been taken before the command line asked how it is.
    let (first, rest) = errors.split_once('\n').unwrap();
    assert!(["run 1 of greet is PENDING", "run 1 of greet is RUNNING"].contains(&first), "{first}");
    assert_eq!(rest, "a warning\nrun 1 of greet is SUCCEEDED\n");
    assert!(server.done(&["run", "wait", "1"]).contains("SUCCEEDED"));
    assert_eq!(server.told(&["run", "logs", "1"]), "exit 0\nおはよう\ngood night\n--\na warning\n");
    assert!(server.done(&["run", "show", "1"]).contains("ATTEMPT  OUTCOME    STARTED"));
}
