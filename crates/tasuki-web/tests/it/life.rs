//! The process: ready while its database is, and gone in order.

use reqwest::Method;

use crate::workshop::{Server, answer};

#[tokio::test]
async fn a_server_whose_database_is_gone_lives_but_is_not_ready() {
    let server = Server::start().await;
    server.given_job("a").await;
    server.store.close().await;
    assert_eq!(answer(server.stranger(Method::GET, "/healthz")).await.status, 200);
    assert_eq!(answer(server.stranger(Method::GET, "/readyz")).await.refusal().1, "unavailable");
    let refused = server.get("/jobs/a").await;
    assert!(refused.status >= 500, "{refused:?}");
    assert!(!refused.body.to_string().contains("sqlite"), "nothing inside is told: {refused:?}");
}

#[tokio::test]
async fn answers_are_kept_by_nobody() {
    let server = Server::start().await;
    let answer = server.ask(Method::GET, "/jobs").send().await.unwrap();
    assert_eq!(answer.headers()["cache-control"], "no-store");
    assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
}

#[tokio::test]
async fn a_server_that_stops_takes_nothing_new() {
    let mut server = Server::start().await;
    server.get("/me").await.ok(200);
    server.stop().await;
    assert!(server.ask(Method::GET, "/me").send().await.is_err());
}
