//! What a leader and a worker make of schedules and policies, with time in the hands of the test: hours pass
//! between two ticks, and a slot is missed because nobody was there, not because a machine was slow.

mod ahead;
mod missed;
mod queues;
mod slow;
mod supervised;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::exit::Stopped;
use tasuki_core::misfire::Misfire;
use tasuki_core::schedule::{DstChoice, ScheduleKind};
use tasuki_core::job_spec::{What, Work};
use tasuki_core::{JobId, LeaseToken, RunId, RunState, Schedule, Settings, WorkerId};
use tasuki_store::{
    Job, JobCreated, JobDefinition, JobSpec, NewWorker, Run, RunFilter, SettingsChange, Store,
    Trigger,
};

use super::Leader;
use super::worker::{Parts, Worker};
use super::world::{Clock, Dice};
use crate::handler::Done;
use crate::node::coordination::called::Callee;
use crate::node::coordination::coordinate::DatabaseOnly;
use crate::node::coordination::peers::{Called, InProcess};
use crate::node::executor::attempt::{Attempt, End, Executor, Happened, Mail};
use crate::node::worker::me::Me;
use crate::node::worker::queues::{Queues, Slots};
use crate::operator::{Actor, Role};
use crate::spawner::JobKey;
use crate::{Operator, Wake};

/// The only function there is.
const FUNCTION: &str = "work";

fn at(text: &str) -> Timestamp {
    format!("2026-11-16T{text}Z").parse().unwrap()
}

fn by() -> Actor {
    Actor { name: "ann".to_owned(), address: None, role: Role::Admin }
}

/// Microseconds since the world began.
#[derive(Default)]
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn boottime(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Never the same twice.
#[derive(Default)]
struct CountingDice(AtomicU64);

impl Dice for CountingDice {
    fn roll(&self) -> u128 {
        u128::from(self.0.fetch_add(1, Ordering::Relaxed) + 1) << 32
    }
}

/// Runs nothing: what is launched goes on until the test ends it, or ends at once.
struct Hands {
    mail: Mail,
    at_once: bool,
    open: Mutex<Vec<(JobKey, LeaseToken)>>,
    launched: Mutex<Vec<(Timestamp, String)>>,
    /// Until when what runs may, as it was last told.
    until: AtomicU64,
}

impl Hands {
    fn end(&self, run: RunId) {
        let mut open = self.open.lock().unwrap();
        let place = open.iter().position(|(key, _)| key.run == run.0).expect("it runs");
        let (key, token) = open.remove(place);
        self.mail.send(Happened { key, token, end: End::Returned(Ok(Done::default())) });
    }
}

impl Executor for Hands {
    fn lease(&self, _: LeaseToken, until: u64) {
        self.until.store(until, Ordering::Relaxed);
    }

    fn launch(&self, attempt: Attempt) {
        let what = attempt.recipe.work.description.clone().unwrap_or_default();
        self.launched.lock().unwrap().push((attempt.taken.scheduled_for, what));
        self.open.lock().unwrap().push((attempt.key(), attempt.token));
        if self.at_once {
            self.end(attempt.taken.id);
        }
    }

    fn stop(&self, key: JobKey, _: Stopped, _: Duration) {
        if self.open.lock().unwrap().iter().any(|(open, _)| *open == key) {
            self.end(RunId(key.run));
        }
    }

    fn forget(&self, _: JobKey) {}
}

/// A leader and a worker that do nothing unless they are told to.
struct World {
    store: Store,
    operator: Operator,
    clock: Arc<HandClock>,
    began: Timestamp,
    leader: Arc<Leader>,
    worker: Arc<Worker>,
    wake: Wake,
    hands: Arc<Hands>,
    line: Arc<slow::SlowLine>,
    _callee: Arc<dyn Called>,
}

impl World {
    /// Runs end as soon as they are launched.
    async fn at(began: &str) -> Self {
        Self::new(began, true, 50).await
    }

    /// Runs go on until the test ends them.
    async fn with_patience(began: &str) -> Self {
        Self::new(began, false, 50).await
    }

    async fn new(began: &str, at_once: bool, slots: u32) -> Self {
        let began = at(began);
        let store = Store::open("sqlite::memory:", 1).await.unwrap();
        store.migrate().await.unwrap();
        store.set_clock(Some(began));
        let (clock, dice): (Arc<HandClock>, Arc<CountingDice>) = Default::default();
        let (wake, mail, id) = (Wake::default(), Mail::default(), WorkerId::from_random(7 << 70));
        let hands = Arc::new(Hands {
            mail: mail.clone(),
            at_once,
            open: Mutex::default(),
            launched: Mutex::default(),
            until: AtomicU64::default(),
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
        let line = Arc::new(slow::SlowLine::new(Arc::clone(&clock)));
        let lined = store.with_line(Arc::clone(&line) as Arc<dyn tasuki_store::Line>);
        let parts = Parts {
            store: lined.clone(),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            dice: Arc::clone(&dice) as Arc<dyn Dice>,
            executor: Arc::clone(&hands) as Arc<dyn Executor>,
            mail,
            wake: wake.clone(),
            slots: Box::new(move |_| Slots { commands: slots, queues: vec![slots] }),
            lanes: Queues::default().sources([FUNCTION].into_iter()),
            registration: row.clone(),
            settle_in: Box::new(|_| {}),
        };
        let me = Me::from(id);
        let worker = Arc::new(Worker::new(me.clone(), parts, Arc::default()));
        let peers = InProcess::default();
        let world = (Arc::clone(&clock) as Arc<dyn Clock>, dice as Arc<dyn Dice>);
        let coordinator = Arc::new(DatabaseOnly);
        let reach = Arc::new(peers.clone());
        let leader = Arc::new(Leader::new(me, lined, coordinator, reach, world, wake.clone()));
        let callee: Arc<dyn Called> = Arc::new(Callee {
            node: row.node.clone(),
            worker: Arc::clone(&worker),
            leader: Arc::clone(&leader),
            store: store.clone(),
            wake: wake.clone(),
        });
        peers.add(&callee);
        let operator = Operator::new(store.clone(), wake.clone());
        Self { store, operator, clock, began, leader, worker, wake, hands, line, _callee: callee }
    }

    /// From now on it is this time, and nobody has done anything since.
    fn jump(&self, to: Timestamp) {
        self.store.set_clock(Some(to));
        let passed = to.duration_since(self.began).as_micros();
        self.clock.0.store(passed as u64, Ordering::Relaxed);
    }

    async fn now(&self) -> Timestamp {
        self.store.clock().await.unwrap()
    }

    async fn settings(&self) -> Settings {
        self.store.settings().await.unwrap().settings
    }

    async fn set(&self, changes: &[(&str, &str)]) {
        let seen = self.store.settings().await.unwrap().version;
        let changed = self.store.change_settings("ann", seen, changes).await.unwrap();
        assert!(matches!(changed, SettingsChange::Applied(_)), "{changed:?}");
    }

    /// The leader does all there is to do.
    async fn lead(&self) {
        let settings = self.settings().await;
        // After a long silence the first time shows that the lead was lost, the second takes it anew.
        if !self.leader.lead(&settings).await.unwrap() {
            self.leader.lead(&settings).await.unwrap();
        }
        while self.leader.plan(&settings).await.unwrap() {}
        self.leader.deliver().await;
        self.leader.recover(&settings).await.unwrap();
        while self.leader.plan(&settings).await.unwrap() {}
        self.leader.deliver().await;
    }

    /// And so does the worker.
    async fn work(&self) {
        self.worker.pulse().await.unwrap();
        self.worker.renew(false).await.unwrap();
        self.worker.tend();
        self.worker.start_due().await.unwrap();
        while self.worker.claim().await.unwrap() == Some(0) {
            self.worker.report_all().await.unwrap();
        }
        self.worker.report_all().await.unwrap();
    }

    async fn turn(&self) {
        self.lead().await;
        self.work().await;
    }

    /// Goes on in steps, with both at work after each.
    async fn go_on_to(&self, to: Timestamp, step: SignedDuration) {
        loop {
            let now = self.now().await;
            self.turn().await;
            if now == to {
                return;
            }
            self.jump((now + step).min(to));
        }
    }

    /// A job whose runs are known by this description; functions are claimed, commands assigned.
    fn definition(trigger: Trigger, what: &str, claimed: bool) -> JobDefinition {
        let kind = match claimed {
            true => What::Function(FUNCTION.to_owned()),
            false => What::Command(vec!["true".to_owned()]),
        };
        let work = Work { description: Some(what.to_owned()), ..Work::new(kind) };
        let spec = JobSpec {
            kind: work.kind(),
            spec: work.to_json().to_string(),
            lane: work.lane(work.kind().dispatch()),
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

    async fn create(&self, name: &str, definition: &JobDefinition) -> Job {
        let next = match &definition.trigger {
            Trigger::Time { schedule, .. } => {
                schedule.next_after(self.now().await).map(|fire| fire.at)
            }
            Trigger::Event { .. } | Trigger::Task => None,
        };
        let name = name.parse().unwrap();
        match self.store.create_job("ann", &name, definition, next).await.unwrap() {
            JobCreated::Made(job) => *job,
            JobCreated::NameTaken => panic!("{name} is taken"),
        }
    }

    /// All runs of a job, by the instant they were planned for.
    async fn runs(&self, job: JobId) -> Vec<Run> {
        let filter = RunFilter { job: Some(job), ..RunFilter::default() };
        let mut found = Vec::new();
        let mut place = None;
        loop {
            let page = self.store.runs(&filter, place.as_ref(), 200).await.unwrap();
            found.extend(page.runs);
            place = page.next;
            if place.is_none() {
                found.sort_by_key(|run: &Run| (run.scheduled_for, run.id));
                return found;
            }
        }
    }

    /// The slots of a job's runs in a state, as times of the day.
    async fn slots(&self, job: JobId, state: RunState) -> Vec<String> {
        let runs = self.runs(job).await;
        let such = runs.iter().filter(|run| run.state == state);
        such.map(|run| clock_time(run.scheduled_for)).collect()
    }

    /// What was launched since the last time this was asked.
    fn launched(&self) -> Vec<(String, String)> {
        let launched = std::mem::take(&mut *self.hands.launched.lock().unwrap());
        launched.into_iter().map(|(at, what)| (clock_time(at), what)).collect()
    }

    async fn end(self) {
        let now = self.now().await;
        let report = self.store.doctor(move || now).await.unwrap();
        let findings: Vec<String> =
            report.findings().map(|(check, finding)| format!("{check}: {finding:?}")).collect();
        assert!(report.is_clean(), "{}", findings.join("\n"));
    }
}

fn clock_time(at: Timestamp) -> String {
    at.to_string()[11..19].to_owned()
}

fn time(kind: ScheduleKind, value: &str, misfire: Option<Misfire>) -> Trigger {
    let schedule = Schedule::parse(kind, value, "UTC", DstChoice::default()).unwrap();
    Trigger::Time { schedule, misfire }
}

fn every(value: &str, misfire: Option<Misfire>) -> Trigger {
    time(ScheduleKind::Every, value, misfire)
}
