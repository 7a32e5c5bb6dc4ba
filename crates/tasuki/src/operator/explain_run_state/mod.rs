//! Explains the state of a run in sentences for operators: what created it, which worker holds it and why, what it
//! waits for, and what happens next.
//!
//! A pure function of data that the caller has read. It makes no guesses: missing data is named as unknown.

use jiff::{SignedDuration, Timestamp};
use tasuki_core::run::transition::RunVerb;
use tasuki_core::{AttemptOutcome, Lane, Origin, RunId, RunState, Schedule, Settings, duration};
use tasuki_store::{Execution, JobVersionSpec, Run, TransitionRecord, WorkerRecord};

/// The data about a run's surroundings that an explanation needs.
#[derive(Debug)]
pub struct RunExplanationData<'a> {
    /// The database's clock.
    pub clock: Timestamp,
    /// The name of the run's job.
    pub job: &'a str,
    /// The current schedule of the job, if it has one.
    pub schedule: Option<Schedule>,
    /// Whether the job still exists.
    pub job_exists: bool,
    /// The job version from which the run was created.
    pub spec: Option<&'a JobVersionSpec>,
    /// The worker that holds the run, or held it last.
    pub worker: Option<&'a WorkerRecord>,
    /// The number of workers that accept new runs.
    pub active_workers: usize,
    /// Whether there is a leader.
    pub has_leader: bool,
    /// Another run that owns the hold which this run needs.
    pub hold_owner: Option<RunId>,
    /// The current settings.
    pub settings: &'a Settings,
    /// All attempts of the run.
    pub executions: &'a [Execution],
    /// The records of the run's rare transitions.
    pub transitions: &'a [TransitionRecord],
}

/// Explains the state of a run, one sentence per fact.
pub fn explain_run_state(run: &Run, context: &RunExplanationData<'_>) -> Vec<String> {
    let mut sentences = vec![explain_origin(run, context)];
    sentences.extend(explain_history(run, context));
    sentences.extend(match run.state {
        RunState::Pending | RunState::Orphaned | RunState::RetryWait => {
            explain_waiting(run, context)
        }
        RunState::Assigned => explain_assigned(run, context),
        RunState::Running => explain_running(run, context),
        RunState::Succeeded
        | RunState::Failed
        | RunState::TimedOut
        | RunState::Canceled
        | RunState::Skipped
        | RunState::Expired => explain_ended(run, context),
    });
    sentences
}

fn explain_origin(run: &Run, context: &RunExplanationData<'_>) -> String {
    let (id, job, version) = (run.id, context.job, run.job_version);
    let creation = match run.origin {
        Origin::Time => {
            let slot = run.slot.as_deref().unwrap_or("unknown");
            let description = context.schedule.as_ref().map_or(String::new(), |schedule| {
                let description = schedule.describe(tasuki_core::Language::English);
                format!(", which fires {description} ({})", schedule.zone())
            });
            format!("was created for the fire time {slot} of job {job}{description}")
        }
        Origin::Event => {
            let event = run.event.map_or_else(|| "an event".to_owned(), |id| format!("event {id}"));
            format!("was created by {event} for job {job}")
        }
        Origin::Task => format!("was submitted as a task of job {job}"),
        Origin::Manual => format!("was triggered manually for job {job}"),
        Origin::Rerun => {
            let of =
                run.rerun_of.map_or_else(|| "an older run".to_owned(), |id| format!("run {id}"));
            format!("is a rerun of {of} of job {job}")
        }
    };
    let scope = match run.scope == Default::default() {
        true => String::new(),
        false => format!(" for {}", run.scope),
    };
    format!(
        "run {id} {creation}{scope}, at version {version} of the job, planned for {}",
        run.scheduled_for
    )
}

/// Sentences about earlier attempts and manual retries.
fn explain_history(run: &Run, context: &RunExplanationData<'_>) -> Vec<String> {
    let mut sentences = Vec::new();
    for past in context.executions.iter().filter(|past| past.outcome.is_some()) {
        if run.state.is_ended() && past.attempt_no == run.counters.attempt_no {
            continue;
        }
        let (number, worker) = (past.attempt_no, past.worker);
        let code = past.error_code.as_ref().map_or(String::new(), |code| format!(" with {code}"));
        sentences.push(match past.outcome {
            Some(AttemptOutcome::Released) => {
                format!("attempt {number} was assigned to worker {worker}, which did not start it")
            }
            Some(AttemptOutcome::Lost) => format!(
                "attempt {number} was lost: worker {worker} stopped renewing its lease, or was reported dead"
            ),
            Some(outcome) => format!("attempt {number} on worker {worker} ended as {outcome}{code}"),
            None => continue,
        });
    }
    for transition in
        context.transitions.iter().filter(|transition| transition.verb == RunVerb::Retry)
    {
        let reason =
            transition.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
        sentences.push(format!("{} retried it at {}{reason}", transition.actor, transition.at));
    }
    sentences
}

fn explain_waiting(run: &Run, context: &RunExplanationData<'_>) -> Vec<String> {
    let due = run.due_at();
    let mut sentences = Vec::new();
    if let Some(at) = run.next_retry_at {
        let (tries, allowed) = (run.counters.tries, run.counters.tries_allowed);
        sentences.push(format!(
            "it has used {tries} of {allowed} tries; the next try starts at {at} at the earliest"
        ));
    }
    if due > context.clock {
        sentences.push(format!("it is due at {due}, in {}", time_between(context.clock, due)));
    } else {
        sentences
            .push(format!("it has been due since {due}, for {}", time_between(due, context.clock)));
    }
    if let Some(holder) = context.hold_owner {
        sentences.push(format!(
            "run {holder} of the same job and scope is assigned or running, and the job allows only one run at a time, so this run waits until that run ends"
        ));
    }
    sentences.push(explain_next_worker(run, context));
    if run.counters.tries == 0
        && let Some(late) = run.skip_at
    {
        sentences.push(format!("if it has not started by {late}, it becomes SKIPPED (LATE)"));
    }
    if let Some(end) = run.expires_at {
        sentences.push(format!("if it is still waiting at {end}, it becomes EXPIRED"));
    }
    sentences
}

/// Which worker will get the run, and what prevents it.
fn explain_next_worker(run: &Run, context: &RunExplanationData<'_>) -> String {
    let labels =
        context.spec.filter(|spec| !spec.labels.is_empty()).map_or(String::new(), |spec| {
            let labels: Vec<&str> = spec.labels.iter().map(String::as_str).collect();
            format!(" (the worker must have the labels {})", labels.join(", "))
        });
    let workers = context.active_workers;
    if !run.lane.is_empty() {
        return match workers {
            0 => "a worker must claim it, but no worker is active".to_owned(),
            _ => format!(
                "the first of {workers} active workers with a free slot for {} claims it{labels}",
                lane_name(&run.lane)
            ),
        };
    }
    match (context.has_leader, workers) {
        (false, _) => {
            "the leader must assign it to a worker, but there is no leader at the moment".to_owned()
        }
        (true, 0) => "the leader must assign it to a worker, but no worker is active".to_owned(),
        (true, _) => format!(
            "the leader assigns it to the least loaded of {workers} active workers{labels}, at the earliest {} before its planned time",
            duration::format_exact_duration(context.settings.assign_ahead())
        ),
    }
}

/// The lane in the words of users: the function with its queue and priority. The lane of commands is its own name.
fn lane_name(lane: &str) -> String {
    match lane.parse::<Lane>() {
        Ok(Lane { queue, handler, priority }) => {
            format!("function {handler} (queue {queue}, priority {priority})")
        }
        Err(_) => lane.to_owned(),
    }
}

fn explain_assigned(run: &Run, context: &RunExplanationData<'_>) -> Vec<String> {
    let epoch = run.epoch.map_or(String::new(), |epoch| format!(" in epoch {epoch}"));
    let mut sentences = vec![format!(
        "the leader assigned it to {} at {}{epoch}, because that worker was active, had a free slot and was the least loaded",
        worker_name(run, context),
        time_text(run.assigned_at)
    )];
    match run.due_at() > context.clock {
        true => {
            sentences.push(format!("the worker starts it at {} with its own timer", run.due_at()));
        }
        false => sentences.push("it is due, and its worker is about to start it".to_owned()),
    }
    if let Some(start_by) = run.start_by {
        sentences.push(format!(
            "if it has not started by {start_by}, the leader takes it back and assigns it to another worker"
        ));
    }
    sentences.extend(explain_worker_state(context));
    sentences
}

fn explain_running(run: &Run, context: &RunExplanationData<'_>) -> Vec<String> {
    let (tries, allowed) = (run.counters.tries, run.counters.tries_allowed);
    let how = match run.lane.is_empty() {
        true => "was assigned to this worker by the leader",
        false => "was claimed by this worker, which had a free slot",
    };
    let mut sentences = vec![format!(
        "try {tries} of {allowed} has been running since {} on {}; the run {how}",
        time_text(run.started_at),
        worker_name(run, context)
    )];
    match (run.cancel_requested_at, &run.cancel_requested_by) {
        (Some(at), by) => {
            let by = by.as_deref().unwrap_or("an unknown user");
            sentences.push(format!(
                "{by} requested a cancel at {at}; the run becomes CANCELED when its processes have ended, unless it succeeds first"
            ));
        }
        (None, _) => sentences.push(explain_next_failure(run, context)),
    }
    sentences.push(format!(
        "if its worker does not renew the lease for {}, the lease expires and the run is recovered",
        duration::format_exact_duration(context.settings.lease_ttl())
    ));
    sentences.extend(explain_worker_state(context));
    sentences
}

/// What happens if the current try fails.
fn explain_next_failure(run: &Run, context: &RunExplanationData<'_>) -> String {
    let left = run.counters.tries_allowed.saturating_sub(run.counters.tries);
    match (left, context.spec) {
        (0, _) => "if it fails now, it ends: no try is left".to_owned(),
        (left, Some(spec)) => format!(
            "if it fails with a retryable error, up to {left} more tries follow, the first after at least {}",
            duration::format_exact_duration(spec.backoff)
        ),
        (left, None) => {
            format!("if it fails with a retryable error, up to {left} more tries follow")
        }
    }
}

fn explain_ended(run: &Run, context: &RunExplanationData<'_>) -> Vec<String> {
    let at = time_text(run.finished_at);
    let on = run.worker.map_or(String::new(), |_| format!(" on {}", worker_name(run, context)));
    let tries = match run.counters.tries {
        0 => "without having started".to_owned(),
        1 => "after 1 try".to_owned(),
        tries => format!("after {tries} tries"),
    };
    let mut sentences = vec![match run.state {
        RunState::Succeeded => format!("it SUCCEEDED at {at}{on}, {tries}"),
        RunState::Failed => format!("it FAILED at {at}{on}, {tries}{}", failure_text(run)),
        RunState::TimedOut => {
            format!("it TIMED_OUT at {at}{on}, {tries}: its last attempt exceeded the timeout")
        }
        RunState::Canceled => {
            let by = run.cancel_requested_by.as_deref();
            let by = by.or_else(|| {
                transition(context, RunVerb::Cancel).map(|transition| transition.actor.as_str())
            });
            format!(
                "it was CANCELED at {at} by {}, {tries}{}",
                by.unwrap_or("an unknown user"),
                reason_text(run)
            )
        }
        RunState::Skipped => match run.reason.as_deref() {
            Some("LATE") => {
                format!("it was SKIPPED at {at}: it was later than its misfire policy allows")
            }
            Some("CONCURRENT") => format!(
                "it was SKIPPED at {at}: another run of the job was active, and the job forbids two runs at the same time"
            ),
            _ => format!("it was SKIPPED at {at}{}", reason_text(run)),
        },
        RunState::Expired => {
            format!("it EXPIRED at {at}, {tries}{}{}", failure_text(run), reason_text(run))
        }
        RunState::Pending
        | RunState::Assigned
        | RunState::Running
        | RunState::Orphaned
        | RunState::RetryWait => {
            format!("it is {}", run.state)
        }
    }];
    let next = match (run.state.may_become(RunState::RetryWait), context.job_exists) {
        (true, true) => {
            "it is not retried automatically; `retry` gives it one more try, `rerun` creates a new run"
        }
        (true, false) => {
            "it is not retried automatically; `retry` gives it one more try; its job was deleted"
        }
        (false, true) => "this state is final; `rerun` creates a new run",
        (false, false) => "this state is final, and its job was deleted",
    };
    sentences.push(next.to_owned());
    sentences
}

fn failure_text(run: &Run) -> String {
    let code = run.error_code.as_ref().map(|code| format!("with {code}"));
    let exit = run.exit_code.map(|code| format!("exit code {code}"));
    let signal = run.exit_signal.map(|signal| format!("signal {signal}"));
    let parts: Vec<String> = [code, exit, signal].into_iter().flatten().collect();
    let message = run.error_message.as_ref().map_or(String::new(), |text| format!(": {text}"));
    match parts.is_empty() {
        true => message,
        false => format!(", {}{message}", parts.join(", ")),
    }
}

fn reason_text(run: &Run) -> String {
    run.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"))
}

fn transition<'a>(context: &RunExplanationData<'a>, verb: RunVerb) -> Option<&'a TransitionRecord> {
    context.transitions.iter().rev().find(|transition| transition.verb == verb)
}

/// The worker with its id, and with its node, whose name users know.
fn worker_name(run: &Run, context: &RunExplanationData<'_>) -> String {
    match (context.worker, run.worker) {
        (Some(worker), _) => format!("worker {} on node {}", worker.id, worker.node),
        (None, Some(id)) => format!("worker {id}"),
        (None, None) => "no worker".to_owned(),
    }
}

/// What the state of its worker means for the run.
fn explain_worker_state(context: &RunExplanationData<'_>) -> Option<String> {
    let worker = context.worker?;
    if let Some(at) = worker.gone_at.or(worker.dead_at) {
        return Some(format!("that worker has been gone since {at}, so the run will be recovered"));
    }
    if let Some(at) = worker.detached_at {
        return Some(format!(
            "that worker was detached at {at} and requests permission to continue"
        ));
    }
    worker.draining_at.map(|at| {
        format!("that worker has been draining since {at}: it finishes its running runs and releases runs that have not started")
    })
}

fn time_text(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "an unknown time".to_owned(), |at| at.to_string())
}

/// The time between two instants, in the two largest units.
fn time_between(from: Timestamp, to: Timestamp) -> String {
    let time_between: SignedDuration = to.duration_since(from);
    let seconds = time_between.as_secs().max(0);
    let units = [
        (seconds / 86_400, "d"),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let first = units.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let sentences = units[first..].iter().take(2).filter(|(count, _)| *count > 0 || first == 3);
    sentences.map(|(count, unit)| format!("{count}{unit}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
