//! Health checks and shutdown of the server.

use std::time::Duration;

use reqwest::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fixtures::{Server, send_request};

#[tokio::test]
async fn a_server_without_its_database_is_live_but_not_ready() {
    let server = Server::start().await;
    server.create_job("a").await;
    server.store.close().await;
    assert_eq!(
        send_request(server.request_without_token(Method::GET, "/healthz")).await.status,
        200
    );
    assert_eq!(
        send_request(server.request_without_token(Method::GET, "/readyz")).await.error().1,
        "unavailable"
    );
    let refused = server.get("/jobs/a").await;
    assert!(refused.status >= 500, "{refused:?}");
    assert!(
        !refused.body.to_string().contains("sqlite"),
        "no internal detail is shown: {refused:?}"
    );
}

#[tokio::test]
async fn responses_must_not_be_cached() {
    let server = Server::start().await;
    let answer = server.request(Method::GET, "/jobs").send().await.unwrap();
    assert_eq!(answer.headers()["cache-control"], "no-store");
    assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
}

#[tokio::test]
async fn a_stopped_server_refuses_requests() {
    let mut server = Server::start().await;
    server.get("/me").await.expect_status(200);
    server.stop().await;
    assert!(server.request(Method::GET, "/me").send().await.is_err());
}

/// A client that sends nothing, or a part of a request, does not delay the shutdown.
#[tokio::test]
async fn the_shutdown_does_not_wait_for_incomplete_requests() {
    let mut server = Server::start().await;
    let address = server.url.trim_start_matches("http://").to_owned();
    let token = server.create_token(tasuki::operator::AccessRole::Author).await;
    let half_a_body = format!(
        "POST /api/v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: 99\r\nexpect: 100-continue\r\n\r\n{{\"type"
    );
    let mut stalled = Vec::new();
    for sent in ["", "GET /api/v1/me HTTP/1.1\r\nauthoriz", &half_a_body] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        stalled.push(stream);
    }
    // The handler is reading the body: the server has requested the rest of it.
    let last = stalled.last_mut().unwrap();
    let mut continue_line = [0; 25];
    last.read_exact(&mut continue_line).await.unwrap();
    assert_eq!(&continue_line, b"HTTP/1.1 100 Continue\r\n\r\n");
    let took = server.stop().await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    let mut response = String::new();
    stalled.pop().unwrap().read_to_string(&mut response).await.unwrap();
    assert!(
        response.starts_with("HTTP/1.1 408") && response.contains("the server is stopping"),
        "{response}"
    );
    assert_eq!(server.count_stored().await[2], 0, "no event was stored");
}
