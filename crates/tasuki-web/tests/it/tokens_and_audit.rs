//! Tokens and the audit.

use reqwest::Method;
use serde_json::json;
use tasuki::operator::AccessRole;

use crate::fixtures::{Server, send_request};

#[tokio::test]
async fn a_token_is_shown_once_and_works_until_it_is_revoked() {
    let server = Server::start().await;
    let body = json!({ "name": "deploy", "role": "operator", "expires_in": "30d" });
    let created = server.post("/tokens", body).await.expect_status(201);
    let secret = created["token"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("tsk_") && secret.len() == 68);
    let listed = server.get("/tokens").await.expect_status(200);
    assert!(!listed.to_string().contains(&secret));
    let mine = &listed["items"][1];
    assert_eq!(
        (&mine["name"], &mine["created_by"], &mine["revoked_at"]),
        (&json!("deploy"), &json!("admin"), &json!(null))
    );

    let me = || server.request_without_token(Method::GET, "/api/v1/me");
    let response = send_request(me().bearer_auth(&secret)).await.expect_status(200);
    assert_eq!(response, json!({ "name": "deploy", "role": "operator" }));
    assert!(server.get("/tokens").await.expect_status(200)["items"][1]["last_used_at"].is_string());
    let path = format!("/tokens/{}", created["id"]);
    let revoked = send_request(server.request(Method::DELETE, &path)).await.expect_status(200);
    assert!(revoked["revoked_at"].is_string());
    assert_eq!(
        send_request(me().bearer_auth(&secret)).await.error(),
        (401, "unauthorized", "Authorization")
    );
    let again = send_request(server.request(Method::DELETE, &path)).await.expect_status(200);
    assert_eq!(again["revoked_at"], revoked["revoked_at"]);
    assert_eq!(send_request(server.request(Method::DELETE, "/tokens/99")).await.error().0, 404);
}

#[tokio::test]
async fn an_audit_entry_contains_the_actor_and_the_address() {
    let server = Server::start().await;
    server.create_job("a").await;
    let token = server.create_token(AccessRole::Operator).await;
    let request =
        server.request_without_token(Method::POST, "/api/v1/jobs/a/pause").bearer_auth(&token);
    let body = json!({ "reason": "holiday" });
    send_request(request.header("If-Match", "*").json(&body)).await.expect_status(200);
    let response = server.get("/audit?limit=200").await.expect_status(200);
    let last = response["items"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["actor"], &last["action"]), (&json!("operator"), &json!("pause")));
    assert_eq!((&last["object"], &last["address"]), (&json!("job 1"), &json!("127.0.0.1")));
    assert_eq!(last["after"]["paused_reason"], "holiday");
    let seq = last["seq"].as_i64().unwrap();
    let first = server.get("/audit?limit=1").await.expect_status(200);
    assert_eq!((&first["items"][0]["seq"], &first["next"]), (&json!(1), &json!(1)));
    let rest = server.get(&format!("/audit?after={}", seq - 1)).await.expect_status(200);
    assert_eq!((&rest["items"][0], &rest["next"]), (last, &json!(null)));
    assert_eq!(server.get("/audit?after=x").await.error(), (400, "malformed", "after"));
}
