//! The process: ready while its database is, and gone in order.

use std::time::Duration;

use reqwest::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

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

/// Whoever says nothing, or half of something, does not hold up a stop.
#[tokio::test]
async fn half_a_request_is_not_waited_for() {
    let mut server = Server::start().await;
    let address = server.url.trim_start_matches("http://").to_owned();
    let token = server.token_of(tasuki::operator::Role::Author).await;
    let half_a_body = format!(
        "POST /api/v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: 99\r\nexpect: 100-continue\r\n\r\n{{\"type"
    );
    let mut stalled = Vec::new();
    for said in ["", "GET /api/v1/me HTTP/1.1\r\nauthoriz", &half_a_body] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        stalled.push(stream);
    }
    // The handler reads the body: it has asked for the rest.
    let last = stalled.last_mut().unwrap();
    let mut go_on = [0; 25];
    last.read_exact(&mut go_on).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    let took = server.stop().await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    let mut told = String::new();
    stalled.pop().unwrap().read_to_string(&mut told).await.unwrap();
    assert!(told.starts_with("HTTP/1.1 408") && told.contains("the server stops"), "{told}");
    assert_eq!(server.stored().await[2], 0, "nothing was done");
}
