//! A test node for programs that embed tasuki: it runs in this process on an in-memory database, and the test controls
//! its clock.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! use std::time::Duration;
//! use tasuki::testing::TestNode;
//! use tasuki::{Context, JobDeclaration, TaskError};
//!
//! async fn roll_up((): (), context: Context) -> Result<(), TaskError> {
//!     context.log("rolled up");
//!     Ok(())
//! }
//!
//! let hourly = JobDeclaration::every("roll_up", "1h").unwrap();
//! let node =
//!     TestNode::starting_at("2026-11-16T11:30:00Z", |node| node.handler("roll_up", roll_up).job(hourly)).await;
//! node.advance(Duration::from_secs(2 * 3600)).await;
//! assert_eq!(node.list_runs_of_job("roll_up").await.len(), 2);
//! node.check_and_close().await;
//! # }
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::{RunId, RunState};
use tasuki_store::{Run, RunFilter, Store};

use crate::Client;
use crate::node::clock_and_random::Clock;
use crate::node::{Node, NodeBuilder};

/// Maximum real time that handlers may take to return.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(60);
/// Polling interval while handlers run.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A node that acts only when the test calls a method. All methods panic on errors, because it is for tests.
pub struct TestNode {
    client: Client,
    node: Node,
    clock: Arc<ManualTestClock>,
    started_at: Timestamp,
}

/// A local clock that the test sets: microseconds since the start of the test.
#[derive(Default)]
struct ManualTestClock(AtomicU64);

impl Clock for ManualTestClock {
    fn boottime(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl TestNode {
    /// Builds a node with `build` and sets its clock to an instant such as `2026-11-16T12:00:00Z`.
    pub async fn starting_at(
        instant: &str,
        build: impl FnOnce(NodeBuilder) -> NodeBuilder,
    ) -> Self {
        let started_at: Timestamp = instant.parse().expect("the instant is valid");
        let store = Store::open("sqlite::memory:", 1).await.expect("the in-memory database opens");
        store.migrate().await.expect("the schema is created");
        store.set_clock(Some(started_at));
        let client = Client::new(store).with_actor("test");
        let clock = Arc::new(ManualTestClock::default());
        let builder = build(client.node_builder("test").expect("the node name is valid"));
        let (node, _) = builder
            .assemble(Arc::clone(&clock) as Arc<dyn Clock>)
            .await
            .unwrap_or_else(|error| panic!("the node cannot start: {error}"));
        Self { client, node, clock, started_at }
    }

    /// A client of the node's database.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The current time of the node's clock.
    pub fn now(&self) -> Timestamp {
        let passed = SignedDuration::from_micros(self.clock.boottime() as i64);
        self.started_at + passed
    }

    /// Runs everything that is due until the node is idle, and waits for the handlers.
    pub async fn run_until_idle(&self) {
        let started_at = std::time::Instant::now();
        loop {
            self.run_loops_once().await;
            if self.node.worker.is_idle() && !self.has_due_run().await {
                return;
            }
            assert!(started_at.elapsed() < HANDLER_TIMEOUT, "a handler does not return");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Advances the clock. Everything that becomes due in that time runs at its own time.
    pub async fn advance(&self, time: Duration) {
        let until =
            self.now() + SignedDuration::try_from(time).expect("the duration is not too long");
        loop {
            self.run_until_idle().await;
            if self.now() >= until {
                return;
            }
            let next = self.next_event_at().await.unwrap_or(until);
            self.set_time(next.clamp(self.now() + SignedDuration::from_micros(1), until));
        }
    }

    /// All runs of a job that are planned for now or earlier, in the order of their planned instants.
    pub async fn list_runs_of_job(&self, job: &str) -> Vec<Run> {
        let job = self.client.operator().get_job(job).await.expect("the job exists").job.id;
        let filter = RunFilter { job: Some(job), until: Some(self.now()), ..RunFilter::default() };
        let (mut runs, mut position) = (Vec::new(), None);
        loop {
            let page = self.client.store().list_runs(&filter, position.as_ref(), 200).await;
            let page = page.expect("the runs can be read");
            runs.extend(page.runs);
            position = page.next;
            if position.is_none() {
                runs.sort_by_key(|run: &Run| (run.scheduled_for, run.id));
                return runs;
            }
        }
    }

    /// Reads a run and asserts that it succeeded.
    #[track_caller]
    pub fn assert_succeeded(&self, run: RunId) -> impl Future<Output = Run> {
        let caller = std::panic::Location::caller();
        async move {
            let now = self.client.get_run(run).await.expect("the run exists").run;
            assert!(
                now.state == RunState::Succeeded,
                "{caller}: run {run} is {}: {}",
                now.state,
                now.error_message.as_deref().unwrap_or("no error message")
            );
            now
        }
    }

    /// Checks the database with tasuki's doctor, asserts that it finds no problem, and closes it.
    pub async fn check_and_close(self) {
        let now = self.now();
        let report = self
            .client
            .store()
            .check_invariants(move || now)
            .await
            .expect("the database can be checked");
        let findings: Vec<String> =
            report.findings().map(|(check, finding)| format!("{check}: {finding:?}")).collect();
        assert!(report.is_clean(), "{}", findings.join("\n"));
        self.client.store().close().await;
    }

    fn set_time(&self, to: Timestamp) {
        self.client.store().set_clock(Some(to));
        let passed = to.duration_since(self.started_at).as_micros();
        self.clock.0.store(passed.max(0) as u64, Ordering::Relaxed);
    }

    /// Runs each loop of the node once.
    async fn run_loops_once(&self) {
        let (worker, leader) = (&self.node.worker, &self.node.leader);
        let ticks = async {
            worker.heartbeat().await?;
            let settings = worker.settings();
            // After a long advance, the first call finds that the leader lease expired, and the second acquires it
            // again.
            if !leader.elect_or_renew(&settings).await? {
                leader.elect_or_renew(&settings).await?;
            }
            self.node.scopes.sync_stored_schedule_cursors(&self.node.store).await?;
            while leader.plan(&settings).await? {}
            leader.send_orders().await;
            leader.recover(&settings).await?;
            worker.renew(false).await?;
            worker.enforce_deadlines();
            worker.start_due().await?;
            while worker.claim_and_launch().await? == Some(0) {}
            worker.report_all().await
        };
        let done: Result<(), tasuki_store::Error> = ticks.await;
        done.expect("the in-memory database responds");
    }

    /// Whether a waiting run is due.
    async fn has_due_run(&self) -> bool {
        let (start, now) = (Timestamp::UNIX_EPOCH, self.now());
        self.find_next_due_run(start, now).await.is_some()
    }

    /// The instant at which the next run or fire becomes due.
    async fn next_event_at(&self) -> Option<Timestamp> {
        let far = Timestamp::MAX - SignedDuration::from_hours(24 * 365);
        let cursors =
            self.client.store().list_due_cursors(far, 1).await.expect("the cursors can be read");
        let next_fire = cursors.first().map(|cursor| cursor.next_fire);
        let due = self.find_next_due_run(self.now(), far).await;
        [next_fire, due].into_iter().flatten().min()
    }

    async fn find_next_due_run(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let store = self.client.store();
        let mut next = None;
        for lane in store.list_waiting_lanes().await.expect("the lanes can be read") {
            let due = store
                .find_next_due_in_lane(&lane, after, until)
                .await
                .expect("the due runs can be read");
            next = [next, due].into_iter().flatten().min();
        }
        next
    }
}
