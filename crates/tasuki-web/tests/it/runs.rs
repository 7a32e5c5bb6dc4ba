//! Runs: submit, list, cancel, retry, rerun, wait, explain.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tasuki_core::AttemptErrorCode;
use tasuki_core::exit::ClassifiedFailure;
use tasuki_store::AttemptResult;

use crate::fixtures::{FakeWorker, Server, send_request};

fn failed() -> AttemptResult {
    let failure = ClassifiedFailure { code: AttemptErrorCode::UNEXPECTED_ERROR, retryable: true };
    AttemptResult {
        exit_code: Some(3),
        error_message: Some("no".to_owned()),
        ..AttemptResult::from_failure(failure)
    }
}

#[tokio::test]
async fn two_tasks_with_the_same_idempotency_key_are_one_run() {
    let server = Server::start().await;
    server.create_job("a").await;
    server.create_job("b").await;
    let body = json!({
        "job": "a",
        "args": { "n": 1 },
        "scheduled_for": "2999-01-01T00:00:00Z",
        "expires_at": "2999-01-02T00:00:00+09:00",
        "scope": { "kind": "tenant", "id": "42" },
    });
    let send = async |job: &str| {
        let mut body = body.clone();
        body["job"] = job.into();
        send_request(
            server.request(Method::POST, "/tasks").header("Idempotency-Key", "k1").json(&body),
        )
        .await
    };
    let created = send("a").await.expect_status(201);
    for (field, expected) in [
        ("state", json!("PENDING")),
        ("origin", json!("task")),
        ("scope", json!("tenant/42")),
        ("args", json!({ "n": 1 })),
        ("scheduled_for", json!("2999-01-01T00:00:00.000000Z")),
        ("expires_at", json!("2999-01-01T15:00:00.000000Z")),
        ("idempotency_key", json!("k1")),
        ("worker", Value::Null),
        ("tries_allowed", json!(1)),
    ] {
        assert_eq!(created[field], expected, "{field}");
    }
    assert_eq!(send("a").await.expect_status(200), created);
    let other = send("b").await;
    assert_eq!((other.status, &other.body["current"]["id"]), (409, &created["id"]));
    assert_eq!(server.post("/tasks", json!({ "job": "nobody" })).await.error().0, 404);
}

#[tokio::test]
async fn a_task_may_override_the_queue_and_priority_of_its_function() {
    let server = Server::start().await;
    let job = json!({ "name": "mail", "handler": "mail", "queue": "郵便", "priority": "low" });
    let created = server.post("/jobs", job).await.expect_status(201);
    assert_eq!((&created["queue"], &created["priority"]), (&json!("郵便"), &json!("low")));
    let task = async |more: Value| {
        let mut task = json!({ "job": "mail" });
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let run = server.post("/tasks", task).await.expect_status(201);
        (run["queue"].clone(), run["priority"].clone())
    };
    assert_eq!(task(json!({})).await, (json!("郵便"), json!("low")));
    assert_eq!(task(json!({ "priority": "highest" })).await, (json!("郵便"), json!("highest")));
    assert_eq!(task(json!({ "queue": "default" })).await, (json!("default"), json!("low")));
    let batch = json!({ "tasks": [{ "job": "mail" }, { "job": "mail", "queue": "q", "priority": "high" }] });
    let created = server.post("/tasks/batch", batch).await.expect_status(200);
    let run = server.get(&format!("/runs/{}", created["items"][1]["id"])).await.expect_status(200);
    assert_eq!((&run["queue"], &run["priority"]), (&json!("q"), &json!("high")));

    // A field that is patched to null has its default again. A command has neither queue nor priority.
    let patch = async |patch: Value| {
        let shown = server.get("/jobs/mail").await;
        let etag = shown.etag.clone().unwrap();
        let request = server.request(Method::PATCH, "/jobs/mail").header("If-Match", etag);
        send_request(request.json(&patch)).await.expect_status(200);
        server.get("/jobs/mail").await.expect_status(200)
    };
    let default = patch(json!({ "queue": null, "priority": null })).await;
    assert_eq!((&default["queue"], &default["priority"]), (&json!("default"), &json!("normal")));
    patch(json!({ "queue": "slow" })).await;
    let command = patch(json!({ "command": ["true"], "dispatch": "assign" })).await;
    assert_eq!((&command["queue"], &command["priority"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn a_batch_of_tasks_is_submitted_completely_or_not_at_all() {
    let server = Server::start().await;
    server.create_job("a").await;
    let tasks = json!({ "tasks": [
        { "job": "a" }, { "job": "a", "idempotency_key": "k" }, { "job": "a", "idempotency_key": "k" },
    ] });
    let created = server.post("/tasks/batch", tasks).await.expect_status(200);
    let existed: Vec<bool> = created["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["existed"].as_bool().unwrap())
        .collect();
    assert_eq!(existed, [false, false, true]);
    let before = server.count_stored().await;
    for (tasks, refusal) in [
        (json!([]), (422, "invalid_input", "tasks")),
        (json!([{ "job": "a" }, { "job": "nobody" }]), (404, "not_found", "")),
        (
            json!([{ "job": "a" }, { "job": "a", "scheduled_for": "soon" }]),
            (422, "invalid_input", "tasks[1].scheduled_for"),
        ),
        (
            json!([{ "job": "a" }, { "job": "a", "queue": "a/b" }]),
            (422, "invalid_input", "tasks[1].queue"),
        ),
        (
            json!([{ "job": "a" }, { "job": "a", "prio": 1 }]),
            (422, "invalid_input", "tasks[1].prio"),
        ),
        (json!(vec![json!({ "job": "a" }); 1_001]), (422, "invalid_input", "tasks")),
    ] {
        let refused = server.post("/tasks/batch", json!({ "tasks": tasks })).await;
        assert_eq!(refused.error(), refusal);
    }
    assert_eq!(server.count_stored().await, before);
}

#[tokio::test]
async fn a_disabled_job_refuses_tasks_but_can_be_triggered() {
    let server = Server::start().await;
    server.create_job("a").await;
    server.change(Method::POST, "/jobs/a/disable", "*", None).await.expect_status(200);
    let refused = server.post("/tasks", json!({ "job": "a" })).await;
    assert_eq!((refused.status, &refused.body["current"]["enabled"]), (409, &json!(false)));
    let run = send_request(
        server.request(Method::POST, "/jobs/a/trigger").header("Idempotency-Key", "t"),
    )
    .await
    .expect_status(201);
    assert_eq!((&run["origin"], &run["job"]), (&json!("manual"), &json!("a")));
    let again = send_request(
        server.request(Method::POST, "/jobs/a/trigger").header("Idempotency-Key", "t"),
    )
    .await;
    assert_eq!(again.expect_status(200)["id"], run["id"]);
    let triggered =
        server.post("/jobs/a/trigger", json!({ "args": { "x": [1] } })).await.expect_status(201);
    assert_eq!(triggered["args"], json!({ "x": [1] }));
    let response = server.get("/audit?limit=200").await.expect_status(200);
    let triggers =
        response["items"].as_array().unwrap().iter().filter(|row| row["action"] == "trigger");
    assert_eq!(triggers.count(), 2, "a repeated trigger has no audit entry of its own");
}

#[tokio::test]
async fn a_run_is_shown_with_its_attempts_and_listed_by_filters() {
    let server = Server::start().await;
    server.create_job("a").await;
    server.create_job("b").await;
    let run = server.submit_task("a").await;
    let mut worker = FakeWorker::new(&server.store).await;
    assert_eq!(worker.claim().await[0].0, run);
    let running = server.get(&format!("/runs/{run}")).await.expect_status(200);
    assert_eq!(running["locked_by"], worker.id.to_string());
    assert!(running["heartbeat_at"].is_string(), "{running}");
    assert_eq!(running["executions"][0]["outcome"], Value::Null);
    worker.finish(tasuki_core::RunId(run), failed()).await;
    let ended = server.get(&format!("/runs/{run}")).await.expect_status(200);
    assert_eq!((&ended["state"], &ended["exit_code"]), (&json!("FAILED"), &json!(3)));
    assert_eq!((&ended["error_message"], &ended["heartbeat_at"]), (&json!("no"), &Value::Null));
    assert_eq!(ended["executions"][0]["error_code"], "UNEXPECTED_ERROR");

    for _ in 0..3 {
        server.submit_task("b").await;
    }
    let listed = async |query: &str| {
        let page = server.get(&format!("/runs?{query}")).await.expect_status(200);
        page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|run| run["id"].as_i64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(listed("job=a").await, [run]);
    assert_eq!(listed("state=FAILED,TIMED_OUT").await, [run]);
    assert_eq!(listed("state=PENDING&job=b").await.len(), 3);
    assert_eq!(listed("origin=time").await.len(), 0);
    assert_eq!(listed("scope=tenant/42").await.len(), 0);
    assert_eq!(listed("since=2999-01-01T00:00:00Z").await.len(), 0);
    assert_eq!(listed("until=2999-01-01T00:00:00Z&scope=global/global&origin=task").await.len(), 4);
    let first = server.get("/runs?limit=3").await.expect_status(200);
    assert_eq!(first["items"].as_array().unwrap().len(), 3);
    let cursor = first["next"].as_str().unwrap();
    assert_eq!(listed(&format!("limit=3&cursor={cursor}")).await, [run]);
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=x", "limit"),
        ("cursor=what", "cursor"),
        ("state=DONE", "state"),
        ("origin=chance", "origin"),
        ("scope=tenant", "scope"),
        ("since=yesterday", "since"),
        ("stat=FAILED", "stat"),
    ] {
        assert_eq!(server.get(&format!("/runs?{query}")).await.error(), (400, "malformed", field));
    }
    assert_eq!(server.get("/runs?job=nobody").await.error().0, 404);
    for path in ["/runs/99", "/runs/0", "/runs/x", "/runs/99999999999999999999", "/runs/99/explain"]
    {
        assert_eq!(server.get(path).await.error().0, 404, "{path}");
    }
}

#[tokio::test]
async fn a_run_is_canceled_once() {
    let server = Server::start().await;
    server.create_job("a").await;
    let waiting = server.submit_task("a").await;
    let body = json!({ "reason": "wrong day" });
    let done =
        server.post(&format!("/runs/{waiting}/cancel"), body.clone()).await.expect_status(200);
    assert_eq!((&done["done"], &done["run"]["state"]), (&json!(true), &json!("CANCELED")));
    let lost = server.post(&format!("/runs/{waiting}/cancel"), body).await;
    assert_eq!((lost.status, &lost.body["current"]["state"]), (409, &json!("CANCELED")));

    let running = server.submit_task("a").await;
    FakeWorker::new(&server.store).await.claim().await;
    let requested = send_request(server.request(Method::POST, &format!("/runs/{running}/cancel")))
        .await
        .expect_status(200);
    assert_eq!(
        (&requested["done"], &requested["run"]["state"]),
        (&json!(false), &json!("RUNNING"))
    );
    assert!(requested["run"]["cancel_requested_at"].is_string());
    let again =
        send_request(server.request(Method::POST, &format!("/runs/{running}/cancel"))).await;
    assert_eq!(again.body["detail"], format!("a cancel of run {running} was already requested"));
    assert_eq!(server.post("/runs/99/cancel", json!({})).await.error().0, 404);
}

#[tokio::test]
async fn only_failed_runs_can_be_retried_and_only_ended_runs_can_be_rerun() {
    let server = Server::start().await;
    server.create_job("a").await;
    let run = server.submit_task("a").await;
    for verb in ["retry", "rerun"] {
        let lost = send_request(server.request(Method::POST, &format!("/runs/{run}/{verb}"))).await;
        assert_eq!(
            (lost.status, &lost.body["current"]["state"]),
            (409, &json!("PENDING")),
            "{verb}"
        );
    }
    let mut worker = FakeWorker::new(&server.store).await;
    let id = worker.claim().await[0];
    worker.finish(id, failed()).await;
    let retried = server
        .post(&format!("/runs/{run}/retry"), json!({ "reason": "again" }))
        .await
        .expect_status(200);
    assert_eq!(
        (&retried["run"]["state"], &retried["run"]["tries_allowed"]),
        (&json!("RETRY_WAIT"), &json!(2))
    );
    worker.claim().await;
    worker
        .finish(
            id,
            AttemptResult { result: Some(r#"{"rows":17}"#.to_owned()), ..AttemptResult::default() },
        )
        .await;
    let ended = server.get(&format!("/runs/{run}")).await.expect_status(200);
    assert_eq!((&ended["state"], &ended["result"]), (&json!("SUCCEEDED"), &json!({ "rows": 17 })));
    assert_eq!(ended["executions"].as_array().unwrap().len(), 2);
    assert_eq!(ended["notes"][0]["verb"], "retry");
    assert_eq!(server.post(&format!("/runs/{run}/retry"), json!({})).await.status, 409);
    let rerun = send_request(server.request(Method::POST, &format!("/runs/{run}/rerun")))
        .await
        .expect_status(201);
    assert_eq!((&rerun["rerun_of"], &rerun["origin"]), (&json!(run), &json!("rerun")));
    server.change(Method::DELETE, "/jobs/a", "*", None).await.expect_status(200);
    assert_eq!(
        send_request(server.request(Method::POST, &format!("/runs/{run}/rerun"))).await.status,
        409
    );
}

#[tokio::test]
async fn a_wait_ends_with_the_run_or_with_its_timeout() {
    let server = Server::start().await;
    server.create_job("a").await;
    let run = server.submit_task("a").await;
    let waited = server.get(&format!("/runs/{run}/wait?timeout=50ms")).await.expect_status(200);
    assert_eq!(waited["state"], "PENDING");
    let path = format!("/runs/{run}/wait?timeout=20s");
    let started = Instant::now();
    let finish = async {
        let mut worker = FakeWorker::new(&server.store).await;
        let id = worker.claim().await[0];
        worker.finish(id, AttemptResult::default()).await;
    };
    let (waited, ()) = tokio::join!(server.get(&path), finish);
    assert_eq!(waited.expect_status(200)["state"], "SUCCEEDED");
    assert!(started.elapsed() < Duration::from_secs(10));
    for timeout in ["61s", "-1s", "soon", ""] {
        let refused = server.get(&format!("/runs/{run}/wait?timeout={timeout}")).await;
        assert_eq!(refused.error(), (400, "malformed", "timeout"), "{timeout}");
    }
    assert_eq!(server.get("/runs/99/wait").await.error().0, 404);
}

#[tokio::test]
async fn a_run_is_explained() {
    let server = Server::start().await;
    server.create_job("a").await;
    let run = server.submit_task("a").await;
    let response = server.get(&format!("/runs/{run}/explain")).await.expect_status(200);
    assert_eq!((&response["run"], &response["state"]), (&json!(run), &json!("PENDING")));
    let sentences = response["sentences"].as_array().unwrap();
    assert!(
        sentences[0].as_str().unwrap().starts_with("run 1 was submitted as a task of job a"),
        "{response}"
    );
    assert!(
        sentences.last().unwrap().as_str().unwrap().contains("no worker is active"),
        "{response}"
    );
}
