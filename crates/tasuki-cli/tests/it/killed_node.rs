//! A node that is repeatedly killed or stopped while jobs run.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::up::{TestDirectory, wait_until};

/// Intervals as short as the rules allow, so that thirty restarts fit into a test.
const SHORT_INTERVALS: [(&str, &str); 22] = [
    ("leader_tick", "50ms"),
    ("assign_ahead", "1s"),
    ("leader_renew", "50ms"),
    ("leader_ttl", "300ms"),
    ("leader_margin", "50ms"),
    ("leader_stale", "300ms"),
    ("subleader_check", "50ms"),
    ("heartbeat_interval", "50ms"),
    ("heartbeat_ttl", "500ms"),
    ("reassign_after", "2s"),
    ("lease_renew", "100ms"),
    ("lease_ttl", "1s"),
    ("outage_tolerance", "300ms"),
    ("kill_margin", "200ms"),
    ("steal_grace", "100ms"),
    ("continuation_retry_count", "1"),
    ("continuation_retry_interval", "10ms"),
    ("retry_backoff", "50ms"),
    ("retry_backoff_cap", "100ms"),
    ("stop_grace", "200ms"),
    ("recovery_interval", "50ms"),
    ("skip_late_after", "1m"),
];

/// Script of a job that periodically writes to a file that its attempt is alive.
fn script(directory: &TestDirectory, times: u32) -> String {
    let file = directory.folder.join("alive").display().to_string();
    format!(
        "echo \"pid $$\" >> '{file}'
         for n in $(seq {times}); do
           echo \"alive $TASUKI_RUN_ID $TASUKI_ATTEMPT $(date +%s%N)\" >> '{file}'; sleep 0.02
         done"
    )
}

fn read_alive_file(directory: &TestDirectory) -> String {
    fs::read_to_string(directory.folder.join("alive")).unwrap_or_default()
}

/// The process ids that jobs have written so far.
fn list_reported_pids(directory: &TestDirectory) -> Vec<i32> {
    read_alive_file(directory)
        .lines()
        .filter_map(|line| line.strip_prefix("pid ")?.parse().ok())
        .collect()
}

/// Checks that no attempt of a run was alive after a later attempt of the same run had started.
fn expect_no_overlapping_attempts(directory: &TestDirectory) {
    let mut attempts_by_run: BTreeMap<i64, BTreeMap<u32, (u64, u64)>> = BTreeMap::new();
    for line in read_alive_file(directory).lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let ["alive", run, attempt, at] = words[..] else { continue };
        let at: u64 = at.parse().unwrap();
        let attempts = attempts_by_run.entry(run.parse().unwrap()).or_default();
        let life = attempts.entry(attempt.parse().unwrap()).or_insert((at, at));
        *life = (life.0.min(at), life.1.max(at));
    }
    for (run, attempts) in &attempts_by_run {
        for (one, other) in attempts.values().zip(attempts.values().skip(1)) {
            assert!(
                one.1 < other.0,
                "two attempts of run {run} were alive at the same time: {attempts:?}"
            );
        }
    }
    assert!(!attempts_by_run.is_empty());
}

fn create_jobs(directory: &TestDirectory) {
    let (short, long) = (script(directory, 5), script(directory, 60));
    let strays = format!("setsid sh -c 'sleep 1000' & {short}; (sleep 1000 &) ; sleep 0.5");
    let policy = ["--retries", "1000", "--concurrency", "allow"];
    for (name, every, script) in
        [("short", "1s", &short), ("long", "3s", &long), ("strays", "2s", &strays)]
    {
        let trigger = ["job", "create", name, "--every", every];
        directory.tasuki(&[&trigger[..], &policy[..], &["--", "sh", "-c", script]].concat());
    }
}

fn count_running(directory: &TestDirectory) -> usize {
    let runs = directory.json(&["run", "list", "--state", "RUNNING"]);
    runs["items"].as_array().map_or(0, Vec::len)
}

/// Waits until all runs have ended, stops the node, and checks runs, processes and database.
fn finish_and_check(directory: TestDirectory) {
    let node = directory.start();
    for job in ["short", "long", "strays"] {
        directory.tasuki(&["job", "disable", job]);
    }
    wait_until("every run has ended", || {
        let states = "PENDING,ASSIGNED,RUNNING,ORPHANED,RETRY_WAIT";
        let open = directory.json(&["run", "list", "--state", states]);
        open["items"].as_array()?.is_empty().then_some(())
    });
    node.stop();
    assert_eq!(directory.list_job_processes(), Vec::<i32>::new());
    expect_no_overlapping_attempts(&directory);
    directory.expect_healthy_database();
    directory.remove();
}

#[test]
fn a_node_is_killed_thirty_times() {
    let directory = TestDirectory::new();
    directory.settings(&SHORT_INTERVALS);
    for life in 0..30 {
        let before = list_reported_pids(&directory);
        let node = directory.start();
        // A started node has ended all processes of the previous one.
        for pid in before {
            assert!(
                !directory.list_job_processes().contains(&pid),
                "process {pid} outlived its node"
            );
        }
        if life == 0 {
            create_jobs(&directory);
        }
        wait_until("a job runs", || (count_running(&directory) > 0).then_some(()));
        // Kill it at a different moment each time.
        std::thread::sleep(Duration::from_millis(life * 13));
        node.kill();
    }
    finish_and_check(directory);
}

/// The spawner enforces the lease deadline even while its worker is stopped.
#[test]
fn a_node_is_stopped_for_twice_the_lease_ttl() {
    let directory = TestDirectory::new();
    directory.settings(&SHORT_INTERVALS);
    let node = directory.start();
    create_jobs(&directory);
    let patient = ["--retries", "1000", "--", "sleep", "1000"];
    directory.tasuki(&[&["job", "create", "for-ever"][..], &patient[..]].concat());
    let run = directory.json(&["job", "trigger", "for-ever"])["id"].to_string();
    for attempt in 1..=3 {
        wait_until("the run is running again", || {
            let run = directory.json(&["run", "show", &run]);
            let runs = run["state"] == "RUNNING" && run["tries"].as_i64() >= Some(attempt);
            (runs && !directory.list_job_processes().is_empty()).then_some(())
        });
        node.signal(Signal::SIGSTOP);
        let stopped = Instant::now();
        wait_until("its job processes have ended", || {
            directory.list_job_processes().is_empty().then_some(())
        });
        while stopped.elapsed() < Duration::from_secs(2) {
            assert_eq!(directory.list_job_processes(), Vec::<i32>::new());
            std::thread::sleep(Duration::from_millis(50));
        }
        node.signal(Signal::SIGCONT);
    }
    directory.tasuki(&["run", "cancel", &run]);
    wait_until("the run is canceled", || {
        (directory.json(&["run", "show", &run])["state"] == "CANCELED").then_some(())
    });
    node.stop();
    finish_and_check(directory);
}
