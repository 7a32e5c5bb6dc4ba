//! Every state, told.

use std::time::Duration;

use super::*;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::run::Counters;
use tasuki_core::schedule::{DstChoice, ScheduleKind};
use tasuki_core::job_spec::WorkKind;
use tasuki_core::{Epoch, EventId, JobId, LeaseToken, Scope, WorkerId};

fn at(time: &str) -> Timestamp {
    format!("2026-11-15T{time}Z").parse().unwrap()
}

fn worker_id() -> WorkerId {
    WorkerId::from_random(7)
}

/// A run as it looks in a state, at noon; a test says what else is special.
fn run(state: RunState) -> Run {
    let carried = state.is_carried();
    let started = matches!(
        state,
        RunState::Running | RunState::Succeeded | RunState::Failed | RunState::TimedOut
    );
    let has_worker = carried || started;
    Run {
        id: RunId(17),
        job: JobId(3),
        job_version: 2,
        state,
        origin: Origin::Task,
        scope: Scope::default(),
        lane: String::new(),
        exclusive: false,
        max_attempts: 3,
        counters: Counters {
            attempt_no: u32::from(has_worker),
            tries: u32::from(started),
            tries_allowed: 3,
            releases: 0,
            alone: false,
        },
        version: 4,
        scheduled_for: at("11:59:00"),
        slot: None,
        next_retry_at: None,
        skip_at: None,
        expires_at: None,
        worker: has_worker.then(worker_id),
        token: has_worker.then(|| LeaseToken::from_random(1)),
        epoch: has_worker.then_some(Epoch(5)),
        assigned_at: has_worker.then(|| at("11:58:40")),
        start_by: carried.then(|| at("12:00:15")),
        started_at: started.then(|| at("11:59:01")),
        finished_at: state.is_ended().then(|| at("11:59:30")),
        cancel_requested_at: None,
        cancel_requested_by: None,
        outcome: None,
        exit_code: None,
        exit_signal: None,
        error_code: None,
        error_message: None,
        reason: None,
        result: None,
        rows_affected: None,
        log_ref: None,
        args: None,
        event: None,
        rerun_of: None,
        idempotency_key: None,
    }
}

fn worker() -> Worker {
    Worker {
        id: worker_id(),
        address: None,
        node: "tokyo-1".parse().unwrap(),
        slots: 8,
        function_slots: 8,
        labels: Default::default(),
        heartbeat_at: at("11:59:59"),
        draining_at: None,
        detached_at: None,
        dead_at: None,
        gone_at: None,
    }
}

fn spec() -> JobSpec {
    JobSpec {
        kind: WorkKind::Command,
        spec: "{}".to_owned(),
        lane: String::new(),
        concurrency: ConcurrencyPolicy::Forbid,
        max_attempts: 3,
        max_releases: 20,
        backoff: Duration::from_secs(30),
        backoff_cap: Duration::from_secs(900),
        jitter_percent: 0,
        retry_lost: true,
        labels: Default::default(),
    }
}

/// All is well: somebody leads, two workers are active.
fn told<'a>(run: &Run, change: impl FnOnce(&mut Around<'a>)) -> String {
    let mut around: Around<'a> = Around {
        clock: at("12:00:00"),
        job: "report",
        schedule: None,
        has_job: true,
        spec: Some(Box::leak(Box::new(spec()))),
        worker: run.worker.map(|_| &*Box::leak(Box::new(worker()))),
        active_workers: 2,
        has_leader: true,
        holder: None,
        settings: Box::leak(Box::new(Settings::default())),
        executions: &[],
        notes: &[],
    };
    change(&mut around);
    explain(run, &around).join("\n")
}

#[track_caller]
fn assert_told(text: &str, expected: &[&str]) {
    for sentence in expected {
        assert!(text.contains(sentence), "{sentence:?} is not in:\n{text}");
    }
}

#[test]
fn where_it_came_from() {
    let pending = || run(RunState::Pending);
    let timed =
        Run { origin: Origin::Time, slot: Some("2026-11-15T20:59:00".to_owned()), ..pending() };
    let schedule =
        Schedule::parse(ScheduleKind::DailyAt, "20:59", "Asia/Tokyo", DstChoice::default())
            .unwrap();
    let text = told(&timed, |around| around.schedule = Some(schedule));
    assert_told(
        &text,
        &[
            "run 17 was made for slot 2026-11-15T20:59:00 of job report, which fires every day at 20:59 (Asia/Tokyo), at version 2 of the job, planned for 2026-11-15T11:59:00Z",
        ],
    );
    for (origin, sentence) in [
        (Origin::Event, "was made by event 9 for job report"),
        (Origin::Task, "was submitted as a task of job report"),
        (Origin::Manual, "was started by hand from job report"),
        (Origin::Rerun, "runs run 8 of job report again"),
    ] {
        let run = Run { origin, event: Some(EventId(9)), rerun_of: Some(RunId(8)), ..pending() };
        assert_told(&told(&run, |_| {}), &[sentence]);
    }
    let scoped = Run { scope: Scope::new("tenant", "42").unwrap(), ..pending() };
    assert_told(&told(&scoped, |_| {}), &["of job report for tenant/42, at version"]);
}

#[test]
fn what_waits_tells_for_what() {
    let due = run(RunState::Pending);
    assert_told(
        &told(&due, |_| {}),
        &[
            "it has been due since 2026-11-15T11:59:00Z, for 1m",
            "the leader gives it to the least busy of 2 active workers, from 30s before its time on",
        ],
    );
    let early = Run { scheduled_for: at("14:05:00"), skip_at: Some(at("14:10:00")), ..due.clone() };
    assert_told(
        &told(&early, |_| {}),
        &[
            "it waits for its time, 2026-11-15T14:05:00Z, in 2h 5m",
            "if it has not started by 2026-11-15T14:10:00Z it is SKIPPED as late",
        ],
    );
    let expiring = Run { expires_at: Some(at("13:00:00")), ..due.clone() };
    assert_told(
        &told(&expiring, |_| {}),
        &["if it has not ended by 2026-11-15T13:00:00Z it is EXPIRED"],
    );
    assert_told(
        &told(&due, |around| around.holder = Some(RunId(16))),
        &[
            "run 16 of the same job and scope has the only place there is, so this one waits until it ends",
        ],
    );
    assert_told(
        &told(&due, |around| around.has_leader = false),
        &["but nobody leads at the moment"],
    );
    assert_told(&told(&due, |around| around.active_workers = 0), &["but no worker is active"]);
    let labelled = JobSpec { labels: ["gpu".to_owned()].into(), ..spec() };
    assert_told(
        &told(&due, |around| around.spec = Some(&labelled)),
        &["of 2 active workers (it must have the labels gpu), from"],
    );
    let lane = Run { lane: "function pay".to_owned(), ..due };
    assert_told(
        &told(&lane, |_| {}),
        &["the first of 2 active workers with room in lane \"function pay\" claims it"],
    );
    assert_told(&told(&lane, |around| around.active_workers = 0), &["but no worker is active"]);
}

fn past(attempt_no: u32, outcome: AttemptOutcome) -> Execution {
    Execution {
        attempt_no,
        outcome: Some(outcome),
        worker: worker_id(),
        epoch: None,
        assigned_at: at("11:50:00"),
        started_at: Some(at("11:50:01")),
        finished_at: Some(at("11:51:00")),
        exit_code: Some(1),
        exit_signal: None,
        error_code: Some(tasuki_core::ErrorCode::UNEXPECTED_ERROR),
        error_message: None,
        result: None,
        rows_affected: None,
        log_ref: None,
    }
}

#[test]
fn what_was_tried_before_is_told() {
    let mut again = run(RunState::RetryWait);
    again.counters = Counters { attempt_no: 3, tries: 2, ..again.counters };
    again.next_retry_at = Some(at("12:01:00"));
    let executions = [
        past(1, AttemptOutcome::Failed),
        past(2, AttemptOutcome::Released),
        past(3, AttemptOutcome::Lost),
    ];
    let text = told(&again, |around| around.executions = &executions);
    let id = worker_id();
    assert_told(
        &text,
        &[
            &format!("attempt 1 on worker {id} ended as FAILED with UNEXPECTED_ERROR"),
            &format!("attempt 2 was given to worker {id}, which did not start it"),
            &format!("attempt 3 was lost: worker {id} stopped renewing its lease"),
            "2 of 3 tries are used; the next is not before 2026-11-15T12:01:00Z",
            "it waits for its time, 2026-11-15T12:01:00Z, in 1m",
        ],
    );
    let note = RunNote {
        attempt_no: 3,
        verb: Verb::Retry,
        actor: "ann".to_owned(),
        reason: Some("disk was full".to_owned()),
        epoch: None,
        token_hash: None,
        at: at("11:59:00"),
    };
    let notes = [note];
    assert_told(
        &told(&again, |around| around.notes = &notes),
        &["ann gave it one more try at 2026-11-15T11:59:00Z: disk was full"],
    );
    let orphaned = run(RunState::Orphaned);
    assert_told(
        &told(&orphaned, |around| around.executions = &executions[1..2]),
        &["which did not start it", "it has been due since"],
    );
}

#[test]
fn what_is_carried_tells_by_whom_and_why() {
    let assigned = Run { scheduled_for: at("12:00:05"), ..run(RunState::Assigned) };
    let id = worker_id();
    assert_told(
        &told(&assigned, |_| {}),
        &[
            &format!(
                "the leader gave it to worker {id} on node tokyo-1 at 2026-11-15T11:58:40Z in epoch 5"
            ),
            "it was active, had a free slot and was the least busy",
            "the worker starts it at 2026-11-15T12:00:05Z by its own timer",
            "if it has not started by 2026-11-15T12:00:15Z it is taken back and given to another",
        ],
    );
    assert_told(&told(&run(RunState::Assigned), |_| {}), &["its worker is about to start it"]);

    let running = run(RunState::Running);
    assert_told(
        &told(&running, |_| {}),
        &[
            &format!(
                "try 1 of 3 has been running since 2026-11-15T11:59:01Z on worker {id} on node tokyo-1; the run was given to it by the leader"
            ),
            "2 more follow, the first after at least 30s",
            "if its worker falls silent for 30s the lease lapses and the run is recovered",
        ],
    );
    let mut last = Run { lane: "commands".to_owned(), ..running.clone() };
    last.counters.tries_allowed = 1;
    assert_told(
        &told(&last, |_| {}),
        &["was claimed by it, because it had room", "no try is left"],
    );
    let asked = Run {
        cancel_requested_at: Some(at("11:59:50")),
        cancel_requested_by: Some("ann".to_owned()),
        ..running.clone()
    };
    assert_told(
        &told(&asked, |_| {}),
        &["ann asked it to stop at 2026-11-15T11:59:50Z; it becomes CANCELED"],
    );

    let since = Some(at("11:59:55"));
    for (worker, sentence) in [
        (
            Worker { draining_at: since, ..worker() },
            "that worker drains since 2026-11-15T11:59:55Z",
        ),
        (
            Worker { detached_at: since, ..worker() },
            "that worker was cut off at 2026-11-15T11:59:55Z",
        ),
        (Worker { dead_at: since, ..worker() }, "that worker is gone since 2026-11-15T11:59:55Z"),
        (Worker { gone_at: since, ..worker() }, "so the run will be recovered"),
    ] {
        assert_told(&told(&running, |around| around.worker = Some(&worker)), &[sentence]);
    }
}

#[test]
fn what_has_ended_tells_how_and_what_can_still_be_done() {
    let final_ = "this is final; rerun makes a new run";
    let again = "retry gives it one more try, rerun makes a new run";
    let plain = run;
    let failed = Run {
        error_code: Some("NO_DATA".parse().unwrap()),
        exit_code: Some(3),
        error_message: Some("nothing to do".to_owned()),
        ..plain(RunState::Failed)
    };
    let killed = Run { exit_signal: Some(9), ..plain(RunState::Failed) };
    let canceled = Run {
        cancel_requested_by: Some("ann".to_owned()),
        reason: Some("wrong day".to_owned()),
        ..plain(RunState::Canceled)
    };
    let skipped =
        |reason: &str| Run { reason: Some(reason.to_owned()), ..plain(RunState::Skipped) };
    let expired = Run { reason: Some("EXPIRES_AT".to_owned()), ..plain(RunState::Expired) };
    for (run, sentences) in [
        (plain(RunState::Succeeded), [" on node tokyo-1, after 1 try", final_]),
        (failed, ["after 1 try, with NO_DATA, exit code 3: nothing to do", again]),
        (killed, ["after 1 try, signal 9", again]),
        (plain(RunState::TimedOut), ["no longer than its timeout", again]),
        (canceled, ["by ann, without having started: wrong day", final_]),
        (skipped("LATE"), ["more than its misfire policy allows", final_]),
        (skipped("CONCURRENT"), ["the job forbids two at once", final_]),
        (
            expired,
            ["it EXPIRED at 2026-11-15T11:59:30Z, without having started: EXPIRES_AT", again],
        ),
    ] {
        assert_told(&told(&run, |_| {}), &sentences);
    }
}

/// Whatever a run looks like there is something to say, and every sentence is one.
#[test]
fn every_state_is_told() {
    for &state in RunState::ALL {
        for sentence in told(&run(state), |_| {}).lines() {
            assert!(sentence.len() > 10 && !sentence.ends_with('.'), "{state}: {sentence}");
        }
    }
}
