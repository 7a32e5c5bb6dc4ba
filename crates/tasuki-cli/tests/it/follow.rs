//! Following a run: broken connections, missing runs, Ctrl-C.

use std::io::Read as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use insta::assert_snapshot;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::fake_server::{FakeServer, Reply};
use crate::runs::{failed, line, run};

const STREAM: &str = "HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\r\n";

fn log(n: i64, stream: &str, text: &str) -> String {
    format!("event: log\nid: 1.{n}\ndata: {}\n\n", line(n, stream, text))
}

/// The first connection breaks within an event, the second is refused with a server error, the third repeats a line;
/// every line is printed once.
#[test]
fn a_broken_connection_is_resumed_at_the_last_event() {
    let count = AtomicU32::new(0);
    let fake = FakeServer::new(move |request| match request.line.as_str() {
        "GET /runs/7/follow" => match count.fetch_add(1, Ordering::Relaxed) {
            0 => Reply::Raw(format!(
                "{STREAM}: hi\n\n{}{}event: log\nda",
                log(0, "out", "one"),
                log(1, "err", "two")
            )),
            1 => Reply::Json(503, json!({"code": "unavailable", "detail": "starting"})),
            _ => Reply::Raw(format!(
                "{STREAM}{}{}event: state\ndata: {}\n\nevent: end\ndata: {{}}\n\n",
                log(1, "err", "two"),
                log(2, "out", "three"),
                failed()
            )),
        },
        "POST /jobs/hello/trigger" => Reply::Json(201, run(7, "PENDING")),
        _ => Reply::Json(404, json!({"code": "not_found", "detail": "no"})),
    });
    assert_snapshot!(fake.output(&["run", "logs", "7", "-f"]), @r"
    exit 0
    one
    three
    --
    two
    ");
    let requests = fake.requests();
    assert_eq!(
        requests.iter().map(|one| one.header("last-event-id")).collect::<Vec<_>>(),
        ["", "1.1", "1.1"]
    );
    assert_snapshot!(fake.output(&["job", "trigger", "hello", "--follow"]), @r"
    exit 1
    three
    --
    run 7 of hello is PENDING
    two
    error: run 8 of hello is FAILED: NO_DATA: nothing to �[31mreport

    hint: `tasuki run logs 8` shows its output, `tasuki run explain 8` explains its state
    ");
}

/// A run is followed from its current attempt; the output of an earlier attempt is printed without following.
#[test]
fn an_earlier_attempt_is_printed_without_following() {
    let fake = FakeServer::new(|request| match request.line.as_str() {
        "GET /runs/8" => Reply::Json(200, failed()),
        "GET /runs/8/logs?attempt=1&from=0&limit=1000" => Reply::Json(
            200,
            json!({"attempt": 1, "next": 1, "lines_count": 1, "bytes": 3, "truncated": false,
                "log_ref": null, "ended": true, "lines": [line(0, "out", "one")]}),
        ),
        "GET /runs/8/follow" => Reply::Raw(format!(
            "{STREAM}event: state\ndata: {}\n\nevent: end\ndata: {{}}\n\n",
            failed()
        )),
        other => Reply::Json(404, json!({"code": "not_found", "detail": other})),
    });
    assert_eq!(fake.output(&["run", "logs", "8", "-f", "--attempt", "1"]), "exit 0\none\n");
    assert_eq!(fake.output(&["run", "logs", "8", "-f", "--attempt", "2"]), "exit 0\n");
    assert_eq!(fake.lines().last().unwrap(), "GET /runs/8/follow");
}

#[test]
fn following_a_missing_run_fails_immediately() {
    let fake = FakeServer::new(|_| {
        Reply::Json(404, json!({"code": "not_found", "detail": "there is no run 7"}))
    });
    assert_snapshot!(fake.output(&["run", "logs", "7", "-f"]), @r"
    exit 1
    --
    error: there is no run 7
    ");
    assert_eq!(fake.requests().len(), 1);
}

/// Ctrl-C ends the following, with exit code 0.
#[test]
fn an_interrupt_ends_following_cleanly() {
    let fake = FakeServer::new(|_| Reply::Raw(format!("{STREAM}{}", log(0, "out", "one"))));
    let mut child = fake
        .tasuki(&["run", "logs", "7", "-f"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 4];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"one\n");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}
