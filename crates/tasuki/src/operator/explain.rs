//! Why a run is where it is, in words: where it came from, who has it and why, what it waits for, what
//! happens next.
//!
//! A pure function of what was read. It guesses nothing: where the rows do not tell, it says so.

use jiff::{SignedDuration, Timestamp};
use tasuki_core::run::transition::Verb;
use tasuki_core::{AttemptOutcome, Origin, RunId, RunState, Schedule, Settings, duration};
use tasuki_store::{Execution, JobSpec, Run, RunNote, Worker};

/// What was read besides the run.
#[derive(Debug)]
pub struct Around<'a> {
    /// The database's clock.
    pub clock: Timestamp,
    /// What its job is called.
    pub job: &'a str,
    /// Its job's schedule, as it is now.
    pub schedule: Option<Schedule>,
    /// Whether there still is such a job.
    pub has_job: bool,
    /// What the run was made of.
    pub spec: Option<&'a JobSpec>,
    /// Who has it, or had it last.
    pub worker: Option<&'a Worker>,
    /// How many workers take new work.
    pub active_workers: usize,
    /// Whether anybody leads.
    pub has_leader: bool,
    /// Another run that has the only place there is.
    pub holder: Option<RunId>,
    /// The settings in force.
    pub settings: &'a Settings,
    /// Every attempt at it.
    pub executions: &'a [Execution],
    /// Its rare moves.
    pub notes: &'a [RunNote],
}

/// Why a run is where it is, a sentence each.
pub fn explain(run: &Run, around: &Around<'_>) -> Vec<String> {
    let mut told = vec![origin(run, around)];
    told.extend(history(run, around));
    told.extend(match run.state {
        RunState::Pending | RunState::Orphaned | RunState::RetryWait => waiting(run, around),
        RunState::Assigned => assigned(run, around),
        RunState::Running => running(run, around),
        RunState::Succeeded
        | RunState::Failed
        | RunState::TimedOut
        | RunState::Canceled
        | RunState::Skipped
        | RunState::Expired => ended(run, around),
    });
    told
}

fn origin(run: &Run, around: &Around<'_>) -> String {
    let (id, job, version) = (run.id, around.job, run.job_version);
    let made = match run.origin {
        Origin::Time => {
            let slot = run.slot.as_deref().unwrap_or("unknown");
            let words = around.schedule.as_ref().map_or(String::new(), |schedule| {
                let words = schedule.words(tasuki_core::Language::English);
                format!(", which fires {words} ({})", schedule.zone())
            });
            format!("was made for slot {slot} of job {job}{words}")
        }
        Origin::Event => {
            let event = run.event.map_or_else(|| "an event".to_owned(), |id| format!("event {id}"));
            format!("was made by {event} for job {job}")
        }
        Origin::Task => format!("was submitted as a task of job {job}"),
        Origin::Manual => format!("was started by hand from job {job}"),
        Origin::Rerun => {
            let of =
                run.rerun_of.map_or_else(|| "an older run".to_owned(), |id| format!("run {id}"));
            format!("runs {of} of job {job} again")
        }
    };
    let scope = match run.scope == Default::default() {
        true => String::new(),
        false => format!(" for {}", run.scope),
    };
    format!(
        "run {id} {made}{scope}, at version {version} of the job, planned for {}",
        run.scheduled_for
    )
}

/// What has been tried so far, where that is more than what the state itself tells.
fn history(run: &Run, around: &Around<'_>) -> Vec<String> {
    let mut told = Vec::new();
    for past in around.executions.iter().filter(|past| past.outcome.is_some()) {
        if run.state.is_ended() && past.attempt_no == run.counters.attempt_no {
            continue;
        }
        let (number, worker) = (past.attempt_no, past.worker);
        let code = past.error_code.as_ref().map_or(String::new(), |code| format!(" with {code}"));
        told.push(match past.outcome {
            Some(AttemptOutcome::Released) => {
                format!("attempt {number} was given to worker {worker}, which did not start it")
            }
            Some(AttemptOutcome::Lost) => format!(
                "attempt {number} was lost: worker {worker} stopped renewing its lease, or was reported dead"
            ),
            Some(outcome) => format!("attempt {number} on worker {worker} ended as {outcome}{code}"),
            None => continue,
        });
    }
    for note in around.notes.iter().filter(|note| note.verb == Verb::Retry) {
        let reason = note.reason.as_ref().map_or(String::new(), |why| format!(": {why}"));
        told.push(format!("{} gave it one more try at {}{reason}", note.actor, note.at));
    }
    told
}

fn waiting(run: &Run, around: &Around<'_>) -> Vec<String> {
    let due = run.due_at();
    let mut told = Vec::new();
    if let Some(at) = run.next_retry_at {
        let (tries, allowed) = (run.counters.tries, run.counters.tries_allowed);
        told.push(format!("{tries} of {allowed} tries are used; the next is not before {at}"));
    }
    if due > around.clock {
        told.push(format!("it waits for its time, {due}, in {}", apart(around.clock, due)));
    } else {
        told.push(format!("it has been due since {due}, for {}", apart(due, around.clock)));
    }
    if let Some(holder) = around.holder {
        told.push(format!(
            "run {holder} of the same job and scope has the only place there is, so this one waits until it ends"
        ));
    }
    told.push(taker(run, around));
    if run.counters.tries == 0
        && let Some(late) = run.skip_at
    {
        told.push(format!("if it has not started by {late} it is SKIPPED as late"));
    }
    if let Some(end) = run.expires_at {
        told.push(format!("if it has not ended by {end} it is EXPIRED"));
    }
    told
}

/// Who will take it, and what is in the way of that.
fn taker(run: &Run, around: &Around<'_>) -> String {
    let labels = around.spec.filter(|spec| !spec.labels.is_empty()).map_or(String::new(), |spec| {
        let labels: Vec<&str> = spec.labels.iter().map(String::as_str).collect();
        format!(" (it must have the labels {})", labels.join(", "))
    });
    let workers = around.active_workers;
    if !run.lane.is_empty() {
        return match workers {
            0 => format!("a worker claims it from lane {:?}, but no worker is active", run.lane),
            _ => format!(
                "the first of {workers} active workers with room in lane {:?} claims it{labels}",
                run.lane
            ),
        };
    }
    match (around.has_leader, workers) {
        (false, _) => {
            "the leader would give it to a worker, but nobody leads at the moment".to_owned()
        }
        (true, 0) => "the leader gives it to a worker, but no worker is active".to_owned(),
        (true, _) => format!(
            "the leader gives it to the least busy of {workers} active workers{labels}, from {} before its time on",
            duration::show(around.settings.assign_ahead())
        ),
    }
}

fn assigned(run: &Run, around: &Around<'_>) -> Vec<String> {
    let epoch = run.epoch.map_or(String::new(), |epoch| format!(" in epoch {epoch}"));
    let mut told = vec![format!(
        "the leader gave it to {} at {}{epoch}: it was active, had a free slot and was the least busy",
        who(run, around),
        shown(run.assigned_at)
    )];
    match run.due_at() > around.clock {
        true => told.push(format!("the worker starts it at {} by its own timer", run.due_at())),
        false => told.push("it is due, and its worker is about to start it".to_owned()),
    }
    if let Some(start_by) = run.start_by {
        told.push(format!(
            "if it has not started by {start_by} it is taken back and given to another"
        ));
    }
    told.extend(standing(around));
    told
}

fn running(run: &Run, around: &Around<'_>) -> Vec<String> {
    let (tries, allowed) = (run.counters.tries, run.counters.tries_allowed);
    let how = match run.lane.is_empty() {
        true => "was given to it by the leader",
        false => "was claimed by it, because it had room",
    };
    let mut told = vec![format!(
        "try {tries} of {allowed} has been running since {} on {}; the run {how}",
        shown(run.started_at),
        who(run, around)
    )];
    match (run.cancel_requested_at, &run.cancel_requested_by) {
        (Some(at), by) => {
            let by = by.as_deref().unwrap_or("somebody");
            told.push(format!(
                "{by} asked it to stop at {at}; it becomes CANCELED when its processes are gone, unless it succeeds first"
            ));
        }
        (None, _) => told.push(after_failure(run, around)),
    }
    told.push(format!(
        "if its worker falls silent for {} the lease lapses and the run is recovered",
        duration::show(around.settings.lease_ttl())
    ));
    told.extend(standing(around));
    told
}

/// What a failure of the present try would lead to.
fn after_failure(run: &Run, around: &Around<'_>) -> String {
    let left = run.counters.tries_allowed.saturating_sub(run.counters.tries);
    match (left, around.spec) {
        (0, _) => "if it fails now it ends: no try is left".to_owned(),
        (left, Some(spec)) => format!(
            "if it fails and another try may help, {left} more follow, the first after at least {}",
            duration::show(spec.backoff)
        ),
        (left, None) => format!("if it fails and another try may help, {left} more follow"),
    }
}

fn ended(run: &Run, around: &Around<'_>) -> Vec<String> {
    let at = shown(run.finished_at);
    let on = run.worker.map_or(String::new(), |_| format!(" on {}", who(run, around)));
    let tries = match run.counters.tries {
        0 => "without having started".to_owned(),
        1 => "after 1 try".to_owned(),
        tries => format!("after {tries} tries"),
    };
    let mut told = vec![match run.state {
        RunState::Succeeded => format!("it SUCCEEDED at {at}{on}, {tries}"),
        RunState::Failed => format!("it FAILED at {at}{on}, {tries}{}", failure(run)),
        RunState::TimedOut => format!(
            "it TIMED_OUT at {at}{on}, {tries}: an attempt may take no longer than its timeout"
        ),
        RunState::Canceled => {
            let by = run.cancel_requested_by.as_deref();
            let by = by.or_else(|| note(around, Verb::Cancel).map(|note| note.actor.as_str()));
            format!("it was CANCELED at {at} by {}, {tries}{}", by.unwrap_or("somebody"), why(run))
        }
        RunState::Skipped => match run.reason.as_deref() {
            Some("LATE") => format!(
                "it was SKIPPED at {at}: its time had passed by more than its misfire policy allows"
            ),
            Some("CONCURRENT") => format!(
                "it was SKIPPED at {at}: another run of the job was running, and the job forbids two at once"
            ),
            _ => format!("it was SKIPPED at {at}{}", why(run)),
        },
        RunState::Expired => format!("it EXPIRED at {at}, {tries}{}{}", failure(run), why(run)),
        RunState::Pending
        | RunState::Assigned
        | RunState::Running
        | RunState::Orphaned
        | RunState::RetryWait => {
            format!("it is {}", run.state)
        }
    }];
    let next = match (run.state.may_become(RunState::RetryWait), around.has_job) {
        (true, true) => {
            "nothing will try it again by itself; retry gives it one more try, rerun makes a new run"
        }
        (true, false) => {
            "nothing will try it again by itself; retry gives it one more try; its job was deleted"
        }
        (false, true) => "this is final; rerun makes a new run",
        (false, false) => "this is final, and its job was deleted",
    };
    told.push(next.to_owned());
    told
}

fn failure(run: &Run) -> String {
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

fn why(run: &Run) -> String {
    run.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"))
}

fn note<'a>(around: &Around<'a>, verb: Verb) -> Option<&'a RunNote> {
    around.notes.iter().rev().find(|note| note.verb == verb)
}

/// A worker by its node, which people know, and its id, which is never used twice.
fn who(run: &Run, around: &Around<'_>) -> String {
    match (around.worker, run.worker) {
        (Some(worker), _) => format!("worker {} on node {}", worker.id, worker.node),
        (None, Some(id)) => format!("worker {id}"),
        (None, None) => "no worker".to_owned(),
    }
}

/// What its worker's own standing means for it.
fn standing(around: &Around<'_>) -> Option<String> {
    let worker = around.worker?;
    if let Some(at) = worker.gone_at.or(worker.dead_at) {
        return Some(format!("that worker is gone since {at}, so the run will be recovered"));
    }
    if let Some(at) = worker.detached_at {
        return Some(format!("that worker was cut off at {at} and asks whether it may go on"));
    }
    worker.draining_at.map(|at| {
        format!("that worker drains since {at}: it finishes what runs and gives back what has not started")
    })
}

fn shown(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "an unknown time".to_owned(), |at| at.to_string())
}

/// How far two instants are apart, in the two largest units.
fn apart(from: Timestamp, to: Timestamp) -> String {
    let apart: SignedDuration = to.duration_since(from);
    let seconds = apart.as_secs().max(0);
    let units = [
        (seconds / 86_400, "d"),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let first = units.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let told = units[first..].iter().take(2).filter(|(count, _)| *count > 0 || first == 3);
    told.map(|(count, unit)| format!("{count}{unit}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
