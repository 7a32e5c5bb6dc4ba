//! Runs: asked for, listed, canceled, tried again, run again, waited for, explained.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tasuki_core::ErrorCode;
use tasuki_core::exit::Failure;
use tasuki_store::AttemptResult;

use crate::workshop::{Hand, Server, answer};

fn failed() -> AttemptResult {
    let failure = Failure { code: ErrorCode::UNEXPECTED_ERROR, retryable: true };
    AttemptResult { exit_code: Some(3), error_message: Some("no".to_owned()), ..AttemptResult::failed(failure) }
}

#[tokio::test]
async fn a_task_is_submitted_once_however_often_it_is_sent() {
    let server = Server::start().await;
    server.given_job("a").await;
    server.given_job("b").await;
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
        answer(server.ask(Method::POST, "/tasks").header("Idempotency-Key", "k1").json(&body)).await
    };
    let made = send("a").await.ok(201);
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
        assert_eq!(made[field], expected, "{field}");
    }
    assert_eq!(send("a").await.ok(200), made);
    let other = send("b").await;
    assert_eq!((other.status, &other.body["current"]["id"]), (409, &made["id"]));
    assert_eq!(server.post("/tasks", json!({ "job": "nobody" })).await.refusal().0, 404);
}

#[tokio::test]
async fn a_function_has_a_queue_and_a_priority_and_a_task_may_say_others() {
    let server = Server::start().await;
    let job = json!({ "name": "mail", "handler": "mail", "queue": "郵便", "priority": "low" });
    let made = server.post("/jobs", job).await.ok(201);
    assert_eq!((&made["queue"], &made["priority"]), (&json!("郵便"), &json!("low")));
    let task = async |more: Value| {
        let mut task = json!({ "job": "mail" });
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let run = server.post("/tasks", task).await.ok(201);
        (run["queue"].clone(), run["priority"].clone())
    };
    assert_eq!(task(json!({})).await, (json!("郵便"), json!("low")));
    assert_eq!(task(json!({ "priority": "highest" })).await, (json!("郵便"), json!("highest")));
    assert_eq!(task(json!({ "queue": "default" })).await, (json!("default"), json!("low")));
    let batch = json!({ "tasks": [{ "job": "mail" }, { "job": "mail", "queue": "q", "priority": "high" }] });
    let made = server.post("/tasks/batch", batch).await.ok(200);
    let run = server.get(&format!("/runs/{}", made["items"][1]["id"])).await.ok(200);
    assert_eq!((&run["queue"], &run["priority"]), (&json!("q"), &json!("high")));

    // What is patched away is as usual again, and a command has neither.
    let patch = async |patch: Value| {
        let shown = server.get("/jobs/mail").await;
        let etag = shown.etag.clone().unwrap();
        let request = server.ask(Method::PATCH, "/jobs/mail").header("If-Match", etag);
        answer(request.json(&patch)).await.ok(200);
        server.get("/jobs/mail").await.ok(200)
    };
    let usual = patch(json!({ "queue": null, "priority": null })).await;
    assert_eq!((&usual["queue"], &usual["priority"]), (&json!("default"), &json!("normal")));
    patch(json!({ "queue": "slow" })).await;
    let command = patch(json!({ "command": ["true"], "dispatch": "assign" })).await;
    assert_eq!((&command["queue"], &command["priority"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn many_tasks_are_submitted_together_or_not_at_all() {
    let server = Server::start().await;
    server.given_job("a").await;
    let tasks = json!({ "tasks": [
        { "job": "a" }, { "job": "a", "idempotency_key": "k" }, { "job": "a", "idempotency_key": "k" },
    ] });
    let made = server.post("/tasks/batch", tasks).await.ok(200);
    let existed: Vec<bool> = made["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["existed"].as_bool().unwrap())
        .collect();
    assert_eq!(existed, [false, false, true]);
    let before = server.stored().await;
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
        assert_eq!(refused.refusal(), refusal);
    }
    assert_eq!(server.stored().await, before);
}

#[tokio::test]
async fn a_job_that_is_off_takes_no_tasks_but_runs_by_hand() {
    let server = Server::start().await;
    server.given_job("a").await;
    server.change(Method::POST, "/jobs/a/disable", "*", None).await.ok(200);
    let refused = server.post("/tasks", json!({ "job": "a" })).await;
    assert_eq!((refused.status, &refused.body["current"]["enabled"]), (409, &json!(false)));
    let run = answer(server.ask(Method::POST, "/jobs/a/trigger").header("Idempotency-Key", "t"))
        .await
        .ok(201);
    assert_eq!((&run["origin"], &run["job"]), (&json!("manual"), &json!("a")));
    let again =
        answer(server.ask(Method::POST, "/jobs/a/trigger").header("Idempotency-Key", "t")).await;
    assert_eq!(again.ok(200)["id"], run["id"]);
    let given = server.post("/jobs/a/trigger", json!({ "args": { "x": [1] } })).await.ok(201);
    assert_eq!(given["args"], json!({ "x": [1] }));
    let told = server.get("/audit?limit=200").await.ok(200);
    let triggers =
        told["items"].as_array().unwrap().iter().filter(|row| row["action"] == "trigger");
    assert_eq!(triggers.count(), 2, "what existed is told once");
}

#[tokio::test]
async fn a_run_is_shown_with_its_attempts_and_listed_by_what_is_asked() {
    let server = Server::start().await;
    server.given_job("a").await;
    server.given_job("b").await;
    let run = server.given_task("a").await;
    let mut hand = Hand::new(&server.store).await;
    assert_eq!(hand.claim().await[0].0, run);
    let carried = server.get(&format!("/runs/{run}")).await.ok(200);
    assert_eq!(carried["locked_by"], hand.id.to_string());
    assert!(carried["heartbeat_at"].is_string(), "{carried}");
    assert_eq!(carried["executions"][0]["outcome"], Value::Null);
    hand.finish(tasuki_core::RunId(run), failed()).await;
    let ended = server.get(&format!("/runs/{run}")).await.ok(200);
    assert_eq!((&ended["state"], &ended["exit_code"]), (&json!("FAILED"), &json!(3)));
    assert_eq!((&ended["error_message"], &ended["heartbeat_at"]), (&json!("no"), &Value::Null));
    assert_eq!(ended["executions"][0]["error_code"], "UNEXPECTED_ERROR");

    for _ in 0..3 {
        server.given_task("b").await;
    }
    let listed = async |query: &str| {
        let page = server.get(&format!("/runs?{query}")).await.ok(200);
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
    let first = server.get("/runs?limit=3").await.ok(200);
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
        assert_eq!(
            server.get(&format!("/runs?{query}")).await.refusal(),
            (400, "malformed", field)
        );
    }
    assert_eq!(server.get("/runs?job=nobody").await.refusal().0, 404);
    for path in ["/runs/99", "/runs/0", "/runs/x", "/runs/99999999999999999999", "/runs/99/explain"]
    {
        assert_eq!(server.get(path).await.refusal().0, 404, "{path}");
    }
}

#[tokio::test]
async fn a_run_is_canceled_once() {
    let server = Server::start().await;
    server.given_job("a").await;
    let waiting = server.given_task("a").await;
    let why = json!({ "reason": "wrong day" });
    let done = server.post(&format!("/runs/{waiting}/cancel"), why.clone()).await.ok(200);
    assert_eq!((&done["done"], &done["run"]["state"]), (&json!(true), &json!("CANCELED")));
    let lost = server.post(&format!("/runs/{waiting}/cancel"), why).await;
    assert_eq!((lost.status, &lost.body["current"]["state"]), (409, &json!("CANCELED")));

    let running = server.given_task("a").await;
    Hand::new(&server.store).await.claim().await;
    let asked = answer(server.ask(Method::POST, &format!("/runs/{running}/cancel"))).await.ok(200);
    assert_eq!((&asked["done"], &asked["run"]["state"]), (&json!(false), &json!("RUNNING")));
    assert!(asked["run"]["cancel_requested_at"].is_string());
    let again = answer(server.ask(Method::POST, &format!("/runs/{running}/cancel"))).await;
    assert_eq!(again.body["detail"], format!("run {running} has been asked to stop already"));
    assert_eq!(server.post("/runs/99/cancel", json!({})).await.refusal().0, 404);
}

#[tokio::test]
async fn only_what_ended_badly_is_tried_again_and_only_what_ended_runs_again() {
    let server = Server::start().await;
    server.given_job("a").await;
    let run = server.given_task("a").await;
    for verb in ["retry", "rerun"] {
        let lost = answer(server.ask(Method::POST, &format!("/runs/{run}/{verb}"))).await;
        assert_eq!(
            (lost.status, &lost.body["current"]["state"]),
            (409, &json!("PENDING")),
            "{verb}"
        );
    }
    let mut hand = Hand::new(&server.store).await;
    let id = hand.claim().await[0];
    hand.finish(id, failed()).await;
    let retried =
        server.post(&format!("/runs/{run}/retry"), json!({ "reason": "again" })).await.ok(200);
    assert_eq!(
        (&retried["run"]["state"], &retried["run"]["tries_allowed"]),
        (&json!("RETRY_WAIT"), &json!(2))
    );
    hand.claim().await;
    hand.finish(id, AttemptResult { result: Some(r#"{"rows":17}"#.to_owned()), ..AttemptResult::default() })
        .await;
    let ended = server.get(&format!("/runs/{run}")).await.ok(200);
    assert_eq!((&ended["state"], &ended["result"]), (&json!("SUCCEEDED"), &json!({ "rows": 17 })));
    assert_eq!(ended["executions"].as_array().unwrap().len(), 2);
    assert_eq!(ended["notes"][0]["verb"], "retry");
    assert_eq!(server.post(&format!("/runs/{run}/retry"), json!({})).await.status, 409);
    let rerun = answer(server.ask(Method::POST, &format!("/runs/{run}/rerun"))).await.ok(201);
    assert_eq!((&rerun["rerun_of"], &rerun["origin"]), (&json!(run), &json!("rerun")));
    server.change(Method::DELETE, "/jobs/a", "*", None).await.ok(200);
    assert_eq!(answer(server.ask(Method::POST, &format!("/runs/{run}/rerun"))).await.status, 409);
}

#[tokio::test]
async fn a_wait_ends_with_the_run_or_with_the_time() {
    let server = Server::start().await;
    server.given_job("a").await;
    let run = server.given_task("a").await;
    let waited = server.get(&format!("/runs/{run}/wait?timeout=50ms")).await.ok(200);
    assert_eq!(waited["state"], "PENDING");
    let path = format!("/runs/{run}/wait?timeout=20s");
    let began = Instant::now();
    let finish = async {
        let mut hand = Hand::new(&server.store).await;
        let id = hand.claim().await[0];
        hand.finish(id, AttemptResult::default()).await;
    };
    let (waited, ()) = tokio::join!(server.get(&path), finish);
    assert_eq!(waited.ok(200)["state"], "SUCCEEDED");
    assert!(began.elapsed() < Duration::from_secs(10));
    for timeout in ["61s", "-1s", "soon", ""] {
        let refused = server.get(&format!("/runs/{run}/wait?timeout={timeout}")).await;
        assert_eq!(refused.refusal(), (400, "malformed", "timeout"), "{timeout}");
    }
    assert_eq!(server.get("/runs/99/wait").await.refusal().0, 404);
}

#[tokio::test]
async fn a_run_is_explained() {
    let server = Server::start().await;
    server.given_job("a").await;
    let run = server.given_task("a").await;
    let told = server.get(&format!("/runs/{run}/explain")).await.ok(200);
    assert_eq!((&told["run"], &told["state"]), (&json!(run), &json!("PENDING")));
    let sentences = told["sentences"].as_array().unwrap();
    assert!(
        sentences[0].as_str().unwrap().starts_with("run 1 was submitted as a task of job a"),
        "{told}"
    );
    assert!(sentences.last().unwrap().as_str().unwrap().contains("no worker is active"), "{told}");
}
