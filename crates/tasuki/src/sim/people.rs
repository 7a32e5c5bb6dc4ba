//! What people and other programs do meanwhile.

use std::time::Duration;

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::misfire::Misfire;
use tasuki_core::schedule::{DstChoice, ScheduleKind};
use tasuki_core::job_spec::{Dispatch, What, Work};
use tasuki_core::{JobName, RunState, Schedule, WorkerId};
use tasuki_store::{
    Writer, Error, Job, JobDefinition, JobSpec, NewEvent, NewRun, RunFilter, Store, Trigger,
};

use super::host::FUNCTION;
use super::rng::Rng;
use super::stage::Stage;

/// The jobs there may be.
pub(super) const JOBS: [&str; 10] = [
    "forbid", "allow", "replace", "within", "function", "event", "task", "call", "latest", "given",
];

/// What somebody does.
#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    Emit,
    Submit,
    Trigger,
    Cancel,
    Retry,
    Rerun,
    Create,
    Edit,
    Disable,
    Enable,
    Pause,
    Resume,
    Delete,
    Drain,
    Detach,
    Depose,
    Settings,
}

pub(super) const ACTS: &[(u64, Act)] = &[
    (16, Act::Emit),
    (24, Act::Submit),
    (6, Act::Trigger),
    (16, Act::Cancel),
    (6, Act::Retry),
    (5, Act::Rerun),
    (5, Act::Create),
    (6, Act::Edit),
    (3, Act::Disable),
    (5, Act::Enable),
    (3, Act::Pause),
    (5, Act::Resume),
    (2, Act::Delete),
    (3, Act::Drain),
    (10, Act::Detach),
    (4, Act::Depose),
    (3, Act::Settings),
];

/// Settings that make everything happen within a minute.
pub(super) const HURRIED: &[(&str, &str)] = &[
    ("leader_tick", "500ms"),
    ("assign_ahead", "5s"),
    ("leader_renew", "1s"),
    ("leader_ttl", "5s"),
    ("leader_margin", "500ms"),
    ("heartbeat_interval", "500ms"),
    ("heartbeat_ttl", "6s"),
    ("reassign_after", "5s"),
    ("lease_renew", "1s"),
    ("lease_ttl", "6s"),
    ("outage_tolerance", "2s"),
    ("kill_margin", "1s"),
    ("steal_grace", "500ms"),
    ("skip_late_after", "12s"),
    ("stop_grace", "1s"),
    ("timeout", "40s"),
];

/// Does it. What was chosen comes with it, so that nothing is drawn while it waits.
pub(super) async fn act(stage: Stage, store: Store, act: Act, mut rng: Rng) -> Result<(), Error> {
    let by = "somebody";
    match act {
        Act::Emit => {
            let key = rng.chance(600).then(|| format!("event-{}", rng.below(4)));
            let kind = rng.pick(&["order.paid", "order.sent", "nobody.cares"]);
            let payload = rng.pick(&[r#"{"n":1}"#, r#"{"n":2}"#, "[1]"]);
            let name: JobName = "event".parse()?;
            let emitted = store
                .emit(&NewEvent {
                    event_type: kind,
                    source: "shop",
                    dedupe_key: key.as_deref(),
                    job_name: rng.chance(100).then_some(&name),
                    payload: Some(payload),
                })
                .await?;
            stage.promise(key.map(|key| format!("event under {key}")), emitted.event.0);
        }
        Act::Submit => {
            let name = rng.pick(&["task", "task", "call", "given", "event", "replace"]);
            let Some(job) = store.job(&name.parse()?).await? else { return Ok(()) };
            let key = rng.chance(500).then(|| format!("{name}-{}", rng.below(4)));
            let expires = rng.chance(150).then(|| {
                stage.database_time() + SignedDuration::from_millis(rng.below(6_000) as i64)
            });
            let run = NewRun {
                idempotency_key: key.clone(),
                expires_at: expires,
                args: rng.chance(300).then(|| r#"{"who":"me"}"#.to_owned()),
                ..NewRun::task(&job.newest)
            };
            let count = rng.weigh(&[(6, 1), (2, 3), (1, 5)]);
            let runs = match key {
                None => vec![run; count],
                Some(_) => vec![run],
            };
            let created = store.create(Writer::Api, &runs).await?;
            stage.promise(key.map(|key| format!("run under {key}")), created[0].run.0);
        }
        Act::Trigger => {
            let Some(job) = any_job(&store, &mut rng).await? else { return Ok(()) };
            let _ = store.trigger(by, job.seen(), &NewRun::task(&job.newest)).await?;
        }
        Act::Cancel | Act::Retry | Act::Rerun => {
            let states = match (act, rng.chance(700)) {
                (Act::Cancel, true) => vec![RunState::Assigned, RunState::Running],
                (Act::Retry, _) => {
                    vec![RunState::Failed, RunState::TimedOut, RunState::Expired]
                }
                _ => vec![],
            };
            let filter = RunFilter { states, ..RunFilter::default() };
            let page = store.runs(&filter, None, 20).await?.runs;
            if page.is_empty() {
                return Ok(());
            }
            let run = &page[rng.below(page.len() as u64) as usize];
            let told = match act {
                Act::Cancel => {
                    let told = store.cancel(Writer::Api, run.id, by, None).await?;
                    format!("{told:?}")
                }
                Act::Retry => format!("{:?}", store.retry(run.id, by, None).await?),
                _ => {
                    let Some(job) = store.job_by_id(run.job).await? else { return Ok(()) };
                    format!("{:?}", store.rerun(by, &job.newest, run.id).await?)
                }
            };
            stage.tell(|| format!("{act:?} of run {}: {told}", run.id));
        }
        Act::Create => {
            let name = rng.pick(&JOBS);
            create(&stage, &store, name, &mut rng).await?;
        }
        Act::Edit => {
            let Some(job) = any_job(&store, &mut rng).await? else { return Ok(()) };
            let new = definition(&job.name, &mut rng);
            let next = first_fire(&stage, &new);
            let _ = store.edit_job(by, job.seen(), &new, next).await?;
        }
        Act::Disable => {
            let Some(job) = any_job(&store, &mut rng).await? else { return Ok(()) };
            let _ = store.disable_job(by, job.seen()).await?;
        }
        Act::Enable | Act::Resume => {
            for job in store.jobs(None, 50).await? {
                let off = !job.enabled || job.paused_at.is_some();
                if !off || job.deleted_at.is_some() {
                    continue;
                }
                let next = job.schedule()?.and_then(|one| one.next_after(stage.database_time()));
                let next = next.map(|fire| fire.at);
                let _ = match job.enabled {
                    false => store.enable_job(by, job.seen(), next).await?,
                    true => store.resume_job(by, job.seen(), next).await?,
                };
            }
        }
        Act::Pause => {
            let Some(job) = any_job(&store, &mut rng).await? else { return Ok(()) };
            let until = rng.chance(700).then(|| {
                stage.database_time() + SignedDuration::from_millis(rng.between(100, 8_000) as i64)
            });
            match store.pause_job(by, job.seen(), "a rest", until).await {
                // It was over before it began.
                Err(error) if error.is_invalid_input() => {}
                told => drop(told?),
            }
        }
        Act::Delete => {
            let Some(job) = any_job(&store, &mut rng).await? else { return Ok(()) };
            let _ = store.delete_job(by, job.seen()).await?;
        }
        Act::Drain => {
            let workers = store.workers().await?;
            if !workers.is_empty() {
                let worker = &workers[rng.below(workers.len() as u64) as usize];
                store.drain_worker(by, worker.id).await?;
            }
        }
        Act::Detach => {
            // Mostly somebody who has something to lose.
            let carried = store.given().await?;
            let mut workers: Vec<WorkerId> = carried
                .iter()
                .filter(|one| one.state == RunState::Running)
                .map(|one| one.worker)
                .collect();
            if workers.is_empty() || rng.chance(200) {
                workers = store.workers().await?.iter().map(|worker| worker.id).collect();
            }
            if !workers.is_empty() {
                store.detach_worker(Writer::Api, by, rng.pick(&workers), "go away").await?;
            }
        }
        Act::Depose => {
            let leader = store.leader().await?;
            store.demote(by, leader.epoch, "another, please").await?;
        }
        Act::Settings => {
            let seen = store.settings().await?;
            let (name, value) = rng.pick(&[
                ("lease_renew", "1500ms"),
                ("lease_renew", "1s"),
                ("lease_ttl", "12s"),
                ("lease_ttl", "6s"),
                ("assign_ahead", "2s"),
                ("assign_ahead", "5s"),
                ("heartbeat_ttl", "4s"),
                ("recovery_enabled", "false"),
                ("recovery_enabled", "true"),
                ("timeout", "8s"),
            ]);
            let _ = store.change_settings(by, seen.version, &[(name, value)]).await?;
        }
    }
    Ok(())
}

/// Makes a job, unless there is one of this name.
pub(super) async fn create(
    stage: &Stage,
    store: &Store,
    name: &str,
    rng: &mut Rng,
) -> Result<(), Error> {
    let new = definition(name, rng);
    let next = first_fire(stage, &new);
    let _ = store.create_job("somebody", &name.parse()?, &new, next).await?;
    Ok(())
}

fn first_fire(stage: &Stage, new: &JobDefinition) -> Option<jiff::Timestamp> {
    match &new.trigger {
        Trigger::Time { schedule, .. } => {
            schedule.next_after(stage.database_time()).map(|fire| fire.at)
        }
        Trigger::Event { .. } | Trigger::Task => None,
    }
}

async fn any_job(store: &Store, rng: &mut Rng) -> Result<Option<Job>, Error> {
    let name = rng.pick(&JOBS);
    store.job(&name.parse()?).await
}

/// What a job of this name is like; the rest is chance.
fn definition(name: &str, rng: &mut Rng) -> JobDefinition {
    let what = match name {
        "function" | "call" | "given" => What::Function(FUNCTION.to_owned()),
        _ => What::Command(vec!["work".to_owned()]),
    };
    let mut work = Work::new(what);
    work.timeout = rng.chance(300).then(|| Duration::from_millis(rng.between(2_000, 20_000)));
    work.heartbeat_timeout = rng.chance(150).then_some(Duration::from_secs(3));
    work.stop_grace = Some(Duration::from_millis(rng.below(2_000)));
    let concurrency = match name {
        "forbid" | "within" => ConcurrencyPolicy::Forbid,
        "replace" => ConcurrencyPolicy::Replace,
        _ => rng.weigh(&[(6, ConcurrencyPolicy::Allow), (1, ConcurrencyPolicy::Forbid)]),
    };
    let dispatch = match name {
        "function" | "call" | "task" => Dispatch::Claim,
        _ => Dispatch::Assign,
    };
    let misfire = match name {
        "within" => Some(Misfire::EveryWithin(Duration::from_secs(20))),
        "latest" => Some(Misfire::LatestOnly),
        _ => rng.weigh(&[(3, None), (1, Some(Misfire::AtMost(2)))]),
    };
    let trigger = match name {
        "event" => Trigger::Event { types: ["order.*".to_owned()].into(), filter: None },
        "task" | "call" | "given" => Trigger::Task,
        _ => {
            let every = format!("{}s", rng.between(3, 8));
            let schedule =
                Schedule::parse(ScheduleKind::Every, &every, "UTC", DstChoice::default());
            Trigger::Time { schedule: schedule.expect("a good schedule"), misfire }
        }
    };
    let spec = JobSpec {
        kind: work.kind(),
        spec: work.to_json().to_string(),
        lane: work.lane(dispatch),
        concurrency,
        max_attempts: rng.weigh(&[(2, 1), (1, 2), (2, 3)]),
        max_releases: 20,
        backoff: Duration::from_millis(rng.below(2_000)),
        backoff_cap: Duration::from_secs(4),
        jitter_percent: rng.pick(&[0, 50]),
        retry_lost: rng.chance(800),
        labels: [].into(),
    };
    JobDefinition { trigger, enabled: true, spec }
}
