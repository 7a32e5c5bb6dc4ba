//! For tests of programs that embed tasuki: a node in this process, on a database in memory, whose time is in
//! the hands of the test.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! use std::time::Duration;
//! use tasuki::testing::TestNode;
//! use tasuki::{Context, Job, TaskError};
//!
//! async fn roll_up((): (), context: Context) -> Result<(), TaskError> {
//!     context.log("rolled up");
//!     Ok(())
//! }
//!
//! let hourly = Job::every("roll_up", "1h").unwrap();
//! let node = TestNode::at("2026-11-16T11:30:00Z", |node| node.handler("roll_up", roll_up).job(hourly)).await;
//! node.pass(Duration::from_secs(2 * 3600)).await;
//! assert_eq!(node.runs_of("roll_up").await.len(), 2);
//! node.finish().await;
//! # }
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::{RunId, RunState};
use tasuki_store::{Run, RunFilter, Store};

use crate::Client;
use crate::node::world::Clock;
use crate::node::{Node, NodeBuilder};

/// How long, on the clock on the wall, handlers that were called may take to return.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(1);

/// A node that does nothing unless it is told to. Everything panics that goes wrong: it is for tests.
pub struct TestNode {
    client: Client,
    node: Node,
    clock: Arc<HandClock>,
    began: Timestamp,
}

/// Microseconds since the test began.
#[derive(Default)]
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn boottime(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl TestNode {
    /// A node as `build` makes it, at an instant such as `2026-11-16T12:00:00Z`.
    pub async fn at(instant: &str, build: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Self {
        let began: Timestamp = instant.parse().expect("an instant");
        let store = Store::open("sqlite::memory:", 1).await.expect("a database in memory");
        store.migrate().await.expect("an empty database");
        store.set_clock(Some(began));
        let client = Client::new(store).named("test");
        let clock = Arc::new(HandClock::default());
        let builder = build(client.node("test").expect("a name"));
        let (node, _) = builder
            .assemble(Arc::clone(&clock) as Arc<dyn Clock>)
            .await
            .unwrap_or_else(|error| panic!("the node cannot start: {error}"));
        Self { client, node, clock, began }
    }

    /// Submits and looks.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        let passed = SignedDuration::from_micros(self.clock.boottime() as i64);
        self.began + passed
    }

    /// Everything that is due happens, to its end. Handlers are waited for.
    pub async fn settle(&self) {
        let began = std::time::Instant::now();
        loop {
            self.turn().await;
            if self.node.worker.is_idle() && !self.is_due().await {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "a handler does not return");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// So much time passes, and everything that comes due meanwhile happens at its time.
    pub async fn pass(&self, time: Duration) {
        let until = self.now() + SignedDuration::try_from(time).expect("less than an age");
        loop {
            self.settle().await;
            if self.now() >= until {
                return;
            }
            let next = self.next().await.unwrap_or(until);
            self.set(next.clamp(self.now() + SignedDuration::from_micros(1), until));
        }
    }

    /// All runs of a job, by the instants they were planned for; those planned for later are not among them.
    pub async fn runs_of(&self, job: &str) -> Vec<Run> {
        let job = self.client.operator().job(job).await.expect("a job of this name").job.id;
        let filter = RunFilter { job: Some(job), until: Some(self.now()), ..RunFilter::default() };
        let (mut runs, mut place) = (Vec::new(), None);
        loop {
            let page = self.client.store().runs(&filter, place.as_ref(), 200).await;
            let page = page.expect("a page of runs");
            runs.extend(page.runs);
            place = page.next;
            if place.is_none() {
                runs.sort_by_key(|run: &Run| (run.scheduled_for, run.id));
                return runs;
            }
        }
    }

    /// A run, which must have succeeded.
    #[track_caller]
    pub fn succeeded(&self, run: RunId) -> impl Future<Output = Run> {
        let caller = std::panic::Location::caller();
        async move {
            let now = self.client.run(run).await.expect("a run").run;
            assert!(
                now.state == RunState::Succeeded,
                "{caller}: run {run} is {}: {}",
                now.state,
                now.error_message.as_deref().unwrap_or("nothing is said of why")
            );
            now
        }
    }

    /// Everything must be as tasuki's doctor wants it.
    pub async fn finish(self) {
        let now = self.now();
        let report = self.client.store().doctor(move || now).await.expect("a doctor");
        let findings: Vec<String> =
            report.findings().map(|(check, finding)| format!("{check}: {finding:?}")).collect();
        assert!(report.is_clean(), "{}", findings.join("\n"));
        self.client.store().close().await;
    }

    fn set(&self, to: Timestamp) {
        self.client.store().set_clock(Some(to));
        let passed = to.duration_since(self.began).as_micros();
        self.clock.0.store(passed.max(0) as u64, Ordering::Relaxed);
    }

    /// Each of the node's ticks, once.
    async fn turn(&self) {
        let (worker, leader) = (&self.node.worker, &self.node.leader);
        let ticks = async {
            worker.pulse().await?;
            let settings = worker.settings();
            // After a long time the first shows that the lead was lost, the second takes it anew.
            if !leader.lead(&settings).await? {
                leader.lead(&settings).await?;
            }
            self.node.scopes.sync(&self.node.store).await?;
            while leader.plan(&settings).await? {}
            leader.deliver().await;
            leader.recover(&settings).await?;
            worker.renew(false).await?;
            worker.tend();
            worker.start_due().await?;
            while worker.claim().await? == Some(0) {}
            worker.report_all().await
        };
        let done: Result<(), tasuki_store::Error> = ticks.await;
        done.expect("a database in memory answers");
    }

    /// Whether anything waits that is due.
    async fn is_due(&self) -> bool {
        let (start, now) = (Timestamp::UNIX_EPOCH, self.now());
        self.next_due(start, now).await.is_some()
    }

    /// When the next thing comes due.
    async fn next(&self) -> Option<Timestamp> {
        let far = Timestamp::MAX - SignedDuration::from_hours(24 * 365);
        let cursors = self.client.store().cursors(far, 1).await.expect("cursors");
        let fires = cursors.first().map(|cursor| cursor.next_fire);
        let due = self.next_due(self.now(), far).await;
        [fires, due].into_iter().flatten().min()
    }

    async fn next_due(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let store = self.client.store();
        let mut next = None;
        for lane in store.lanes().await.expect("lanes") {
            let due = store.next_due(&lane, after, until).await.expect("what is due");
            next = [next, due].into_iter().flatten().min();
        }
        next
    }
}
