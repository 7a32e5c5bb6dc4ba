//! Invalid input: the error names the field, and nothing is stored.

use reqwest::Method;
use serde_json::{Value, json};

use crate::fixtures::{Server, send_request};

fn job_with(change: &Value) -> Value {
    let mut job = json!({ "name": "a", "command": ["true"] });
    for (field, value) in change.as_object().unwrap() {
        job[field] = value.clone();
    }
    job
}

fn job_with_schedule(schedule: &Value) -> Value {
    job_with(&json!({ "trigger": { "type": "time", "schedule": schedule } }))
}

#[tokio::test]
async fn an_invalid_job_is_refused_with_the_name_of_the_field() {
    let server = Server::start().await;
    let before = server.count_stored().await;
    let cases = [
        (
            job_with_schedule(&json!({ "type": "every", "value": "never" })),
            "trigger.schedule.value",
        ),
        (job_with_schedule(&json!({ "type": "cron", "value": "* * *" })), "trigger.schedule.value"),
        (
            job_with_schedule(&json!({ "type": "daily_at", "value": "25:00" })),
            "trigger.schedule.value",
        ),
        (
            job_with_schedule(&json!({ "type": "sometimes", "value": "5s" })),
            "trigger.schedule.type",
        ),
        (
            job_with_schedule(&json!({ "type": "every", "value": "5s", "zone": "Mars/Olympus" })),
            "trigger.schedule.zone",
        ),
        (
            job_with_schedule(&json!({ "type": "every", "value": "5s", "dst_gap": "jump" })),
            "trigger.schedule.dst_gap",
        ),
        (job_with_schedule(&json!({ "type": "every" })), "trigger.schedule.value"),
        (
            job_with_schedule(&json!({ "type": "every", "value": "5s", "tz": "UTC" })),
            "trigger.schedule.tz",
        ),
        (job_with(&json!({ "trigger": { "type": "time" } })), "trigger.schedule"),
        (job_with(&json!({ "trigger": { "type": "event" } })), "trigger.events"),
        (job_with(&json!({ "trigger": { "type": "event", "events": [] } })), "trigger.events"),
        (
            job_with(&json!({ "trigger": { "type": "event", "events": ["a", "b c"] } })),
            "trigger.events",
        ),
        (job_with(&json!({ "trigger": { "type": "event", "events": ["*"] } })), "trigger.events"),
        (
            job_with(
                &json!({ "trigger": { "type": "event", "events": ["a"], "filter": { "a": { "b": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]] } } } }),
            ),
            "trigger.filter",
        ),
        (
            job_with(&json!({ "trigger": { "type": "event", "events": ["a"], "filter": [1] } })),
            "trigger.filter",
        ),
        (job_with(&json!({ "trigger": { "type": "task", "events": ["a"] } })), "trigger.events"),
        (job_with(&json!({ "trigger": { "type": "moon" } })), "trigger.type"),
        (job_with(&json!({ "color": "red" })), "color"),
        (job_with(&json!({ "id": 7 })), "id"),
        (job_with(&json!({ "timeout": "-5s" })), "timeout"),
        (job_with(&json!({ "timeout": "1ms" })), "timeout"),
        (job_with(&json!({ "timeout": 5 })), "timeout"),
        (job_with(&json!({ "heartbeat_timeout": "soon" })), "heartbeat_timeout"),
        (job_with(&json!({ "stop_grace": "9999d" })), "stop_grace"),
        (job_with(&json!({ "command": [] })), "command"),
        (job_with(&json!({ "command": ["a\0b"] })), "command"),
        (job_with(&json!({ "command": ["a", 1] })), "command[1]"),
        (job_with(&json!({ "command": "true" })), "command"),
        (job_with(&json!({ "command": ["x".repeat(200_000)] })), "command"),
        (job_with(&json!({ "handler": "pay" })), "handler"),
        (job_with(&json!({ "kind": "function" })), "command"),
        (job_with(&json!({ "kind": "django", "command": ["a", "b"] })), "command"),
        (job_with(&json!({ "kind": "shell" })), "kind"),
        (job_with(&json!({ "env": { "TASUKI_X": "1" } })), "env"),
        (job_with(&json!({ "env": { "A": 1 } })), "env.A"),
        (job_with(&json!({ "args": [1] })), "args"),
        (job_with(&json!({ "labels": [""] })), "labels"),
        (job_with(&json!({ "dispatch": "throw" })), "dispatch"),
        (job_with(&json!({ "queue": "slow" })), "queue"),
        (job_with(&json!({ "priority": "high" })), "priority"),
        (json!({ "name": "f", "handler": "f", "queue": "a/b" }), "queue"),
        (json!({ "name": "f", "handler": "f", "queue": "x".repeat(33) }), "queue"),
        (json!({ "name": "f", "handler": "f", "priority": "urgent" }), "priority"),
        (json!({ "name": "f", "handler": "f", "dispatch": "assign", "queue": "slow" }), "queue"),
        (job_with(&json!({ "concurrency": "maybe" })), "concurrency"),
        (job_with(&json!({ "directory": "" })), "directory"),
        (job_with(&json!({ "description": "x".repeat(5_000) })), "description"),
        (job_with(&json!({ "retry": { "max_retries": 1_001 } })), "retry.max_retries"),
        (job_with(&json!({ "retry": { "max_retries": -1 } })), "retry.max_retries"),
        (
            job_with(&json!({ "retry": { "backoff": "1h", "backoff_cap": "1s" } })),
            "retry.backoff_cap",
        ),
        (job_with(&json!({ "retry": { "jitter_percent": 101 } })), "retry.jitter_percent"),
        (job_with(&json!({ "retry": { "exit_codes": { "x": "A" } } })), "retry.exit_codes.x"),
        (job_with(&json!({ "retry": { "exit_codes": { "3": "no" } } })), "retry.exit_codes.3"),
        (job_with(&json!({ "name": "" })), "name"),
        (job_with(&json!({ "name": " a" })), "name"),
        (job_with(&json!({ "name": "x".repeat(192) })), "name"),
        (job_with(&json!({ "name": null })), "name"),
        (json!({ "name": "a" }), "command"),
        (json!({ "command": ["true"] }), "name"),
        (json!([]), "body"),
        (json!(["a", true, null, null, null, ["true"]]), "body"),
        (json!("a"), "body"),
        (job_with(&json!({ "trigger": ["task", null, null, null, null] })), "trigger"),
        (
            job_with(
                &json!({ "trigger": { "type": "time", "schedule": ["every", "5s", null, null, null] } }),
            ),
            "trigger.schedule",
        ),
        (job_with(&json!({ "retry": [] })), "retry"),
    ];
    for (job, field) in cases {
        let refused = server.post("/jobs", job.clone()).await;
        let excerpt: String = job.to_string().chars().take(200).collect();
        assert_eq!(refused.error(), (422, "invalid_input", field), "{excerpt}: {}", refused.body);
    }
    assert_eq!(server.count_stored().await, before, "nothing was stored");
    let mut misfire = job_with_schedule(&json!({ "type": "every", "value": "5s" }));
    for (policy, field) in [
        (json!({ "policy": "skip_late" }), "trigger.misfire.after"),
        (json!({ "policy": "latest_only", "count": 1 }), "trigger.misfire.count"),
        (json!({ "policy": "at_most", "count": 101 }), "trigger.misfire"),
        (json!({ "policy": "hope" }), "trigger.misfire.policy"),
    ] {
        misfire["trigger"]["misfire"] = policy;
        let refused = server.post("/jobs", misfire.clone()).await;
        assert_eq!(refused.error(), (422, "invalid_input", field));
    }
}

#[tokio::test]
async fn an_invalid_patch_changes_nothing() {
    let server = Server::start().await;
    let job = server.create_job("a").await;
    for (patch, field) in [
        (json!({ "timeout": "-5s" }), "timeout"),
        (json!({ "color": "red" }), "color"),
        (json!({ "version": 7 }), "version"),
        (json!({ "paused": null, "next_fire": "2026-01-01T00:00:00Z" }), "next_fire"),
        (json!({ "name": "b" }), "name"),
        (json!({ "command": null }), "command"),
        (json!({ "trigger": { "type": "time" } }), "trigger.schedule"),
    ] {
        let refused = server.change(Method::PATCH, "/jobs/a", "*", Some(patch.clone())).await;
        assert_eq!(refused.error(), (422, "invalid_input", field), "{patch}: {}", refused.body);
    }
    let list = server.change(Method::PATCH, "/jobs/a", "*", Some(json!([]))).await;
    assert_eq!(list.error(), (422, "invalid_input", "body"));
    assert_eq!(server.get("/jobs/a").await.expect_status(200), job);
}

#[tokio::test]
async fn a_malformed_body_is_refused() {
    let server = Server::start().await;
    server.create_job("a").await;
    let before = server.count_stored().await;
    let send = async |path: &str, kind: &str, body: Vec<u8>| {
        let request = server.request(Method::POST, path).body(body);
        send_request(if kind.is_empty() { request } else { request.header("Content-Type", kind) })
            .await
    };
    let json = "application/json";
    let many = |count: usize| b"x".repeat(count);
    let padded = |count: usize| {
        format!(r#"{{"name":"b","command":["{}"]}}"#, "x".repeat(count)).into_bytes()
    };
    let event =
        |count: usize| format!(r#"{{"type":"a","payload":"{}"}}"#, "x".repeat(count)).into_bytes();
    for (path, kind, body, refusal) in [
        ("/jobs", json, b"{".to_vec(), (400, "malformed", "body")),
        ("/jobs", json, b"{\"name\": \"a\", }".to_vec(), (400, "malformed", "body")),
        ("/jobs", json, b"".to_vec(), (400, "malformed", "body")),
        ("/jobs", json, b"{\"name\": \"\xff\"}".to_vec(), (400, "malformed", "body")),
        ("/jobs", json, b"{} {}".to_vec(), (422, "invalid_input", "name")),
        ("/jobs/a/trigger", json, b"{} {}".to_vec(), (400, "malformed", "body")),
        ("/jobs", json, "[".repeat(100_000).into_bytes(), (422, "invalid_input", "body")),
        ("/jobs", "", b"{}".to_vec(), (415, "unsupported_media_type", "Content-Type")),
        ("/jobs", "text/plain", b"{}".to_vec(), (415, "unsupported_media_type", "Content-Type")),
        ("/jobs", json, padded(2 << 20), (413, "too_large", "body")),
        ("/jobs", json, many(40 << 20), (413, "too_large", "body")),
        ("/tasks", json, many(3 << 20), (413, "too_large", "body")),
        ("/tasks/batch", json, many(9 << 20), (413, "too_large", "tasks")),
        ("/events", json, event(10 << 20), (413, "too_large", "payload")),
        ("/events", json, event((1 << 20) + 1), (422, "invalid_input", "payload")),
    ] {
        let refused = send(path, kind, body).await;
        assert_eq!(refused.error(), refusal, "{path} {:?}", refused.body);
    }
    assert_eq!(server.count_stored().await, before, "nothing was stored");
    assert_eq!(
        send("/events", json, event((1 << 20) - 2)).await.status,
        201,
        "a payload of 1 MiB, including its quotes"
    );
}

#[tokio::test]
async fn other_invalid_input_is_refused_with_the_name_of_the_field() {
    let server = Server::start().await;
    server.create_job("a").await;
    let run = server.submit_task("a").await;
    let before = server.count_stored().await;
    let cancel = format!("/runs/{run}/cancel");
    for (path, body, field) in [
        ("/events", json!({}), "type"),
        ("/events", json!({ "type": "" }), "type"),
        ("/events", json!({ "type": "a\0" }), "type"),
        ("/events", json!({ "type": "bad type!" }), "type"),
        ("/events", json!({ "type": "a", "dedupe_key": " x" }), "dedupe_key"),
        ("/events", json!({ "type": "a", "source": "" }), "source"),
        ("/events", json!({ "type": "a", "kind": "b" }), "kind"),
        ("/tasks", json!({}), "job"),
        ("/tasks", json!({ "job": "a", "args": 1 }), "args"),
        ("/tasks", json!({ "job": "a", "queue": "" }), "queue"),
        ("/tasks", json!({ "job": "a", "queue": "slow" }), "queue"),
        ("/tasks", json!({ "job": "a", "priority": "urgent" }), "priority"),
        ("/tasks", json!({ "job": "a", "priority": "high" }), "priority"),
        ("/tasks", json!({ "job": "a", "scheduled_for": "tomorrow" }), "scheduled_for"),
        ("/tasks", json!({ "job": "a", "expires_at": "2026-13-01T00:00:00Z" }), "expires_at"),
        ("/tasks", json!({ "job": "a", "scope": { "kind": "a/b", "id": "1" } }), "scope.kind"),
        ("/tasks", json!({ "job": "a", "scope": { "kind": "a", "id": "" } }), "scope.id"),
        ("/tasks", json!({ "job": "a", "scope": { "kind": "a" } }), "scope.id"),
        ("/tasks", json!({ "job": "a", "scope": ["tenant", "42"] }), "scope"),
        ("/tasks/batch", json!({ "tasks": [["a", null, null, null, null, null]] }), "tasks[0]"),
        (&cancel, json!({ "reason": "" }), "reason"),
        (&cancel, json!({ "reason": "a\0b" }), "reason"),
        (&cancel, json!({ "reason": "x".repeat(1_001) }), "reason"),
        (&cancel, json!({ "why": "x" }), "why"),
        ("/tokens", json!({ "name": "x" }), "role"),
        ("/tokens", json!({ "name": "x", "role": "king" }), "role"),
        ("/tokens", json!({ "name": "", "role": "viewer" }), "name"),
        ("/tokens", json!({ "name": "x", "role": "viewer", "expires_in": "0s" }), "expires_in"),
        ("/tokens", json!({ "name": "x", "role": "viewer", "expires_in": "never" }), "expires_in"),
        ("/leader/demote", json!({ "epoch": 0, "reason": "x" }), "epoch"),
        ("/leader/demote", json!({ "epoch": 1 }), "reason"),
        (
            "/schedules/preview",
            json!({ "schedule": { "type": "every", "value": "x" } }),
            "schedule.value",
        ),
        (
            "/schedules/preview",
            json!({ "schedule": { "type": "every", "value": "1s" }, "count": 0 }),
            "count",
        ),
        (
            "/schedules/preview",
            json!({ "schedule": { "type": "every", "value": "1s" }, "from": "x" }),
            "from",
        ),
    ] {
        let refused = server.post(path, body.clone()).await;
        assert_eq!(
            refused.error(),
            (422, "invalid_input", field),
            "{path} {body}: {}",
            refused.body
        );
    }
    for key in ["", " ", &"x".repeat(192)] {
        let body = json!({ "job": "a" });
        let request =
            server.request(Method::POST, "/tasks").header("Idempotency-Key", key).json(&body);
        assert_eq!(
            send_request(request).await.error(),
            (422, "invalid_input", "Idempotency-Key"),
            "{key:?}"
        );
    }
    for path in [
        "/jobs?limit=0",
        "/jobs?after=",
        "/jobs?enabled=yes",
        "/jobs?trigger=moon",
        "/jobs?color=red",
        "/jobs?limit=1&limit=2",
    ] {
        assert_eq!(server.get(path).await.error().0, 400, "{path}");
    }
    assert_eq!(server.count_stored().await, before, "nothing was stored");
}
