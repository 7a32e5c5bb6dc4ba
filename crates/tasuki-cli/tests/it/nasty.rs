//! Jobs that do not behave.

use std::fs;

use serde_json::Value;

use crate::up::{Place, Up, until};

/// More than this a node does not need, whatever its jobs do.
const MOST_MEMORY: u64 = 200 << 20;

struct Nasty {
    name: &'static str,
    script: &'static str,
    /// What else is said of the job.
    options: &'static [&'static str],
    state: &'static str,
    error_code: Option<&'static str>,
}

const NASTY: &[Nasty] = &[
    Nasty {
        name: "double-forks",
        script: "(sleep 1000 &) ; (setsid sh -c 'sleep 1000 & sleep 1000' &) ; echo away",
        options: &[],
        state: "SUCCEEDED",
        error_code: None,
    },
    Nasty {
        name: "ignores TERM",
        script: "trap '' TERM; echo deaf; while :; do sleep 0.1; done",
        options: &["--timeout", "300ms", "--stop-grace", "300ms"],
        state: "TIMED_OUT",
        error_code: Some("RUNTIME_TIMEOUT"),
    },
    Nasty {
        name: "starts a session",
        script: "setsid sh -c 'trap \"\" TERM HUP; sleep 1000' & sleep 1000",
        options: &["--timeout", "300ms", "--stop-grace", "300ms"],
        state: "TIMED_OUT",
        error_code: Some("RUNTIME_TIMEOUT"),
    },
    Nasty {
        name: "prints a gigabyte",
        script: "yes 'a line that says nothing, over and over again' | head -c 1073741824",
        options: &[],
        state: "SUCCEEDED",
        error_code: None,
    },
    Nasty {
        name: "prints a gigabyte without a break",
        script: "head -c 1073741824 /dev/zero",
        options: &[],
        state: "SUCCEEDED",
        error_code: None,
    },
    Nasty {
        name: "prints nothing for long",
        script: "sleep 1000",
        options: &["--heartbeat-timeout", "300ms", "--stop-grace", "300ms"],
        state: "FAILED",
        error_code: Some("HEARTBEAT_TIMEOUT"),
    },
    Nasty {
        name: "closes its output",
        script: "exec >&- 2>&-; sleep 0.3; exit 4",
        options: &[],
        state: "FAILED",
        error_code: Some("UNEXPECTED_ERROR"),
    },
    Nasty {
        name: "exits by signal",
        script: "kill -SEGV $$",
        options: &[],
        state: "FAILED",
        error_code: Some("UNEXPECTED_ERROR"),
    },
    Nasty {
        name: "leaves somebody at the pipe",
        script: "echo first; (trap '' TERM HUP; sleep 1000) & exit 0",
        options: &[],
        state: "SUCCEEDED",
        error_code: None,
    },
    Nasty {
        name: "prints what is not text",
        script: r"printf 'a\377b\000c\r\nlast'; printf '\343\201' >&2",
        options: &[],
        state: "SUCCEEDED",
        error_code: None,
    },
];

fn trigger(place: &Place, nasty: &Nasty) -> String {
    let create = ["job", "create", nasty.name];
    let argv = ["--", "sh", "-c", nasty.script];
    place.tasuki(&[&create[..], nasty.options, &argv[..]].concat());
    place.json(&["job", "trigger", nasty.name])["id"].to_string()
}

fn ended(place: &Place, run: &str) -> Value {
    until(&format!("run {run} has ended"), || {
        let run = place.json(&["run", "show", run]);
        (!run["finished_at"].is_null()).then_some(run)
    })
}

fn nothing_is_left(place: &Place, up: Up) {
    assert_eq!(place.jobs_left(), Vec::<i32>::new());
    let memory = up.most_memory();
    assert!(memory < MOST_MEMORY, "the node used {} MiB", memory >> 20);
    println!("the node used {} MiB at most", memory >> 20);
    up.stop();
    place.doctor_is_content();
}

#[test]
fn each_ends_as_it_should_and_nothing_is_left() {
    let place = Place::new();
    let up = place.up();
    let runs: Vec<String> = NASTY.iter().map(|nasty| trigger(&place, nasty)).collect();
    for (nasty, run) in NASTY.iter().zip(&runs) {
        let found = ended(&place, run);
        assert_eq!(found["state"], nasty.state, "{}: {found:#}", nasty.name);
        assert_eq!(found["error_code"].as_str(), nasty.error_code, "{}", nasty.name);
    }
    let log = |run: usize| place.log(runs[run].parse().unwrap());
    let texts = |run: usize| log(run).lines.into_iter().map(|line| line.text).collect::<Vec<_>>();
    let gigabyte = log(3);
    assert!(gigabyte.truncated && gigabyte.bytes <= 11 << 20, "{} bytes", gigabyte.bytes);
    let unbroken = texts(4);
    assert_eq!(unbroken.len(), 1);
    assert!(unbroken[0].ends_with(" [line cut]"), "{} bytes", unbroken[0].len());
    assert_eq!(texts(8), ["first"]);
    let mut odd = texts(9);
    odd.sort_unstable();
    assert_eq!(odd, ["a\u{fffd}b\u{fffd}c", "last", "\u{fffd}"]);
    nothing_is_left(&place, up);
    place.end();
}

/// What is printed can be read while the job still runs, and a cancel ends it.
#[test]
fn a_log_is_followed_while_its_job_runs() {
    let place = Place::new();
    let up = place.up();
    let gate = place.folder.join("gate");
    let script =
        format!("echo begun; while [ ! -e '{}' ]; do sleep 0.02; done; echo done", gate.display());
    place.tasuki(&["job", "create", "slow", "--", "sh", "-c", &script]);
    let run = place.json(&["job", "trigger", "slow"])["id"].to_string();
    let mut follow = place.command(&["run", "logs", "-f", &run]);
    follow.stdout(std::process::Stdio::piped());
    let mut follow = follow.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(follow.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    assert_eq!(place.json(&["run", "show", &run])["state"], "RUNNING");
    fs::write(&gate, "").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "done");
    assert!(lines.next().is_none());
    assert!(follow.wait().unwrap().success());
    let endless = place.json(&["task", "submit", "slow"]);
    let endless = endless["id"].to_string();
    assert_eq!(ended(&place, &endless)["state"], "SUCCEEDED");
    fs::remove_file(&gate).unwrap();
    let endless = place.json(&["job", "trigger", "slow"])["id"].to_string();
    until("it runs", || {
        (place.json(&["run", "show", &endless])["state"] == "RUNNING").then_some(())
    });
    place.tasuki(&["run", "cancel", &endless, "--reason", "enough"]);
    let canceled = ended(&place, &endless);
    assert_eq!(canceled["state"], "CANCELED", "{canceled:#}");
    nothing_is_left(&place, up);
    place.end();
}
