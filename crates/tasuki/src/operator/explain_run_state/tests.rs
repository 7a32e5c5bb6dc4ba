//! Tests of the explanations of every state.

use std::time::Duration;

use super::*;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::run::RunCounters;
use tasuki_core::schedule::{DstRuleOverrides, ScheduleKind};
use tasuki_core::work_spec::WorkKind;
use tasuki_core::{Epoch, EventId, JobId, LeaseToken, RunScope, WorkerId};

fn at(time: &str) -> Timestamp {
    format!("2026-11-15T{time}Z").parse().unwrap()
}

fn worker_id() -> WorkerId {
    WorkerId::from_random(7)
}

/// A run in this state at noon. Tests change individual fields.
fn run(state: RunState) -> Run {
    let leased = state.is_leased();
    let started = matches!(
        state,
        RunState::Running | RunState::Succeeded | RunState::Failed | RunState::TimedOut
    );
    let has_worker = leased || started;
    Run {
        id: RunId(17),
        job: JobId(3),
        job_version: 2,
        state,
        origin: Origin::Task,
        scope: RunScope::default(),
        lane: String::new(),
        exclusive: false,
        max_attempts: 3,
        counters: RunCounters {
            attempt_no: u32::from(has_worker),
            tries: u32::from(started),
            tries_allowed: 3,
            releases: 0,
            isolated: false,
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
        start_by: leased.then(|| at("12:00:15")),
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

fn worker() -> WorkerRecord {
    WorkerRecord {
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

fn spec() -> JobVersionSpec {
    JobVersionSpec {
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

/// The explanation of a run in a healthy cluster with a leader and two active workers. `change` adjusts the context.
fn explanation<'a>(run: &Run, change: impl FnOnce(&mut RunExplanationData<'a>)) -> String {
    let mut context: RunExplanationData<'a> = RunExplanationData {
        clock: at("12:00:00"),
        job: "report",
        schedule: None,
        job_exists: true,
        spec: Some(Box::leak(Box::new(spec()))),
        worker: run.worker.map(|_| &*Box::leak(Box::new(worker()))),
        active_workers: 2,
        has_leader: true,
        hold_owner: None,
        settings: Box::leak(Box::new(Settings::default())),
        executions: &[],
        transitions: &[],
    };
    change(&mut context);
    explain_run_state(run, &context).join("\n")
}

#[track_caller]
fn assert_contains_all(text: &str, expected: &[&str]) {
    for sentence in expected {
        assert!(text.contains(sentence), "{sentence:?} is not in:\n{text}");
    }
}

#[test]
fn the_first_sentence_names_the_origin() {
    let pending = || run(RunState::Pending);
    let timed =
        Run { origin: Origin::Time, slot: Some("2026-11-15T20:59:00".to_owned()), ..pending() };
    let schedule =
        Schedule::parse(ScheduleKind::DailyAt, "20:59", "Asia/Tokyo", DstRuleOverrides::default())
            .unwrap();
    let text = explanation(&timed, |context| context.schedule = Some(schedule));
    assert_contains_all(
        &text,
        &[
            "run 17 was created for the fire time 2026-11-15T20:59:00 of job report, which fires every day at 20:59 (Asia/Tokyo), at version 2 of the job, planned for 2026-11-15T11:59:00Z",
        ],
    );
    for (origin, sentence) in [
        (Origin::Event, "was created by event 9 for job report"),
        (Origin::Task, "was submitted as a task of job report"),
        (Origin::Manual, "was triggered manually for job report"),
        (Origin::Rerun, "is a rerun of run 8 of job report"),
    ] {
        let run = Run { origin, event: Some(EventId(9)), rerun_of: Some(RunId(8)), ..pending() };
        assert_contains_all(&explanation(&run, |_| {}), &[sentence]);
    }
    let scoped = Run { scope: RunScope::new("tenant", "42").unwrap(), ..pending() };
    assert_contains_all(
        &explanation(&scoped, |_| {}),
        &["of job report for tenant/42, at version"],
    );
}

#[test]
fn a_waiting_run_names_what_it_waits_for() {
    let due = run(RunState::Pending);
    assert_contains_all(
        &explanation(&due, |_| {}),
        &[
            "it has been due since 2026-11-15T11:59:00Z, for 1m",
            "the leader assigns it to the least loaded of 2 active workers, at the earliest 30s before its planned time",
        ],
    );
    let early = Run { scheduled_for: at("14:05:00"), skip_at: Some(at("14:10:00")), ..due.clone() };
    assert_contains_all(
        &explanation(&early, |_| {}),
        &[
            "it is due at 2026-11-15T14:05:00Z, in 2h 5m",
            "if it has not started by 2026-11-15T14:10:00Z, it becomes SKIPPED (LATE)",
        ],
    );
    let expiring = Run { expires_at: Some(at("13:00:00")), ..due.clone() };
    assert_contains_all(
        &explanation(&expiring, |_| {}),
        &["if it is still waiting at 2026-11-15T13:00:00Z, it becomes EXPIRED"],
    );
    assert_contains_all(
        &explanation(&due, |context| context.hold_owner = Some(RunId(16))),
        &[
            "run 16 of the same job and scope is assigned or running, and the job allows only one run at a time, so this run waits until that run ends",
        ],
    );
    assert_contains_all(
        &explanation(&due, |context| context.has_leader = false),
        &["but there is no leader at the moment"],
    );
    assert_contains_all(
        &explanation(&due, |context| context.active_workers = 0),
        &["but no worker is active"],
    );
    let labelled = JobVersionSpec { labels: ["gpu".to_owned()].into(), ..spec() };
    assert_contains_all(
        &explanation(&due, |context| context.spec = Some(&labelled)),
        &["of 2 active workers (the worker must have the labels gpu), at the earliest"],
    );
    let lane = Run { lane: "function pay".to_owned(), ..due };
    assert_contains_all(
        &explanation(&lane, |_| {}),
        &[
            "the first of 2 active workers with a free slot for function pay (queue default, priority normal) claims it",
        ],
    );
    assert_contains_all(
        &explanation(&lane, |context| context.active_workers = 0),
        &["but no worker is active"],
    );
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
        error_code: Some(tasuki_core::AttemptErrorCode::UNEXPECTED_ERROR),
        error_message: None,
        result: None,
        rows_affected: None,
        log_ref: None,
    }
}

#[test]
fn earlier_attempts_are_listed() {
    let mut again = run(RunState::RetryWait);
    again.counters = RunCounters { attempt_no: 3, tries: 2, ..again.counters };
    again.next_retry_at = Some(at("12:01:00"));
    let executions = [
        past(1, AttemptOutcome::Failed),
        past(2, AttemptOutcome::Released),
        past(3, AttemptOutcome::Lost),
    ];
    let text = explanation(&again, |context| context.executions = &executions);
    let id = worker_id();
    assert_contains_all(
        &text,
        &[
            &format!("attempt 1 on worker {id} ended as FAILED with UNEXPECTED_ERROR"),
            &format!("attempt 2 was assigned to worker {id}, which did not start it"),
            &format!("attempt 3 was lost: worker {id} stopped renewing its lease"),
            "it has used 2 of 3 tries; the next try starts at 2026-11-15T12:01:00Z at the earliest",
            "it is due at 2026-11-15T12:01:00Z, in 1m",
        ],
    );
    let transition = TransitionRecord {
        attempt_no: 3,
        verb: RunVerb::Retry,
        actor: "ann".to_owned(),
        reason: Some("disk was full".to_owned()),
        epoch: None,
        token_hash: None,
        at: at("11:59:00"),
    };
    let transitions = [transition];
    assert_contains_all(
        &explanation(&again, |context| context.transitions = &transitions),
        &["ann retried it at 2026-11-15T11:59:00Z: disk was full"],
    );
    let orphaned = run(RunState::Orphaned);
    assert_contains_all(
        &explanation(&orphaned, |context| context.executions = &executions[1..2]),
        &["which did not start it", "it has been due since"],
    );
}

#[test]
fn a_leased_run_names_its_worker_and_the_reason() {
    let assigned = Run { scheduled_for: at("12:00:05"), ..run(RunState::Assigned) };
    let id = worker_id();
    assert_contains_all(
        &explanation(&assigned, |_| {}),
        &[
            &format!(
                "the leader assigned it to worker {id} on node tokyo-1 at 2026-11-15T11:58:40Z in epoch 5"
            ),
            "because that worker was active, had a free slot and was the least loaded",
            "the worker starts it at 2026-11-15T12:00:05Z with its own timer",
            "if it has not started by 2026-11-15T12:00:15Z, the leader takes it back and assigns it to another worker",
        ],
    );
    assert_contains_all(
        &explanation(&run(RunState::Assigned), |_| {}),
        &["its worker is about to start it"],
    );

    let running = run(RunState::Running);
    assert_contains_all(
        &explanation(&running, |_| {}),
        &[
            &format!(
                "try 1 of 3 has been running since 2026-11-15T11:59:01Z on worker {id} on node tokyo-1; the run was assigned to this worker by the leader"
            ),
            "up to 2 more tries follow, the first after at least 30s",
            "if its worker does not renew the lease for 30s, the lease expires and the run is recovered",
        ],
    );
    let mut last = Run { lane: "commands".to_owned(), ..running.clone() };
    last.counters.tries_allowed = 1;
    assert_contains_all(
        &explanation(&last, |_| {}),
        &["was claimed by this worker, which had a free slot", "no try is left"],
    );
    let canceling = Run {
        cancel_requested_at: Some(at("11:59:50")),
        cancel_requested_by: Some("ann".to_owned()),
        ..running.clone()
    };
    assert_contains_all(
        &explanation(&canceling, |_| {}),
        &["ann requested a cancel at 2026-11-15T11:59:50Z; the run becomes CANCELED"],
    );

    let since = Some(at("11:59:55"));
    for (worker, sentence) in [
        (
            WorkerRecord { draining_at: since, ..worker() },
            "that worker has been draining since 2026-11-15T11:59:55Z",
        ),
        (
            WorkerRecord { detached_at: since, ..worker() },
            "that worker was detached at 2026-11-15T11:59:55Z",
        ),
        (
            WorkerRecord { dead_at: since, ..worker() },
            "that worker has been gone since 2026-11-15T11:59:55Z",
        ),
        (WorkerRecord { gone_at: since, ..worker() }, "so the run will be recovered"),
    ] {
        assert_contains_all(
            &explanation(&running, |context| context.worker = Some(&worker)),
            &[sentence],
        );
    }
}

#[test]
fn an_ended_run_names_its_outcome_and_the_possible_actions() {
    let final_ = "this state is final; `rerun` creates a new run";
    let again = "`retry` gives it one more try, `rerun` creates a new run";
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
        (plain(RunState::TimedOut), ["its last attempt exceeded the timeout", again]),
        (canceled, ["by ann, without having started: wrong day", final_]),
        (skipped("LATE"), ["it was later than its misfire policy allows", final_]),
        (skipped("CONCURRENT"), ["the job forbids two runs at the same time", final_]),
        (
            expired,
            ["it EXPIRED at 2026-11-15T11:59:30Z, without having started: EXPIRES_AT", again],
        ),
    ] {
        assert_contains_all(&explanation(&run, |_| {}), &sentences);
    }
}

/// Every state has an explanation, and every sentence is complete and has no final period.
#[test]
fn every_state_is_explained() {
    for &state in RunState::ALL {
        for sentence in explanation(&run(state), |_| {}).lines() {
            assert!(sentence.len() > 10 && !sentence.ends_with('.'), "{state}: {sentence}");
        }
    }
}
