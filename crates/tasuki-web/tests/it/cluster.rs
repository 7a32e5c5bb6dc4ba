//! Workers, the lead and settings.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tasuki_core::Epoch;

use crate::workshop::{Hand, Server, answer};

#[tokio::test]
async fn workers_are_shown_drained_and_cut_off() {
    let server = Server::start().await;
    server.given_job("a").await;
    server.given_task("a").await;
    let mut hand = Hand::new(&server.store).await;
    hand.claim().await;
    let path = format!("/workers/{}", hand.id);
    let worker = server.get(&path).await.ok(200);
    assert_eq!((&worker["state"], &worker["leases"]), (&json!("active"), &json!(1)));
    assert_eq!(server.get("/workers").await.ok(200), json!({ "items": [worker] }));
    let drained = answer(server.ask(Method::POST, &format!("{path}/drain"))).await.ok(200);
    assert_eq!(drained["state"], "draining");
    let again = answer(server.ask(Method::POST, &format!("{path}/drain"))).await;
    assert_eq!((again.status, &again.body["current"]["state"]), (409, &json!("draining")));
    let why = json!({ "reason": "on fire" });
    let cut_off = server.post(&format!("{path}/detach"), why.clone()).await.ok(200);
    assert_eq!(cut_off["state"], "detached");
    assert_eq!(server.post(&format!("{path}/detach"), why.clone()).await.status, 409);
    assert_eq!(server.post(&format!("{path}/detach"), json!({})).await.refusal().2, "reason");
    let nobody = "/workers/00000000-0000-4000-8000-000000000000";
    assert_eq!(server.get(nobody).await.refusal().0, 404);
    assert_eq!(server.post(&format!("{nobody}/detach"), why).await.refusal().0, 404);
    assert_eq!(server.get("/workers/x").await.refusal().0, 404);
}

#[tokio::test]
async fn the_lead_is_taken_only_from_whom_it_was_seen_with() {
    let server = Server::start().await;
    let nobody = server.get("/leader").await.ok(200);
    assert_eq!(
        (&nobody["epoch"], &nobody["holder"], &nobody["terms"]),
        (&json!(0), &Value::Null, &json!([]))
    );
    let hand = Hand::new(&server.store).await;
    let ttl = Duration::from_secs(60);
    server.store.mint(hand.id, Epoch(0), Epoch(0), ttl).await.unwrap().unwrap();
    let lead = server.get("/leader").await.ok(200);
    assert_eq!((&lead["epoch"], &lead["holder"]), (&json!(1), &json!(hand.id.to_string())));
    assert_eq!(lead["terms"][0]["epoch"], 1);
    let lost = server.post("/leader/demote", json!({ "epoch": 7, "reason": "slow" })).await;
    assert_eq!((lost.status, &lost.body["current"]["epoch"]), (409, &json!(1)));
    let gone = server.post("/leader/demote", json!({ "epoch": 1, "reason": "slow" })).await.ok(200);
    assert!(gone["lease_until"].as_str() <= gone["clock"].as_str(), "{gone}");
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
    let shown = shown.ok(200);
    let tick = &shown["settings"]["leader_tick"];
    assert_eq!(
        (&tick["value"], &tick["min"], &tick["max"]),
        (&json!("1s"), &json!("10ms"), &json!("1m"))
    );
    assert_eq!(&server.get("/settings/leader_tick").await.ok(200), tick);
    assert_eq!(server.get("/settings/leader_tik").await.refusal().0, 404);

    let put = async |seen: &str, body: Value| {
        server.change(Method::PUT, "/settings", seen, Some(body)).await
    };
    let changed =
        put("\"0\"", json!({ "leader_tick": "500ms", "max_releases": "5" })).await.ok(200);
    assert_eq!(
        (&changed["version"], &changed["settings"]["leader_tick"]["value"]),
        (&json!(1), &json!("500ms"))
    );
    let lost = put("\"0\"", json!({ "leader_tick": "3s" })).await;
    assert_eq!((lost.status, &lost.body["current"]["version"]), (409, &json!(1)));
    let wrong =
        put("*", json!({ "leader_tik": "1s", "lease_ttl": "soon", "max_releases": "7" })).await;
    assert_eq!(wrong.refusal(), (422, "invalid_input", "settings"));
    assert_eq!(wrong.body["problems"].as_array().unwrap().len(), 2);
    let together = put("*", json!({ "heartbeat_ttl": "2s" })).await;
    assert!(
        together.body["detail"].as_str().unwrap().contains("at least three times"),
        "{together:?}"
    );
    assert_eq!(
        put("*", json!({ "leader_tick": 1 })).await.refusal(),
        (422, "invalid_input", "leader_tick")
    );
    let missing =
        answer(server.ask(Method::PUT, "/settings").json(&json!({ "leader_tick": "1s" }))).await;
    assert_eq!(missing.status, 428);
    assert_eq!(server.get("/settings").await.ok(200), changed);
}

#[tokio::test]
async fn events_are_told_once_and_listed() {
    let server = Server::start().await;
    server.given_job("a").await;
    let event = json!({ "type": "order.paid", "payload": { "n": 1.50 }, "dedupe_key": "k", "job": "a", "source": "shop" });
    let told = server.post("/events", event.clone()).await.ok(201);
    assert_eq!(told["existed"], false);
    let again = server.post("/events", event).await.ok(200);
    assert_eq!((&again["id"], &again["existed"]), (&told["id"], &json!(true)));
    let shown = server.get(&format!("/events/{}", told["id"])).await.ok(200);
    assert_eq!(
        (&shown["type"], &shown["job"], &shown["source"]),
        (&json!("order.paid"), &json!("a"), &json!("shop"))
    );
    assert_eq!((&shown["payload"], &shown["processed_at"]), (&json!({ "n": 1.5 }), &Value::Null));
    server.post("/events", json!({ "type": "plain" })).await.ok(201);
    let first = server.get("/events?limit=1").await.ok(200);
    assert_eq!(
        (&first["items"][0]["source"], &first["items"][0]["payload"]),
        (&json!("api"), &Value::Null)
    );
    let rest = server.get(&format!("/events?before={}", first["next"])).await.ok(200);
    assert_eq!((&rest["items"][0], &rest["next"]), (&shown, &Value::Null));
    assert_eq!(
        server.post("/events", json!({ "type": "x", "job": "nobody" })).await.refusal().0,
        404
    );
    assert_eq!(server.get("/events/99").await.refusal().0, 404);
    assert_eq!(server.get("/events?before=0").await.refusal(), (400, "malformed", "before"));
}
