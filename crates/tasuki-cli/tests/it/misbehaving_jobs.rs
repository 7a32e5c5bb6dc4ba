//! Jobs that misbehave: ignore signals, fork, flood their output, close it.

use std::fs;

use serde_json::Value;

use crate::up::{RunningNode, TestDirectory, wait_until};

/// Maximum memory of a node in bytes, whatever its jobs do.
const MAX_NODE_MEMORY: u64 = 200 << 20;

struct MisbehavingJob {
    name: &'static str,
    script: &'static str,
    /// Further options of `tasuki job create`.
    options: &'static [&'static str],
    state: &'static str,
    error_code: Option<&'static str>,
}

const MISBEHAVING_JOBS: &[MisbehavingJob] = &[
    MisbehavingJob {
        name: "double-forks",
        script: "(sleep 1000 &) ; (setsid sh -c 'sleep 1000 & sleep 1000' &) ; echo away",
        options: &[],
        state: "SUCCEEDED",
        error_code: None,
    },
    MisbehavingJob {
        name: "ignores TERM",
        script: "trap '' TERM; echo deaf; while :; do sleep 0.1; done",
        options: &["--timeout", "300ms", "--stop-grace", "300ms"],
        state: "TIMED_OUT",
        error_code: Some("RUNTIME_TIMEOUT"),
    },
    MisbehavingJob {
        name: "starts a session",
        script: "setsid sh -c 'trap \"\" TERM HUP; sleep 1000' & sleep 1000",
        options: &["--timeout", "300ms", "--stop-grace", "300ms"],
        state: "TIMED_OUT",
        error_code: Some("RUNTIME_TIMEOUT"),
    },
    MisbehavingJob {
        name: "prints a gigabyte",
        script: "yes 'a line without information, printed again and again' | head -c 1073741824",
        options: &[],
        state: "SUCCEEDED",
        error_code: None,
    },
    MisbehavingJob {
        name: "prints a gigabyte without a break",
        script: "head -c 1073741824 /dev/zero",
        options: &[],
        state: "SUCCEEDED",
        error_code: None,
    },
    MisbehavingJob {
        name: "prints nothing for long",
        script: "sleep 1000",
        options: &["--heartbeat-timeout", "300ms", "--stop-grace", "300ms"],
        state: "FAILED",
        error_code: Some("HEARTBEAT_TIMEOUT"),
    },
    MisbehavingJob {
        name: "closes its output",
        script: "exec >&- 2>&-; sleep 0.3; exit 4",
        options: &[],
        state: "FAILED",
        error_code: Some("UNEXPECTED_ERROR"),
    },
    MisbehavingJob {
        name: "exits by signal",
        script: "kill -SEGV $$",
        options: &[],
        state: "FAILED",
        error_code: Some("UNEXPECTED_ERROR"),
    },
    MisbehavingJob {
        name: "leaves a process at the pipe",
        script: "echo first; (trap '' TERM HUP; sleep 1000) & exit 0",
        options: &[],
        state: "SUCCEEDED",
        error_code: None,
    },
    MisbehavingJob {
        name: "prints what is not text",
        script: r"printf 'a\377b\000c\r\nlast'; printf '\343\201' >&2",
        options: &[],
        state: "SUCCEEDED",
        error_code: None,
    },
];

fn trigger(directory: &TestDirectory, job: &MisbehavingJob) -> String {
    let create = ["job", "create", job.name];
    let argv = ["--", "sh", "-c", job.script];
    directory.tasuki(&[&create[..], job.options, &argv[..]].concat());
    directory.json(&["job", "trigger", job.name])["id"].to_string()
}

fn wait_until_ended(directory: &TestDirectory, run: &str) -> Value {
    wait_until(&format!("run {run} ends"), || {
        let run = directory.json(&["run", "show", run]);
        (!run["finished_at"].is_null()).then_some(run)
    })
}

fn expect_nothing_left(directory: &TestDirectory, node: RunningNode) {
    assert_eq!(directory.list_job_processes(), Vec::<i32>::new());
    let memory = node.max_memory();
    assert!(memory < MAX_NODE_MEMORY, "the node used {} MiB", memory >> 20);
    println!("the node used {} MiB at most", memory >> 20);
    node.stop();
    directory.expect_healthy_database();
}

#[test]
fn misbehaving_jobs_end_as_expected_and_leave_no_processes() {
    let directory = TestDirectory::new();
    let node = directory.start();
    let runs: Vec<String> = MISBEHAVING_JOBS.iter().map(|job| trigger(&directory, job)).collect();
    for (job, run) in MISBEHAVING_JOBS.iter().zip(&runs) {
        let found = wait_until_ended(&directory, run);
        assert_eq!(found["state"], job.state, "{}: {found:#}", job.name);
        assert_eq!(found["error_code"].as_str(), job.error_code, "{}", job.name);
    }
    let log = |run: usize| directory.read_log(runs[run].parse().unwrap());
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
    expect_nothing_left(&directory, node);
    directory.remove();
}

/// Output can be read while the job still runs, and a cancel ends the job.
#[test]
fn a_log_is_followed_while_its_job_runs() {
    let directory = TestDirectory::new();
    let node = directory.start();
    let gate = directory.folder.join("gate");
    let script =
        format!("echo begun; while [ ! -e '{}' ]; do sleep 0.02; done; echo done", gate.display());
    directory.tasuki(&["job", "create", "slow", "--", "sh", "-c", &script]);
    let run = directory.json(&["job", "trigger", "slow"])["id"].to_string();
    let mut follow = directory.command(&["run", "logs", "-f", &run]);
    follow.stdout(std::process::Stdio::piped());
    let mut follow = follow.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(follow.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    assert_eq!(directory.json(&["run", "show", &run])["state"], "RUNNING");
    fs::write(&gate, "").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "done");
    assert!(lines.next().is_none());
    assert!(follow.wait().unwrap().success());
    let endless = directory.json(&["task", "submit", "slow"]);
    let endless = endless["id"].to_string();
    assert_eq!(wait_until_ended(&directory, &endless)["state"], "SUCCEEDED");
    fs::remove_file(&gate).unwrap();
    let endless = directory.json(&["job", "trigger", "slow"])["id"].to_string();
    wait_until("the run is running", || {
        (directory.json(&["run", "show", &endless])["state"] == "RUNNING").then_some(())
    });
    directory.tasuki(&["run", "cancel", &endless, "--reason", "enough"]);
    let canceled = wait_until_ended(&directory, &endless);
    assert_eq!(canceled["state"], "CANCELED", "{canceled:#}");
    expect_nothing_left(&directory, node);
    directory.remove();
}
