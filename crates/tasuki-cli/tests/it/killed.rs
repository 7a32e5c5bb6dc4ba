//! A node that is killed or stopped in the middle of its work, again and again.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::up::{Place, until};

/// As small as the rules allow, so that thirty lives fit into a test.
const SMALL: [(&str, &str); 22] = [
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

/// A job that tells in a file, every now and then, that this attempt of its run is alive.
fn script(place: &Place, times: u32) -> String {
    let file = place.folder.join("alive").display().to_string();
    format!(
        "echo \"pid $$\" >> '{file}'
         for n in $(seq {times}); do
           echo \"alive $TASUKI_RUN_ID $TASUKI_ATTEMPT $(date +%s%N)\" >> '{file}'; sleep 0.02
         done"
    )
}

fn told(place: &Place) -> String {
    fs::read_to_string(place.folder.join("alive")).unwrap_or_default()
}

/// The processes that jobs told of so far.
fn pids(place: &Place) -> Vec<i32> {
    told(place).lines().filter_map(|line| line.strip_prefix("pid ")?.parse().ok()).collect()
}

/// No attempt of a run was alive after a later one of the same run had begun.
fn none_ran_twice_at_once(place: &Place) {
    let mut lives: BTreeMap<i64, BTreeMap<u32, (u64, u64)>> = BTreeMap::new();
    for line in told(place).lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let ["alive", run, attempt, at] = words[..] else { continue };
        let at: u64 = at.parse().unwrap();
        let attempts = lives.entry(run.parse().unwrap()).or_default();
        let life = attempts.entry(attempt.parse().unwrap()).or_insert((at, at));
        *life = (life.0.min(at), life.1.max(at));
    }
    for (run, attempts) in &lives {
        for (one, other) in attempts.values().zip(attempts.values().skip(1)) {
            assert!(one.1 < other.0, "two attempts of run {run} were alive at once: {attempts:?}");
        }
    }
    assert!(!lives.is_empty());
}

fn create_jobs(place: &Place) {
    let (short, long) = (script(place, 5), script(place, 60));
    let strays = format!("setsid sh -c 'sleep 1000' & {short}; (sleep 1000 &) ; sleep 0.5");
    let policy = ["--retries", "1000", "--concurrency", "allow"];
    for (name, every, script) in
        [("short", "1s", &short), ("long", "3s", &long), ("strays", "2s", &strays)]
    {
        let trigger = ["job", "create", name, "--every", every];
        place.tasuki(&[&trigger[..], &policy[..], &["--", "sh", "-c", script]].concat());
    }
}

fn running(place: &Place) -> usize {
    let runs = place.json(&["run", "list", "--state", "RUNNING"]);
    runs["items"].as_array().map_or(0, Vec::len)
}

/// Lets everything end, stops in order, and looks at what became of it all.
fn settle(place: Place) {
    let up = place.up();
    for job in ["short", "long", "strays"] {
        place.tasuki(&["job", "disable", job]);
    }
    until("every run has ended", || {
        let states = "PENDING,ASSIGNED,RUNNING,ORPHANED,RETRY_WAIT";
        let open = place.json(&["run", "list", "--state", states]);
        open["items"].as_array()?.is_empty().then_some(())
    });
    up.stop();
    assert_eq!(place.jobs_left(), Vec::<i32>::new());
    none_ran_twice_at_once(&place);
    place.doctor_is_content();
    place.end();
}

#[test]
fn thirty_times_in_a_row() {
    let place = Place::new();
    place.settings(&SMALL);
    for life in 0..30 {
        let before = pids(&place);
        let up = place.up();
        // Whoever is up has seen to it that nothing of the one before is left.
        for pid in before {
            assert!(!place.jobs_left().contains(&pid), "process {pid} outlived its node");
        }
        if life == 0 {
            create_jobs(&place);
        }
        until("something runs", || (running(&place) > 0).then_some(()));
        // In the middle of whatever it is doing.
        std::thread::sleep(Duration::from_millis(life * 13));
        up.kill();
    }
    settle(place);
}

/// The spawner keeps the deadline of the lease, also while its worker does not.
#[test]
fn stopped_for_twice_the_lease() {
    let place = Place::new();
    place.settings(&SMALL);
    let up = place.up();
    create_jobs(&place);
    let patient = ["--retries", "1000", "--", "sleep", "1000"];
    place.tasuki(&[&["job", "create", "for-ever"][..], &patient[..]].concat());
    let run = place.json(&["job", "trigger", "for-ever"])["id"].to_string();
    for attempt in 1..=3 {
        until("it runs again", || {
            let run = place.json(&["run", "show", &run]);
            let runs = run["state"] == "RUNNING" && run["tries"].as_i64() >= Some(attempt);
            (runs && !place.jobs_left().is_empty()).then_some(())
        });
        up.signal(Signal::SIGSTOP);
        let stopped = Instant::now();
        until("its jobs are gone", || place.jobs_left().is_empty().then_some(()));
        while stopped.elapsed() < Duration::from_secs(2) {
            assert_eq!(place.jobs_left(), Vec::<i32>::new());
            std::thread::sleep(Duration::from_millis(50));
        }
        up.signal(Signal::SIGCONT);
    }
    place.tasuki(&["run", "cancel", &run]);
    until("it is canceled", || {
        (place.json(&["run", "show", &run])["state"] == "CANCELED").then_some(())
    });
    up.stop();
    settle(place);
}
