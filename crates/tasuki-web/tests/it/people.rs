//! Tokens and the audit.

use reqwest::Method;
use serde_json::json;
use tasuki::operator::Role;

use crate::workshop::{Server, answer};

#[tokio::test]
async fn a_token_is_shown_once_counts_and_can_be_revoked() {
    let server = Server::start().await;
    let body = json!({ "name": "deploy", "role": "operator", "expires_in": "30d" });
    let given = server.post("/tokens", body).await.ok(201);
    let secret = given["token"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("tsk_") && secret.len() == 68);
    let listed = server.get("/tokens").await.ok(200);
    assert!(!listed.to_string().contains(&secret));
    let mine = &listed["items"][1];
    assert_eq!(
        (&mine["name"], &mine["created_by"], &mine["revoked_at"]),
        (&json!("deploy"), &json!("admin"), &json!(null))
    );

    let me = || server.stranger(Method::GET, "/api/v1/me");
    let told = answer(me().bearer_auth(&secret)).await.ok(200);
    assert_eq!(told, json!({ "name": "deploy", "role": "operator" }));
    assert!(server.get("/tokens").await.ok(200)["items"][1]["last_used_at"].is_string());
    let path = format!("/tokens/{}", given["id"]);
    let revoked = answer(server.ask(Method::DELETE, &path)).await.ok(200);
    assert!(revoked["revoked_at"].is_string());
    assert_eq!(
        answer(me().bearer_auth(&secret)).await.refusal(),
        (401, "unauthorized", "Authorization")
    );
    let again = answer(server.ask(Method::DELETE, &path)).await.ok(200);
    assert_eq!(again["revoked_at"], revoked["revoked_at"]);
    assert_eq!(answer(server.ask(Method::DELETE, "/tokens/99")).await.refusal().0, 404);
}

#[tokio::test]
async fn what_was_done_is_told_with_who_and_from_where() {
    let server = Server::start().await;
    server.given_job("a").await;
    let token = server.token_of(Role::Operator).await;
    let request = server.stranger(Method::POST, "/api/v1/jobs/a/pause").bearer_auth(&token);
    let body = json!({ "reason": "holiday" });
    answer(request.header("If-Match", "*").json(&body)).await.ok(200);
    let told = server.get("/audit?limit=200").await.ok(200);
    let last = told["items"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["actor"], &last["action"]), (&json!("operator"), &json!("pause")));
    assert_eq!((&last["object"], &last["address"]), (&json!("job 1"), &json!("127.0.0.1")));
    assert_eq!(last["after"]["paused_reason"], "holiday");
    let seq = last["seq"].as_i64().unwrap();
    let first = server.get("/audit?limit=1").await.ok(200);
    assert_eq!((&first["items"][0]["seq"], &first["next"]), (&json!(1), &json!(1)));
    let rest = server.get(&format!("/audit?after={}", seq - 1)).await.ok(200);
    assert_eq!((&rest["items"][0], &rest["next"]), (last, &json!(null)));
    assert_eq!(server.get("/audit?after=x").await.refusal(), (400, "malformed", "after"));
}
