//! Actions of users and other programs during a simulation.

use std::time::Duration;

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::plan_scheduled_runs::MisfirePolicy;
use tasuki_core::schedule::{DstRuleOverrides, ScheduleKind};
use tasuki_core::work_spec::{Dispatch, WorkAction, WorkSpec};
use tasuki_core::{JobName, RunState, Schedule, WorkerId};
use tasuki_store::{
    Error, Job, JobDefinition, JobVersionSpec, NewEvent, NewRun, RunFilter, Store, Trigger, Writer,
};

use super::host::FUNCTION;
use super::rng::Rng;
use super::state::SimState;

/// Names of the jobs that may exist.
pub(super) const JOBS: [&str; 10] = [
    "forbid", "allow", "replace", "within", "function", "event", "task", "call", "latest", "given",
];

/// Kinds of actions.
#[derive(Debug, Clone, Copy)]
pub(super) enum UserAction {
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
    DemoteLeader,
    ChangeSettings,
}

pub(super) const USER_ACTION_WEIGHTS: &[(u64, UserAction)] = &[
    (16, UserAction::Emit),
    (24, UserAction::Submit),
    (6, UserAction::Trigger),
    (16, UserAction::Cancel),
    (6, UserAction::Retry),
    (5, UserAction::Rerun),
    (5, UserAction::Create),
    (6, UserAction::Edit),
    (3, UserAction::Disable),
    (5, UserAction::Enable),
    (3, UserAction::Pause),
    (5, UserAction::Resume),
    (2, UserAction::Delete),
    (3, UserAction::Drain),
    (10, UserAction::Detach),
    (4, UserAction::DemoteLeader),
    (3, UserAction::ChangeSettings),
];

/// Settings with short times, so that everything happens within a minute.
pub(super) const FAST_SETTINGS: &[(&str, &str)] = &[
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

/// Performs an action. It has its own random number generator, so that it draws nothing from the shared one while it
/// is paused.
pub(super) async fn perform(
    state: SimState,
    store: Store,
    action: UserAction,
    mut rng: Rng,
) -> Result<(), Error> {
    let by = "user";
    match action {
        UserAction::Emit => {
            let key = rng.chance(600).then(|| format!("event-{}", rng.below(4)));
            let kind = rng.pick(&["order.paid", "order.sent", "other.event"]);
            let payload = rng.pick(&[r#"{"n":1}"#, r#"{"n":2}"#, "[1]"]);
            let name: JobName = "event".parse()?;
            let emitted = store
                .emit_event(&NewEvent {
                    event_type: kind,
                    source: "shop",
                    dedupe_key: key.as_deref(),
                    job_name: rng.chance(100).then_some(&name),
                    payload: Some(payload),
                })
                .await?;
            state.check_stable_id(key.map(|key| format!("event under {key}")), emitted.event.0);
        }
        UserAction::Submit => {
            let name = rng.pick(&["task", "task", "call", "given", "event", "replace"]);
            let Some(job) = store.find_job(&name.parse()?).await? else { return Ok(()) };
            let key = rng.chance(500).then(|| format!("{name}-{}", rng.below(4)));
            let expires = rng.chance(150).then(|| {
                state.database_time() + SignedDuration::from_millis(rng.below(6_000) as i64)
            });
            let run = NewRun {
                idempotency_key: key.clone(),
                expires_at: expires,
                args: rng.chance(300).then(|| r#"{"who":"me"}"#.to_owned()),
                ..NewRun::task(&job.newest)
            };
            let count = rng.pick_weighted(&[(6, 1), (2, 3), (1, 5)]);
            let runs = match key {
                None => vec![run; count],
                Some(_) => vec![run],
            };
            let created = store.create_or_find_runs(Writer::Api, &runs).await?;
            state.check_stable_id(key.map(|key| format!("run under {key}")), created[0].run.0);
        }
        UserAction::Trigger => {
            let Some(job) = pick_job(&store, &mut rng).await? else { return Ok(()) };
            let _ = store.trigger(by, job.expected_version(), &NewRun::task(&job.newest)).await?;
        }
        UserAction::Cancel | UserAction::Retry | UserAction::Rerun => {
            let states = match (action, rng.chance(700)) {
                (UserAction::Cancel, true) => vec![RunState::Assigned, RunState::Running],
                (UserAction::Retry, _) => {
                    vec![RunState::Failed, RunState::TimedOut, RunState::Expired]
                }
                _ => vec![],
            };
            let filter = RunFilter { states, ..RunFilter::default() };
            let page = store.list_runs(&filter, None, 20).await?.runs;
            if page.is_empty() {
                return Ok(());
            }
            let run = &page[rng.below(page.len() as u64) as usize];
            let result = match action {
                UserAction::Cancel => {
                    let result = store.cancel(Writer::Api, run.id, by, None).await?;
                    format!("{result:?}")
                }
                UserAction::Retry => format!("{:?}", store.retry_manually(run.id, by, None).await?),
                _ => {
                    let Some(job) = store.find_job_by_id(run.job).await? else { return Ok(()) };
                    format!("{:?}", store.rerun(by, &job.newest, run.id).await?)
                }
            };
            state.log(|| format!("{action:?} of run {}: {result}", run.id));
        }
        UserAction::Create => {
            let name = rng.pick(&JOBS);
            create_job_if_absent(&state, &store, name, &mut rng).await?;
        }
        UserAction::Edit => {
            let Some(job) = pick_job(&store, &mut rng).await? else { return Ok(()) };
            let new = definition(&job.name, &mut rng);
            let next = first_fire(&state, &new);
            let _ = store.edit_job(by, job.expected_version(), &new, next).await?;
        }
        UserAction::Disable => {
            let Some(job) = pick_job(&store, &mut rng).await? else { return Ok(()) };
            let _ = store.disable_job(by, job.expected_version()).await?;
        }
        UserAction::Enable | UserAction::Resume => {
            for job in store.list_jobs(None, 50).await? {
                let inactive = !job.enabled || job.paused_at.is_some();
                if !inactive || job.deleted_at.is_some() {
                    continue;
                }
                let next = job
                    .parse_stored_schedule()?
                    .and_then(|schedule| schedule.next_after(state.database_time()));
                let next = next.map(|fire| fire.at);
                let _ = match job.enabled {
                    false => store.enable_job(by, job.expected_version(), next).await?,
                    true => store.resume_job(by, job.expected_version(), next).await?,
                };
            }
        }
        UserAction::Pause => {
            let Some(job) = pick_job(&store, &mut rng).await? else { return Ok(()) };
            let until = rng.chance(700).then(|| {
                state.database_time() + SignedDuration::from_millis(rng.between(100, 8_000) as i64)
            });
            match store.pause_job(by, job.expected_version(), "a test", until).await {
                // The end of the pause has passed already.
                Err(error) if error.is_invalid_input() => {}
                result => drop(result?),
            }
        }
        UserAction::Delete => {
            let Some(job) = pick_job(&store, &mut rng).await? else { return Ok(()) };
            let _ = store.delete_job(by, job.expected_version()).await?;
        }
        UserAction::Drain => {
            let workers = store.list_workers().await?;
            if !workers.is_empty() {
                let worker = &workers[rng.below(workers.len() as u64) as usize];
                store.drain_worker(by, worker.id).await?;
            }
        }
        UserAction::Detach => {
            // Mostly a worker that has running runs.
            let leased_runs = store.list_assigned_runs_of_all_workers().await?;
            let mut workers: Vec<WorkerId> = leased_runs
                .iter()
                .filter(|run| run.state == RunState::Running)
                .map(|run| run.worker)
                .collect();
            if workers.is_empty() || rng.chance(200) {
                workers = store.list_workers().await?.iter().map(|worker| worker.id).collect();
            }
            if !workers.is_empty() {
                store.detach_worker(Writer::Api, by, rng.pick(&workers), "a test").await?;
            }
        }
        UserAction::DemoteLeader => {
            let leader = store.get_leader_record().await?;
            store.demote_leader(by, leader.epoch, "a test").await?;
        }
        UserAction::ChangeSettings => {
            let current = store.load_settings().await?;
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
            let _ = store.change_settings(by, current.version, &[(name, value)]).await?;
        }
    }
    Ok(())
}

/// Creates a job, unless a job of this name exists.
pub(super) async fn create_job_if_absent(
    state: &SimState,
    store: &Store,
    name: &str,
    rng: &mut Rng,
) -> Result<(), Error> {
    let new = definition(name, rng);
    let next = first_fire(state, &new);
    let _ = store.create_job("user", &name.parse()?, &new, next).await?;
    Ok(())
}

fn first_fire(state: &SimState, new: &JobDefinition) -> Option<jiff::Timestamp> {
    match &new.trigger {
        Trigger::Time { schedule, .. } => {
            schedule.next_after(state.database_time()).map(|fire| fire.at)
        }
        Trigger::Event { .. } | Trigger::Task => None,
    }
}

async fn pick_job(store: &Store, rng: &mut Rng) -> Result<Option<Job>, Error> {
    let name = rng.pick(&JOBS);
    store.find_job(&name.parse()?).await
}

/// Definition of the job with this name; everything that the name does not decide is random.
fn definition(name: &str, rng: &mut Rng) -> JobDefinition {
    let action = match name {
        "function" | "call" | "given" => WorkAction::Function(FUNCTION.to_owned()),
        _ => WorkAction::Command(vec!["work".to_owned()]),
    };
    let mut work = WorkSpec::new(action);
    work.timeout = rng.chance(300).then(|| Duration::from_millis(rng.between(2_000, 20_000)));
    work.heartbeat_timeout = rng.chance(150).then_some(Duration::from_secs(3));
    work.stop_grace = Some(Duration::from_millis(rng.below(2_000)));
    let concurrency = match name {
        "forbid" | "within" => ConcurrencyPolicy::Forbid,
        "replace" => ConcurrencyPolicy::Replace,
        _ => rng.pick_weighted(&[(6, ConcurrencyPolicy::Allow), (1, ConcurrencyPolicy::Forbid)]),
    };
    let dispatch = match name {
        "function" | "call" | "task" => Dispatch::Claim,
        _ => Dispatch::Assign,
    };
    let misfire = match name {
        "within" => Some(MisfirePolicy::EveryWithin(Duration::from_secs(20))),
        "latest" => Some(MisfirePolicy::LatestOnly),
        _ => rng.pick_weighted(&[(3, None), (1, Some(MisfirePolicy::AtMost(2)))]),
    };
    let trigger = match name {
        "event" => Trigger::Event { types: ["order.*".to_owned()].into(), filter: None },
        "task" | "call" | "given" => Trigger::Task,
        _ => {
            let every = format!("{}s", rng.between(3, 8));
            let schedule =
                Schedule::parse(ScheduleKind::Every, &every, "UTC", DstRuleOverrides::default());
            Trigger::Time { schedule: schedule.expect("the schedule is valid"), misfire }
        }
    };
    let spec = JobVersionSpec {
        kind: work.kind(),
        spec: work.to_json().to_string(),
        lane: work.lane_for_dispatch(dispatch),
        concurrency,
        max_attempts: rng.pick_weighted(&[(2, 1), (1, 2), (2, 3)]),
        max_releases: 20,
        backoff: Duration::from_millis(rng.below(2_000)),
        backoff_cap: Duration::from_secs(4),
        jitter_percent: rng.pick(&[0, 50]),
        retry_lost: rng.chance(800),
        labels: [].into(),
    };
    JobDefinition { trigger, enabled: true, spec }
}
