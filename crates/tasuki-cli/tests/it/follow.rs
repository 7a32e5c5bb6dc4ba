//! Following a run: connections that drop, runs that are not there, readers who have had enough.

use std::io::Read as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use insta::assert_snapshot;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::fake::{Fake, Reply};
use crate::runs::{failed, line, run};

const STREAM: &str = "HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\r\n";

fn log(n: i64, stream: &str, text: &str) -> String {
    format!("event: log\nid: 1.{n}\ndata: {}\n\n", line(n, stream, text))
}

/// The first connection breaks off in the middle of an event, the second is refused for a moment,
/// the third repeats a line; every line is printed once.
#[test]
fn a_connection_that_drops_is_made_again_where_it_was() {
    let count = AtomicU32::new(0);
    let fake = Fake::new(move |request| match request.line.as_str() {
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
    assert_snapshot!(fake.told(&["run", "logs", "7", "-f"]), @r"
    exit 0
    one
    three
    --
    two
    ");
    let asked = fake.asked();
    assert_eq!(
        asked.iter().map(|one| one.header("last-event-id")).collect::<Vec<_>>(),
        ["", "1.1", "1.1"]
    );
    assert_snapshot!(fake.told(&["job", "trigger", "hello", "--follow"]), @r"
    exit 1
    three
    --
    run 7 of hello is PENDING
    two
    error: run 8 of hello is FAILED: NO_DATA: nothing to �[31mreport

    hint: tasuki run logs 8 shows its output, tasuki run explain 8 what happened
    ");
}

/// A run is followed from the attempt that it is at; one before that is read as it stands.
#[test]
fn an_attempt_that_is_over_is_printed_and_not_waited_for() {
    let fake = Fake::new(|request| match request.line.as_str() {
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
    assert_eq!(fake.told(&["run", "logs", "8", "-f", "--attempt", "1"]), "exit 0\none\n");
    assert_eq!(fake.told(&["run", "logs", "8", "-f", "--attempt", "2"]), "exit 0\n");
    assert_eq!(fake.lines().last().unwrap(), "GET /runs/8/follow");
}

#[test]
fn following_what_is_not_there_is_refused_at_once() {
    let fake = Fake::new(|_| {
        Reply::Json(404, json!({"code": "not_found", "detail": "there is no run 7"}))
    });
    assert_snapshot!(fake.told(&["run", "logs", "7", "-f"]), @r"
    exit 1
    --
    error: there is no run 7
    ");
    assert_eq!(fake.asked().len(), 1);
}

/// Ctrl-C ends the following and nothing else.
#[test]
fn an_interrupt_ends_following_cleanly() {
    let fake = Fake::new(|_| Reply::Raw(format!("{STREAM}{}", log(0, "out", "one"))));
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
