//! Workers, the leader, settings and events.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tasuki_core::Epoch;

use crate::fixtures::{FakeWorker, Server, send_request};

#[tokio::test]
async fn workers_are_shown_drained_and_detached() {
    let server = Server::start().await;
    server.create_job("a").await;
    server.submit_task("a").await;
    let mut fake_worker = FakeWorker::new(&server.store).await;
    fake_worker.claim().await;
    let path = format!("/workers/{}", fake_worker.id);
    let worker = server.get(&path).await.expect_status(200);
    assert_eq!((&worker["state"], &worker["leases"]), (&json!("active"), &json!(1)));
    assert_eq!(server.get("/workers").await.expect_status(200), json!({ "items": [worker] }));
    let drained = send_request(server.request(Method::POST, &format!("{path}/drain")))
        .await
        .expect_status(200);
    assert_eq!(drained["state"], "draining");
    let again = send_request(server.request(Method::POST, &format!("{path}/drain"))).await;
    assert_eq!((again.status, &again.body["current"]["state"]), (409, &json!("draining")));
    let body = json!({ "reason": "on fire" });
    let detached = server.post(&format!("{path}/detach"), body.clone()).await.expect_status(200);
    assert_eq!(detached["state"], "detached");
    assert_eq!(server.post(&format!("{path}/detach"), body.clone()).await.status, 409);
    assert_eq!(server.post(&format!("{path}/detach"), json!({})).await.error().2, "reason");
    let unknown = "/workers/00000000-0000-4000-8000-000000000000";
    assert_eq!(server.get(unknown).await.error().0, 404);
    assert_eq!(server.post(&format!("{unknown}/detach"), body).await.error().0, 404);
    assert_eq!(server.get("/workers/x").await.error().0, 404);
}

#[tokio::test]
async fn only_the_term_with_the_given_epoch_is_ended() {
    let server = Server::start().await;
    let no_leader = server.get("/leader").await.expect_status(200);
    assert_eq!(
        (&no_leader["epoch"], &no_leader["holder"], &no_leader["terms"]),
        (&json!(0), &Value::Null, &json!([]))
    );
    let fake_worker = FakeWorker::new(&server.store).await;
    let ttl = Duration::from_secs(60);
    server.store.take_leadership(fake_worker.id, Epoch(0), Epoch(0), ttl).await.unwrap().unwrap();
    let leader = server.get("/leader").await.expect_status(200);
    assert_eq!(
        (&leader["epoch"], &leader["holder"]),
        (&json!(1), &json!(fake_worker.id.to_string()))
    );
    assert_eq!(leader["terms"][0]["epoch"], 1);
    let lost = server.post("/leader/demote", json!({ "epoch": 7, "reason": "slow" })).await;
    assert_eq!((lost.status, &lost.body["current"]["epoch"]), (409, &json!(1)));
    let ended = server
        .post("/leader/demote", json!({ "epoch": 1, "reason": "slow" }))
        .await
        .expect_status(200);
    assert!(ended["lease_until"].as_str() <= ended["clock"].as_str(), "{ended}");
    assert_eq!(
        server.post("/leader/demote", json!({ "epoch": 1, "reason": "slow" })).await.status,
        409
    );
}

#[tokio::test]
async fn settings_change_together_or_not_at_all() {
    let server = Server::start().await;
    let shown = server.get("/settings").await;
    assert_eq!(shown.etag.as_deref(), Some("\"0\""));
    let shown = shown.expect_status(200);
    let tick = &shown["settings"]["leader_tick"];
    assert_eq!(
        (&tick["value"], &tick["min"], &tick["max"]),
        (&json!("1s"), &json!("10ms"), &json!("1m"))
    );
    assert_eq!(&server.get("/settings/leader_tick").await.expect_status(200), tick);
    assert_eq!(server.get("/settings/leader_tik").await.error().0, 404);

    let put = async |if_match: &str, body: Value| {
        server.change(Method::PUT, "/settings", if_match, Some(body)).await
    };
    let changed = put("\"0\"", json!({ "leader_tick": "500ms", "max_releases": "5" }))
        .await
        .expect_status(200);
    assert_eq!(
        (&changed["version"], &changed["settings"]["leader_tick"]["value"]),
        (&json!(1), &json!("500ms"))
    );
    let lost = put("\"0\"", json!({ "leader_tick": "3s" })).await;
    assert_eq!((lost.status, &lost.body["current"]["version"]), (409, &json!(1)));
    let invalid =
        put("*", json!({ "leader_tik": "1s", "lease_ttl": "soon", "max_releases": "7" })).await;
    assert_eq!(invalid.error(), (422, "invalid_input", "settings"));
    assert_eq!(invalid.body["problems"].as_array().unwrap().len(), 2);
    let together = put("*", json!({ "heartbeat_ttl": "2s" })).await;
    assert!(
        together.body["detail"].as_str().unwrap().contains("at least three times"),
        "{together:?}"
    );
    assert_eq!(
        put("*", json!({ "leader_tick": 1 })).await.error(),
        (422, "invalid_input", "leader_tick")
    );
    let missing = send_request(
        server.request(Method::PUT, "/settings").json(&json!({ "leader_tick": "1s" })),
    )
    .await;
    assert_eq!(missing.status, 428);
    assert_eq!(server.get("/settings").await.expect_status(200), changed);
}

#[tokio::test]
async fn an_event_is_emitted_once_and_listed() {
    let server = Server::start().await;
    server.create_job("a").await;
    let event = json!({ "type": "order.paid", "payload": { "n": 1.50 }, "dedupe_key": "k", "job": "a", "source": "shop" });
    let emitted = server.post("/events", event.clone()).await.expect_status(201);
    assert_eq!(emitted["existed"], false);
    let again = server.post("/events", event).await.expect_status(200);
    assert_eq!((&again["id"], &again["existed"]), (&emitted["id"], &json!(true)));
    let shown = server.get(&format!("/events/{}", emitted["id"])).await.expect_status(200);
    assert_eq!(
        (&shown["type"], &shown["job"], &shown["source"]),
        (&json!("order.paid"), &json!("a"), &json!("shop"))
    );
    assert_eq!((&shown["payload"], &shown["processed_at"]), (&json!({ "n": 1.5 }), &Value::Null));
    server.post("/events", json!({ "type": "plain" })).await.expect_status(201);
    let first = server.get("/events?limit=1").await.expect_status(200);
    assert_eq!(
        (&first["items"][0]["source"], &first["items"][0]["payload"]),
        (&json!("api"), &Value::Null)
    );
    let rest = server.get(&format!("/events?before={}", first["next"])).await.expect_status(200);
    assert_eq!((&rest["items"][0], &rest["next"]), (&shown, &Value::Null));
    assert_eq!(
        server.post("/events", json!({ "type": "x", "job": "nobody" })).await.error().0,
        404
    );
    assert_eq!(server.get("/events/99").await.error().0, 404);
    assert_eq!(server.get("/events?before=0").await.error(), (400, "malformed", "before"));
}
