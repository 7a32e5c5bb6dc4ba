//! Captured output: read in pages, and followed as a stream.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tasuki_core::RunId;
use tasuki_store::AttemptResult;

use crate::fixtures::{FakeWorker, Server};

#[tokio::test]
async fn a_log_is_read_page_by_page_while_it_grows() {
    let server = Server::start().await;
    server.create_job("a").await;
    let run = server.submit_task("a").await;
    let nothing = server.get(&format!("/runs/{run}/logs")).await.expect_status(200);
    assert_eq!(
        (&nothing["attempt"], &nothing["lines"], &nothing["next"]),
        (&json!(0), &json!([]), &json!(0))
    );
    let mut worker = FakeWorker::new(&server.store).await;
    let id = worker.claim().await[0];
    worker.print(id, 1, 0, &["one", "zwei", "三"]).await;
    let page = server.get(&format!("/runs/{run}/logs?limit=2")).await.expect_status(200);
    assert_eq!(
        (&page["next"], &page["lines_count"], &page["ended"]),
        (&json!(2), &json!(3), &json!(false))
    );
    assert_eq!((&page["lines"][1]["n"], &page["lines"][1]["text"]), (&json!(1), &json!("zwei")));
    assert_eq!(page["lines"][1]["stream"], "out");
    worker.finish(id, AttemptResult::default()).await;
    let rest = server.get(&format!("/runs/{run}/logs?from=2&attempt=1")).await.expect_status(200);
    assert_eq!((&rest["lines"][0]["text"], &rest["ended"]), (&json!("三"), &json!(true)));
    assert_eq!((&rest["lines"][0]["n"], &rest["next"]), (&json!(2), &json!(3)));
    for (query, field) in [
        ("attempt=2", "attempt"),
        ("attempt=0", "attempt"),
        ("from=-1", "from"),
        ("limit=1001", "limit"),
    ] {
        let refused = server.get(&format!("/runs/{run}/logs?{query}")).await;
        assert_eq!(refused.error(), (400, "malformed", field));
    }
    assert_eq!(server.get("/runs/99/logs").await.error().0, 404);
}

/// Name, id and data of a server-sent event.
type StreamEvent = (String, Option<String>, Value);

/// A client that follows a run.
struct Follower {
    stream: reqwest::Response,
    text: String,
}

impl Follower {
    async fn connect(request: reqwest::RequestBuilder) -> Self {
        let stream = request.send().await.unwrap();
        assert_eq!(stream.headers()["content-type"], "text/event-stream");
        Self { stream, text: String::new() }
    }

    /// Reads events until one contains a text.
    async fn read_until(&mut self, text: &str) {
        while !self.text.contains(text) {
            let part = self.stream.chunk().await.unwrap().expect("the stream has not ended");
            self.text.push_str(std::str::from_utf8(&part).unwrap());
        }
    }

    /// Reads until the stream ends, and returns all events.
    async fn read_to_end(mut self) -> Vec<StreamEvent> {
        while let Some(part) = self.stream.chunk().await.unwrap() {
            self.text.push_str(std::str::from_utf8(&part).unwrap());
        }
        let field = |block: &str, name: &str| {
            let found = block.lines().find_map(|line| line.strip_prefix(name));
            found.map(|value| value.trim().to_owned())
        };
        let blocks = self.text.split("\n\n").filter(|block| block.contains("event:"));
        let events = blocks.map(|block| {
            let data = serde_json::from_str(&field(block, "data:").unwrap()).unwrap();
            (field(block, "event:").unwrap(), field(block, "id:"), data)
        });
        events.collect()
    }
}

/// Submits a task and follows its run. Returns the run, the path and the follower.
async fn follow_new_run(server: &Server) -> (i64, String, Follower) {
    server.create_job("a").await;
    let run = server.submit_task("a").await;
    let path = format!("/runs/{run}/follow");
    let follower = Follower::connect(server.request(Method::GET, &path)).await;
    (run, path, follower)
}

/// The lines of the `log` events, with their ids.
fn lines(events: &[StreamEvent]) -> Vec<(&str, &str)> {
    let lines = events.iter().filter(|(name, ..)| name == "log");
    lines.map(|(_, id, data)| (id.as_deref().unwrap(), data["text"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn a_follower_receives_all_output_all_states_and_the_end() {
    let server = Server::start().await;
    let (run, path, mut follower) = follow_new_run(&server).await;
    let mut worker = FakeWorker::new(&server.store).await;
    let id = worker.claim().await[0];
    worker.print(id, 1, 0, &["one", "two"]).await;
    follower.read_until("two").await;
    worker.print(id, 1, 2, &["three"]).await;
    worker.finish(id, AttemptResult::default()).await;
    let events = follower.read_to_end().await;
    assert_eq!(lines(&events), [("1.0", "one"), ("1.1", "two"), ("1.2", "three")]);
    let states: Vec<&str> = events
        .iter()
        .filter(|(name, ..)| name == "state")
        .map(|(.., run)| run["state"].as_str().unwrap())
        .collect();
    assert_eq!((states.first(), states.last()), (Some(&"PENDING"), Some(&"SUCCEEDED")));
    let (name, _, data) = events.last().unwrap();
    assert_eq!((name.as_str(), data), ("end", &json!({ "run": run, "state": "SUCCEEDED" })));

    let again = server.request(Method::GET, &path).header("Last-Event-ID", "1.1");
    let events = Follower::connect(again).await.read_to_end().await;
    assert_eq!(lines(&events), [("1.2", "three")]);
    assert_eq!(server.get("/runs/99/follow").await.error().0, 404);
}

/// A node that stops lets its runs end, and then its server stops: both between two polls of a follower.
#[tokio::test]
async fn a_follower_receives_the_last_line_of_a_server_that_stops() {
    let mut server = Server::start().await;
    let (_, _, mut follower) = follow_new_run(&server).await;
    let mut worker = FakeWorker::new(&server.store).await;
    let id = worker.claim().await[0];
    worker.print(id, 1, 0, &["one"]).await;
    follower.read_until("one").await;
    let many: Vec<String> = (0..2_500).map(|n| format!("line {n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    worker.print(id, 1, 1, &many).await;
    worker.finish(id, AttemptResult::default()).await;
    let (events, _) = tokio::join!(follower.read_to_end(), server.stop());
    assert_eq!(lines(&events).len(), 2_501);
    assert_eq!(lines(&events).last(), Some(&("1.2500", "line 2499")));
    assert_eq!(events.last().unwrap().0, "end");
}

#[tokio::test]
async fn streams_and_waits_end_when_the_server_stops() {
    let mut server = Server::start().await;
    let (run, _, follower) = follow_new_run(&server).await;
    let wait =
        tokio::spawn(server.request(Method::GET, &format!("/runs/{run}/wait?timeout=60s")).send());
    // Nothing outside the server shows that the request is waiting, so give it a moment to arrive.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let took = server.stop().await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    let events = follower.read_to_end().await;
    assert_eq!(
        events.last().unwrap().0,
        "state",
        "there is no end event, because the run has not ended"
    );
    let waited: Value = wait.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(waited["state"], "PENDING");
    assert!(server.store.find_run(RunId(run)).await.unwrap().is_some());
}
