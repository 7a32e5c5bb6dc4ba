//! Scenario tests of leader and worker with a clock that the test controls. Hours can pass between two ticks, and a slot
//! is missed because no node ran, not because the test machine was slow.

mod claim_order_of_lanes;
mod edited_jobs;
mod missed_slots;
mod recovery;
mod slow_database;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::exit::AttemptStopReason;
use tasuki_core::plan_scheduled_runs::MisfirePolicy;
use tasuki_core::schedule::{DstRuleOverrides, ScheduleKind};
use tasuki_core::work_spec::{WorkAction, WorkSpec};
use tasuki_core::{JobId, LeaseToken, RunId, RunState, Schedule, Settings, WorkerId};
use tasuki_store::{
    Job, JobCreateResult, JobDefinition, JobVersionSpec, NewWorker, Run, RunFilter,
    SettingsChangeResult, Store, Trigger,
};

use super::Leader;
use super::clock_and_random::{Clock, Random};
use super::worker::{Worker, WorkerParts};
use crate::handler::TaskSuccess;
use crate::node::coordination::coordinator_trait::DatabaseOnly;
use crate::node::coordination::node_rpc::{InProcessPeers, NodeRpc};
use crate::node::coordination::rpc_handler::NodeService;
use crate::node::executor::attempt_input_and_result::{
    Attempt, Completion, CompletionQueue, ExecutionEnd, Executor,
};
use crate::node::worker::configured_slots_and_lanes::{ServedQueues, SlotCounts};
use crate::node::worker_ids_of_process::WorkerIdentity;
use crate::operator::{AccessRole, Actor};
use crate::spawner::AttemptKey;
use crate::{Operator, Wakeups};

/// The only function that the worker has.
const FUNCTION: &str = "work";

fn at(text: &str) -> Timestamp {
    format!("2026-11-16T{text}Z").parse().unwrap()
}

fn by() -> Actor {
    Actor { name: "ann".to_owned(), address: None, role: AccessRole::Admin }
}

/// Clock set by the test, in microseconds since the scenario began.
#[derive(Default)]
struct ManualClock(AtomicU64);

impl Clock for ManualClock {
    fn boottime(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Random numbers that are predictable and never repeat.
#[derive(Default)]
struct CountingRandom(AtomicU64);

impl Random for CountingRandom {
    fn next_u128(&self) -> u128 {
        u128::from(self.0.fetch_add(1, Ordering::Relaxed) + 1) << 32
    }
}

/// Executor that runs nothing: a launched attempt ends immediately, or when the test completes it.
struct FakeExecutor {
    completions: CompletionQueue,
    completes_at_once: bool,
    running: Mutex<Vec<(AttemptKey, LeaseToken)>>,
    launched: Mutex<Vec<(Timestamp, String)>>,
    /// The lease deadline that the worker set last.
    lease_deadline: AtomicU64,
}

impl FakeExecutor {
    fn complete(&self, run: RunId) {
        let mut running = self.running.lock().unwrap();
        let position =
            running.iter().position(|(key, _)| key.run == run.0).expect("the run is running");
        let (key, token) = running.remove(position);
        self.completions.push(Completion {
            key,
            token,
            end: ExecutionEnd::Returned(Ok(TaskSuccess::default())),
        });
    }
}

impl Executor for FakeExecutor {
    fn set_lease_deadline(&self, _: LeaseToken, until: u64) {
        self.lease_deadline.store(until, Ordering::Relaxed);
    }

    fn launch(&self, attempt: Attempt) {
        let description = attempt.job.work.description.clone().unwrap_or_default();
        self.launched.lock().unwrap().push((attempt.run.scheduled_for, description));
        self.running.lock().unwrap().push((attempt.key(), attempt.token));
        if self.completes_at_once {
            self.complete(attempt.run.id);
        }
    }

    fn stop(&self, key: AttemptKey, _: AttemptStopReason, _: Duration) {
        if self.running.lock().unwrap().iter().any(|(running, _)| *running == key) {
            self.complete(RunId(key.run));
        }
    }

    fn forget(&self, _: AttemptKey) {}
}

/// A leader and a worker whose ticks run only when the test calls them.
struct Scenario {
    store: Store,
    operator: Operator,
    clock: Arc<ManualClock>,
    started_at: Timestamp,
    leader: Arc<Leader>,
    worker: Arc<Worker>,
    wakeups: Wakeups,
    executor: Arc<FakeExecutor>,
    database_link: Arc<slow_database::SlowDatabaseLink>,
    _rpc_service: Arc<dyn NodeRpc>,
}

impl Scenario {
    /// A scenario in which attempts end as soon as they are launched.
    async fn starting_at(started_at: &str) -> Self {
        Self::new(started_at, true, 50).await
    }

    /// A scenario in which attempts run until the test completes them.
    async fn with_manual_completion(started_at: &str) -> Self {
        Self::new(started_at, false, 50).await
    }

    async fn new(started_at: &str, completes_at_once: bool, slots: u32) -> Self {
        let started_at = at(started_at);
        let store = Store::open("sqlite::memory:", 1).await.unwrap();
        store.migrate().await.unwrap();
        store.set_clock(Some(started_at));
        let (clock, random): (Arc<ManualClock>, Arc<CountingRandom>) = Default::default();
        let (wakeups, completions, id) =
            (Wakeups::default(), CompletionQueue::default(), WorkerId::from_random(7 << 70));
        let executor = Arc::new(FakeExecutor {
            completions: completions.clone(),
            completes_at_once,
            running: Mutex::default(),
            launched: Mutex::default(),
            lease_deadline: AtomicU64::default(),
        });
        let labels = format!("[\"function={FUNCTION}\"]");
        let row = NewWorker {
            id,
            node: "here".parse().unwrap(),
            pid: None,
            address: None,
            labels: Some(labels),
            slots,
            function_slots: slots,
        };
        store.register_worker(&row).await.unwrap();
        let database_link = Arc::new(slow_database::SlowDatabaseLink::new(Arc::clone(&clock)));
        let store_with_link =
            store.with_fault_injector(
                Arc::clone(&database_link) as Arc<dyn tasuki_store::FaultInjector>
            );
        let parts = WorkerParts {
            store: store_with_link.clone(),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            random: Arc::clone(&random) as Arc<dyn Random>,
            executor: Arc::clone(&executor) as Arc<dyn Executor>,
            completions,
            wakeups: wakeups.clone(),
            slot_counts: Box::new(move |_| SlotCounts { commands: slots, queues: vec![slots] }),
            lanes: ServedQueues::default().lanes([FUNCTION].into_iter()),
            registration: row.clone(),
            prepare_incarnation: Box::new(|_| {}),
        };
        let identity = WorkerIdentity::from(id);
        let worker = Arc::new(Worker::new(identity.clone(), parts, Arc::default()));
        let peers = InProcessPeers::default();
        let clock_and_random = (Arc::clone(&clock) as Arc<dyn Clock>, random as Arc<dyn Random>);
        let coordinator = Arc::new(DatabaseOnly);
        let peer_router = Arc::new(peers.clone());
        let leader = Arc::new(Leader::new(
            identity,
            store_with_link,
            coordinator,
            peer_router,
            clock_and_random,
            wakeups.clone(),
        ));
        let rpc_service: Arc<dyn NodeRpc> = Arc::new(NodeService {
            node: row.node.clone(),
            worker: Arc::clone(&worker),
            leader: Arc::clone(&leader),
            store: store.clone(),
            wakeups: wakeups.clone(),
        });
        peers.register(&rpc_service);
        let operator = Operator::new(store.clone(), wakeups.clone());
        Self {
            store,
            operator,
            clock,
            started_at,
            leader,
            worker,
            wakeups,
            executor,
            database_link,
            _rpc_service: rpc_service,
        }
    }

    /// Sets the clocks without running any tick.
    fn set_time(&self, to: Timestamp) {
        self.store.set_clock(Some(to));
        let passed = to.duration_since(self.started_at).as_micros();
        self.clock.0.store(passed as u64, Ordering::Relaxed);
    }

    async fn read_clock(&self) -> Timestamp {
        self.store.read_clock().await.unwrap()
    }

    async fn settings(&self) -> Settings {
        self.store.load_settings().await.unwrap().settings
    }

    async fn change_settings(&self, changes: &[(&str, &str)]) {
        let current = self.store.load_settings().await.unwrap().version;
        let changed = self.store.change_settings("ann", current, changes).await.unwrap();
        assert!(matches!(changed, SettingsChangeResult::Applied(_)), "{changed:?}");
    }

    /// Runs the leader's ticks until nothing is left to do.
    async fn run_leader(&self) {
        let settings = self.settings().await;
        // After a long time the first call finds that the leadership was lost, and the second takes it again.
        if !self.leader.elect_or_renew(&settings).await.unwrap() {
            self.leader.elect_or_renew(&settings).await.unwrap();
        }
        while self.leader.plan(&settings).await.unwrap() {}
        self.leader.send_orders().await;
        self.leader.recover(&settings).await.unwrap();
        while self.leader.plan(&settings).await.unwrap() {}
        self.leader.send_orders().await;
    }

    /// Runs the worker's ticks until nothing is left to do.
    async fn run_worker(&self) {
        self.worker.heartbeat().await.unwrap();
        self.worker.renew(false).await.unwrap();
        self.worker.enforce_deadlines();
        self.worker.start_due().await.unwrap();
        while self.worker.claim_and_launch().await.unwrap() == Some(0) {
            self.worker.report_all().await.unwrap();
        }
        self.worker.report_all().await.unwrap();
    }

    async fn run_leader_and_worker(&self) {
        self.run_leader().await;
        self.run_worker().await;
    }

    /// Advances the clocks in steps, and runs leader and worker after each step.
    async fn advance_to(&self, to: Timestamp, step: SignedDuration) {
        loop {
            let now = self.read_clock().await;
            self.run_leader_and_worker().await;
            if now == to {
                return;
            }
            self.set_time((now + step).min(to));
        }
    }

    /// Definition of a job with this description. With `claimed` its work is a function, which workers claim; otherwise
    /// a command, which the leader assigns.
    fn definition(trigger: Trigger, description: &str, claimed: bool) -> JobDefinition {
        let action = match claimed {
            true => WorkAction::Function(FUNCTION.to_owned()),
            false => WorkAction::Command(vec!["true".to_owned()]),
        };
        let work = WorkSpec { description: Some(description.to_owned()), ..WorkSpec::new(action) };
        let spec = JobVersionSpec {
            kind: work.kind(),
            spec: work.to_json().to_string(),
            lane: work.lane_for_dispatch(work.kind().default_dispatch()),
            concurrency: ConcurrencyPolicy::Allow,
            max_attempts: 1,
            max_releases: 3,
            backoff: Duration::from_secs(1),
            backoff_cap: Duration::from_secs(60),
            jitter_percent: 0,
            retry_lost: true,
            labels: [].into(),
        };
        JobDefinition { trigger, enabled: true, spec }
    }

    async fn create_job(&self, name: &str, definition: &JobDefinition) -> Job {
        let next = match &definition.trigger {
            Trigger::Time { schedule, .. } => {
                schedule.next_after(self.read_clock().await).map(|fire| fire.at)
            }
            Trigger::Event { .. } | Trigger::Task => None,
        };
        let name = name.parse().unwrap();
        match self.store.create_job("ann", &name, definition, next).await.unwrap() {
            JobCreateResult::Created(job) => *job,
            JobCreateResult::NameTaken => panic!("{name} is taken"),
        }
    }

    /// Lists all runs of a job, ordered by planned instant.
    async fn list_runs(&self, job: JobId) -> Vec<Run> {
        let filter = RunFilter { job: Some(job), ..RunFilter::default() };
        let mut runs = Vec::new();
        let mut position = None;
        loop {
            let page = self.store.list_runs(&filter, position.as_ref(), 200).await.unwrap();
            runs.extend(page.runs);
            position = page.next;
            if position.is_none() {
                runs.sort_by_key(|run: &Run| (run.scheduled_for, run.id));
                return runs;
            }
        }
    }

    /// Slots of a job's runs in this state, as times of the day.
    async fn slots_in_state(&self, job: JobId, state: RunState) -> Vec<String> {
        let runs = self.list_runs(job).await;
        let in_state = runs.iter().filter(|run| run.state == state);
        in_state.map(|run| clock_time(run.scheduled_for)).collect()
    }

    /// Takes the attempts launched since the last call: time of the day and job description.
    fn take_launched(&self) -> Vec<(String, String)> {
        let launched = std::mem::take(&mut *self.executor.launched.lock().unwrap());
        launched.into_iter().map(|(at, description)| (clock_time(at), description)).collect()
    }

    async fn check_and_finish(self) {
        let now = self.read_clock().await;
        let report = self.store.check_invariants(move || now).await.unwrap();
        let findings: Vec<String> =
            report.findings().map(|(check, finding)| format!("{check}: {finding:?}")).collect();
        assert!(report.is_clean(), "{}", findings.join("\n"));
    }
}

fn clock_time(at: Timestamp) -> String {
    at.to_string()[11..19].to_owned()
}

fn time_trigger(kind: ScheduleKind, value: &str, misfire: Option<MisfirePolicy>) -> Trigger {
    let schedule = Schedule::parse(kind, value, "UTC", DstRuleOverrides::default()).unwrap();
    Trigger::Time { schedule, misfire }
}

fn every_trigger(value: &str, misfire: Option<MisfirePolicy>) -> Trigger {
    time_trigger(ScheduleKind::Every, value, misfire)
}
