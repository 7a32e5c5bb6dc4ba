//! Jobs: create, show, list, change, enable and disable, pause, delete.

use reqwest::Method;
use serde_json::{Value, json};
use tasuki::operator::AccessRole;

use crate::fixtures::{Server, send_request};

fn nightly() -> Value {
    json!({
        "name": "夜間 集計/1",
        "description": "nightly",
        "trigger": {
            "type": "time",
            "schedule": { "type": "daily_at", "value": "02:30", "zone": "Europe/Berlin" },
            "misfire": { "policy": "every_within", "window": "1h" },
        },
        "command": ["report", "{day}"],
        "args": { "day": "today" },
        "env": { "SECRET": "hush" },
        "timeout": "1m",
        "labels": ["gpu"],
        "retry": { "max_retries": 2, "backoff": "1s", "exit_codes": { "3": "NO_DATA" }, "fail_on": ["NO_DATA"] },
    })
}

const NAME: &str = "/jobs/%E5%A4%9C%E9%96%93%20%E9%9B%86%E8%A8%88%2F1";

#[tokio::test]
async fn a_job_is_created_shown_and_listed() {
    let server = Server::start().await;
    let created = server.post("/jobs", nightly()).await;
    assert_eq!(created.etag.as_deref(), Some("\"1\""));
    assert_eq!(created.location.as_deref(), Some(&*format!("/api/v1{NAME}")));
    let job = created.expect_status(201);
    for (field, expected) in [
        ("/kind", json!("command")),
        ("/enabled", json!(true)),
        ("/dispatch", json!("assign")),
        ("/concurrency", json!("forbid")),
        ("/timeout", json!("1m")),
        ("/trigger/schedule/zone", json!("Europe/Berlin")),
        ("/trigger/schedule/dst_gap", json!("shift")),
        ("/trigger/misfire", json!({ "policy": "every_within", "window": "1h" })),
        ("/retry/max_retries", json!(2)),
        ("/retry/backoff_cap", json!("15m")),
        ("/retry/retry_lost", json!(true)),
        ("/retry/exit_codes/3", json!("NO_DATA")),
        ("/schedule_words", json!("every day at 02:30")),
        ("/env/SECRET", json!("hush")),
        ("/paused", Value::Null),
    ] {
        assert_eq!(job.pointer(field), Some(&expected), "{field}");
    }
    assert!(job["next_fire"].as_str().unwrap().ends_with(":30:00.000000Z"), "{job}");
    let shown = server.get(NAME).await;
    assert_eq!(shown.etag.as_deref(), Some("\"1\""));
    assert_eq!(shown.expect_status(200), job);
    let listed = server.get("/jobs").await.expect_status(200);
    assert_eq!(listed, json!({ "items": [job], "next": null }));
}

#[tokio::test]
async fn environment_values_are_hidden_from_viewers_and_operators() {
    let server = Server::start().await;
    server.post("/jobs", nightly()).await.expect_status(201);
    for (role, shown) in
        [(AccessRole::Viewer, "***"), (AccessRole::Operator, "***"), (AccessRole::Author, "hush")]
    {
        let token = server.create_token(role).await;
        for path in [NAME, "/jobs"] {
            let path = format!("/api/v1{path}");
            let response =
                send_request(server.request_without_token(Method::GET, &path).bearer_auth(&token))
                    .await;
            let text = response.expect_status(200).to_string();
            assert!(text.contains(&format!(r#""SECRET":"{shown}""#)), "{role} {text}");
        }
        // The response to a conflict contains the current job, and must hide the values as well.
        if role >= AccessRole::Operator {
            let path = format!("/api/v1{NAME}/resume");
            let request = server.request_without_token(Method::POST, &path).bearer_auth(&token);
            let lost = send_request(request.header("If-Match", "\"99\"")).await;
            assert_eq!(lost.body["current"]["env"]["SECRET"], "***");
        }
    }
}

#[tokio::test]
async fn lists_have_pages_and_filters() {
    let server = Server::start().await;
    for number in 0..7 {
        let mut job = json!({ "name": format!("job {number}"), "command": ["true"] });
        if number % 2 == 0 {
            job["trigger"] = json!({ "type": "event", "events": ["order.*"] });
        }
        job["enabled"] = json!(number < 5);
        server.post("/jobs", job).await.expect_status(201);
    }
    let names = |page: &Value| -> Vec<String> {
        let names = page["items"].as_array().unwrap().iter();
        names.map(|job| job["name"].as_str().unwrap().replace("job ", "")).collect()
    };
    let first = server.get("/jobs?limit=3").await.expect_status(200);
    assert_eq!((names(&first).concat().as_str(), &first["next"]), ("012", &json!("job 2")));
    let next = server.get("/jobs?limit=4&after=job%202").await.expect_status(200);
    assert_eq!(names(&next).concat(), "3456");
    let rest = match next["next"].as_str() {
        Some(after) => server
            .get(&format!("/jobs?after={}", after.replace(' ', "%20")))
            .await
            .expect_status(200),
        None => json!({ "items": [] }),
    };
    assert!(names(&rest).is_empty());
    assert_eq!(names(&server.get("/jobs?trigger=event").await.expect_status(200)).concat(), "0246");
    let both = server.get("/jobs?trigger=event&enabled=true&limit=2").await.expect_status(200);
    assert_eq!((names(&both).concat().as_str(), &both["next"]), ("02", &json!("job 2")));
    assert_eq!(names(&server.get("/jobs?enabled=false").await.expect_status(200)).concat(), "56");
}

#[tokio::test]
async fn a_patch_changes_only_the_fields_that_it_contains() {
    let server = Server::start().await;
    let before = server.post("/jobs", nightly()).await.expect_status(201);
    let patch = json!({ "timeout": "2m", "description": null, "env": { "MORE": "x" } });
    let changed = server.change(Method::PATCH, NAME, "\"1\"", Some(patch)).await;
    assert_eq!(changed.etag.as_deref(), Some("\"2\""));
    let changed = changed.expect_status(200);
    assert_eq!(changed["canceled_runs"], json!([]));
    let mut expected = before;
    expected["timeout"] = json!("2m");
    expected["description"] = Value::Null;
    expected["env"]["MORE"] = json!("x");
    expected["version"] = json!(2);
    expected["updated_at"] = changed["job"]["updated_at"].clone();
    expected["next_fire"] = changed["job"]["next_fire"].clone();
    assert_eq!(changed["job"], expected);
}

/// A patch that changes the kind of the trigger, schedule, policy or work removes the fields of the old kind.
#[tokio::test]
async fn a_patch_may_change_the_kind() {
    let server = Server::start().await;
    server.post("/jobs", nightly()).await.expect_status(201);
    for (patch, field, expected) in [
        (
            json!({ "trigger": { "schedule": { "type": "every", "value": "5s" } } }),
            "/trigger/schedule",
            json!({ "type": "every", "value": "5s", "zone": "Europe/Berlin", "dst_gap": null, "dst_fold": null }),
        ),
        (
            json!({ "trigger": { "misfire": { "policy": "at_most", "count": 3 } } }),
            "/trigger/misfire",
            json!({ "policy": "at_most", "count": 3 }),
        ),
        (json!({ "trigger": { "misfire": null } }), "/trigger/misfire", Value::Null),
        (
            json!({ "trigger": { "type": "event", "events": ["a"], "filter": { "x": 1 } } }),
            "/trigger",
            json!({ "type": "event", "events": ["a"], "filter": { "x": 1 } }),
        ),
        (json!({ "trigger": { "filter": null } }), "/trigger/filter", Value::Null),
        (json!({ "trigger": { "type": "task" } }), "/trigger", json!({ "type": "task" })),
        (json!({ "handler": "pay" }), "/kind", json!("function")),
        (
            json!({ "command": ["migrate"], "kind": "django", "args": null }),
            "/kind",
            json!("django"),
        ),
        (
            json!({ "name": "夜間 集計/1", "command": ["true"], "kind": "command" }),
            "/command",
            json!(["true"]),
        ),
    ] {
        let changed =
            server.change(Method::PATCH, NAME, "*", Some(patch.clone())).await.expect_status(200);
        assert_eq!(changed["job"].pointer(field), Some(&expected), "{patch}");
    }
}

#[tokio::test]
async fn a_conflict_response_contains_the_current_job() {
    let server = Server::start().await;
    let job = server.create_job("a").await;
    server.change(Method::POST, "/jobs/a/disable", "\"1\"", None).await.expect_status(200);
    for (method, path, body) in [
        (Method::PATCH, "/jobs/a", Some(json!({ "timeout": "5s" }))),
        (Method::DELETE, "/jobs/a", None),
        (Method::POST, "/jobs/a/enable", None),
        (Method::POST, "/jobs/a/disable", None),
        (Method::POST, "/jobs/a/resume", None),
        (Method::POST, "/jobs/a/pause", Some(json!({ "reason": "x" }))),
    ] {
        let lost = server.change(method.clone(), path, "\"1\"", body.clone()).await;
        assert_eq!((lost.status, &lost.body["code"]), (409, &json!("conflict")), "{method} {path}");
        assert_eq!(lost.body["current"]["version"], 2, "{method} {path}");
        assert_eq!(lost.body["current"]["id"], job["id"]);
        let request = server.request(method.clone(), path);
        let missing = send_request(match &body {
            Some(body) => request.json(body),
            None => request,
        });
        let missing = missing.await;
        assert_eq!(missing.error(), (428, "precondition_required", "If-Match"), "{method} {path}");
        let invalid = server.change(method, path, "1", body).await;
        assert_eq!(invalid.error(), (400, "malformed", "If-Match"));
    }
    let taken = server.post("/jobs", json!({ "name": "a", "command": ["true"] })).await;
    assert_eq!(taken.error(), (409, "name_taken", "name"));
}

#[tokio::test]
async fn a_job_is_disabled_enabled_paused_and_deleted() {
    let server = Server::start().await;
    let mut job = json!({ "name": "a", "command": ["true"] });
    job["trigger"] = json!({ "type": "time", "schedule": { "type": "every", "value": "1h" } });
    server.post("/jobs", job).await.expect_status(201);
    let off =
        server.change(Method::POST, "/jobs/a/disable", "\"1\"", None).await.expect_status(200);
    assert_eq!((&off["job"]["enabled"], &off["job"]["next_fire"]), (&json!(false), &Value::Null));
    let on = server.change(Method::POST, "/jobs/a/enable", "\"2\"", None).await.expect_status(200);
    assert!(on["job"]["next_fire"].is_string());

    let until = "2999-01-01T00:30:00Z";
    let body = json!({ "reason": "holiday", "until": until });
    let paused =
        server.change(Method::POST, "/jobs/a/pause", "\"3\"", Some(body)).await.expect_status(200);
    let pause = &paused["job"]["paused"];
    assert_eq!(
        (&pause["reason"], &pause["until"]),
        (&json!("holiday"), &json!("2999-01-01T00:30:00.000000Z"))
    );
    assert_eq!(paused["job"]["next_fire"], "2999-01-01T01:00:00.000000Z");
    let past = json!({ "reason": "holiday", "until": "2020-01-01T00:00:00Z" });
    let refused = server.change(Method::POST, "/jobs/a/pause", "*", Some(past)).await;
    assert_eq!(refused.error(), (422, "invalid_input", "until"));
    let resumed = server.change(Method::POST, "/jobs/a/resume", "*", None).await.expect_status(200);
    assert_eq!(resumed["job"]["paused"], Value::Null);

    let gone = server.change(Method::DELETE, "/jobs/a", "*", None).await.expect_status(200);
    assert_eq!(gone, json!({ "canceled_runs": [] }));
    assert_eq!(server.get("/jobs/a").await.error().0, 404);
    let again =
        server.post("/jobs", json!({ "name": "a", "command": ["true"] })).await.expect_status(201);
    assert_eq!(
        again["id"], resumed["job"]["id"],
        "a new job with the name of a deleted one continues its history"
    );
}

#[tokio::test]
async fn a_schedule_is_previewed() {
    let server = Server::start().await;
    let request = json!({
        "schedule": { "type": "daily_at", "value": "02:30", "zone": "Europe/Berlin", "dst_gap": "shift" },
        "from": "2026-03-28T12:00:00Z",
        "count": 2,
    });
    let preview = server.post("/schedules/preview", request).await.expect_status(200);
    assert_eq!(
        (&preview["words"], &preview["ends"]),
        (&json!("every day at 02:30"), &json!(false))
    );
    assert_eq!(
        preview["fires"][0],
        json!({
            "at": "2026-03-29T01:00:00.000000Z",
            "local": "2026-03-29T03:00:00+02:00",
            "shifted": true,
            "note": "02:30:00 does not exist, so the job runs at the moment of the change (clocks go forward 02:00 -> 03:00)",
        })
    );
    assert_eq!(preview["fires"][1]["note"], Value::Null);
    let request = json!({
        "schedule": { "type": "daily_at", "value": "02:30", "zone": "Europe/Berlin", "dst_gap": "skip" },
        "from": "2026-03-28T12:00:00Z",
    });
    let preview = server.post("/schedules/preview", request).await.expect_status(200);
    assert_eq!(preview["skipped"][0]["local"], "2026-03-29T02:30:00");
    assert_eq!(preview["fires"][0]["at"], "2026-03-30T00:30:00.000000Z");
    let never = json!({ "schedule": { "type": "cron", "value": "0 0 30 2 *" } });
    let preview = server.post("/schedules/preview", never).await.expect_status(200);
    assert_eq!((&preview["ends"], &preview["fires"]), (&json!(true), &json!([])));
}
