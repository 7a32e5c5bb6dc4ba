//! A database of its own for each test, and runs in any state.

use std::future::Future;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::exit::Failure;
use tasuki_core::{Epoch, ErrorCode, LeaseToken, RunId, RunState, WorkerId};
use tasuki_store::{
    AssignBatch, Writer, ClaimBatch, ClaimResult, Dialect, AttemptResult, JobCreated, JobDefinition,
    JobVersion, NewRun, NewWorker, Outcome, Run, Seen, Store, Taken, Trigger, DueRun,
};

pub(crate) use crate::like::Like;

/// Makes one test for each database from one function.
macro_rules! contract {
    ($($(#[$meta:meta])* async fn $name:ident($store:ident: TestStore) $body:block)+) => {
        $(
            $(#[$meta])*
            mod $name {
                use super::*;

                async fn contract($store: &TestStore) $body

                #[test]
                fn sqlite() {
                    crate::given::run(tasuki_store::Dialect::Sqlite, async |store| contract(store).await);
                }

                #[test]
                fn postgres() {
                    crate::given::run(tasuki_store::Dialect::Postgres, async |store| contract(store).await);
                }

                #[test]
                fn mysql() {
                    crate::given::run(tasuki_store::Dialect::MySql, async |store| contract(store).await);
                }
            }
        )+
    };
}
pub(crate) use contract;

pub(crate) const TTL: Duration = Duration::from_secs(30);
pub(crate) const GRACE: Duration = Duration::from_secs(3);
pub(crate) const AHEAD: Duration = Duration::from_secs(30);
pub(crate) const REASSIGN: Duration = Duration::from_secs(15);

/// A store on an empty, migrated database, with a leader and a worker in it, at noon.
pub(crate) struct TestStore {
    store: Store,
    pub(crate) url: String,
    pub(crate) epoch: Epoch,
    pub(crate) worker: WorkerId,
    counter: AtomicU64,
    clock: AtomicI64,
    spoiled: AtomicBool,
}

impl Deref for TestStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// Noon.
pub(crate) fn noon() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

pub(crate) fn run(dialect: Dialect, test: impl AsyncFnOnce(&TestStore)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let place = Place::new(dialect).await;
        let store = TestStore::new(&place.url).await;
        test(&store).await;
        if !store.spoiled.load(Ordering::Relaxed) {
            assert_eq!(store.findings().await, [] as [String; 0], "the doctor finds nothing");
        }
        store.close().await;
        place.remove().await;
    });
}

/// The same with so many connections and threads to use them.
pub(crate) fn run_in_parallel<F: Future<Output = ()>>(
    dialect: Dialect,
    connections: u32,
    test: impl FnOnce(Arc<TestStore>) -> F,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let place = Place::new(dialect).await;
        let store = Arc::new(TestStore::with_connections(&place.url, connections).await);
        test(Arc::clone(&store)).await;
        assert_eq!(store.findings().await, [] as [String; 0], "the doctor finds nothing");
        store.close().await;
        place.remove().await;
    });
}

/// Where a test's database is.
pub(crate) struct Place {
    pub(crate) url: String,
    server: Option<(String, String)>,
    folder: Option<PathBuf>,
}

impl Place {
    pub(crate) async fn new(dialect: Dialect) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tasuki_{}_{count}", std::process::id());
        let variable = match dialect {
            Dialect::Sqlite => {
                let folder = std::env::temp_dir().join(&name);
                // A test that failed may have left one, and its process number may come again.
                let _ = std::fs::remove_dir_all(&folder);
                std::fs::create_dir_all(&folder).unwrap();
                let url = format!("sqlite:{}/test.db", folder.display());
                return Self { url, server: None, folder: Some(folder) };
            }
            Dialect::Postgres => "TASUKI_TEST_PG",
            Dialect::MySql => "TASUKI_TEST_MYSQL",
        };
        let server = std::env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: run ./test, which starts the server")
        });
        let admin = Store::open(&server, 1).await.unwrap();
        // As above: what a failed test left behind under a process number that comes again.
        admin.script(&format!("drop database if exists {name}")).await.unwrap();
        admin.script(&format!("create database {name}")).await.unwrap();
        admin.close().await;
        let (start, _) = server.rsplit_once('/').unwrap();
        Self { url: format!("{start}/{name}"), server: Some((server, name)), folder: None }
    }

    pub(crate) async fn remove(self) {
        if let Some((server, name)) = self.server {
            let admin = Store::open(&server, 1).await.unwrap();
            admin.script(&format!("drop database {name}")).await.unwrap();
            admin.close().await;
        }
        if let Some(folder) = self.folder {
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}

impl TestStore {
    async fn new(url: &str) -> Self {
        Self::with_connections(url, 4).await
    }

    async fn with_connections(url: &str, connections: u32) -> Self {
        let store = Store::open(url, connections).await.unwrap();
        store.migrate().await.unwrap();
        store.set_clock(Some(noon()));
        let worker = WorkerId::from_random(1);
        let counter = AtomicU64::new(100);
        let clock = AtomicI64::new(noon().as_microsecond());
        let spoiled = AtomicBool::new(false);
        let mut test =
            Self { store, url: url.to_owned(), epoch: Epoch(0), worker, counter, clock, spoiled };
        test.register(worker).await;
        test.epoch = test.mint(worker, Epoch(0), Epoch(0), TTL).await.unwrap().unwrap();
        test
    }

    /// This test breaks the data by hand; otherwise the doctor looks at what every test leaves behind.
    pub(crate) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Relaxed);
    }

    /// What the doctor finds, each with its check.
    pub(crate) async fn findings(&self) -> Vec<String> {
        let report = self.doctor(|| self.clock()).await.unwrap();
        report
            .findings()
            .map(|(id, one)| format!("{id}: {} {:?}", one.what, one.examples))
            .collect()
    }

    /// Where the clock stands.
    pub(crate) fn clock(&self) -> Timestamp {
        Timestamp::from_microsecond(self.clock.load(Ordering::Relaxed)).unwrap()
    }

    pub(crate) fn number(&self) -> u128 {
        u128::from(self.counter.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn token(&self) -> LeaseToken {
        LeaseToken::from_random(self.number() << 64)
    }

    /// So many seconds after noon.
    pub(crate) fn at(&self, seconds: i64) {
        let now = noon() + SignedDuration::from_secs(seconds);
        self.clock.store(now.as_microsecond(), Ordering::Relaxed);
        self.set_clock(Some(now));
    }

    pub(crate) async fn register(&self, id: WorkerId) {
        let worker = NewWorker {
            id,
            node: "node".parse().unwrap(),
            pid: None,
            address: None,
            labels: None,
            slots: 1_000_000,
            function_slots: 100,
        };
        self.register_worker(&worker).await.unwrap();
    }

    pub(crate) async fn given_job(&self, like: &Like) -> JobVersion {
        let name = format!("job {}", self.number()).parse().unwrap();
        let definition = JobDefinition { trigger: Trigger::Task, enabled: true, spec: like.spec() };
        match self.create_job("test", &name, &definition, None).await.unwrap() {
            JobCreated::Made(job) => job.newest,
            JobCreated::NameTaken => panic!("{name} is taken"),
        }
    }

    pub(crate) async fn given_waiting(&self, job: &JobVersion, like: &Like) -> RunId {
        let later = |seconds: i64| noon() + SignedDuration::from_secs(seconds);
        let new = NewRun {
            skip_at: like.skip_after.map(later),
            expires_at: like.expire_after.map(later),
            ..NewRun::task(job)
        };
        self.create(Writer::Api, &[new]).await.unwrap()[0].run
    }

    /// A run that waits since just now.
    pub(crate) async fn given_run_now(&self) -> RunId {
        let job = self.given_job(&Like::default()).await;
        self.given_waiting(&job, &Like::default()).await
    }

    /// A run in this state, brought there by the verbs themselves.
    pub(crate) async fn given_run(&self, state: RunState) -> Run {
        self.given_run_like(state, &Like::default()).await
    }

    pub(crate) async fn given_run_like(&self, state: RunState, like: &Like) -> Run {
        let mut like = like.clone();
        match state {
            RunState::TimedOut => like.max_attempts = 1,
            RunState::Skipped => like.skip_after = Some(-1),
            RunState::Expired => like.expire_after = Some(-1),
            _ => {}
        }
        let job = self.given_job(&like).await;
        let id = self.given_waiting(&job, &like).await;
        match state {
            RunState::Pending => {}
            RunState::Assigned => drop(self.given_assigned(id).await),
            RunState::Running => drop(self.given_running(id).await),
            RunState::Orphaned => {
                let token = self.given_assigned(id).await;
                assert!(self.release(token, id).await.unwrap().is_applied());
            }
            RunState::RetryWait => self.given_failure(id, ErrorCode::UNEXPECTED_ERROR).await,
            RunState::Failed => self.given_failure(id, ErrorCode::INVALID_INPUT).await,
            RunState::TimedOut => self.given_failure(id, ErrorCode::RUNTIME_TIMEOUT).await,
            RunState::Succeeded => {
                let token = self.given_running(id).await;
                assert!(self.finish(token, id, &AttemptResult::default()).await.unwrap().is_applied());
            }
            RunState::Canceled => {
                let canceled = self.cancel(Writer::Api, id, "test", None).await.unwrap();
                assert!(canceled.is_applied());
            }
            RunState::Skipped => {
                let reason = tasuki_core::run::SkipReason::Late;
                assert!(self.skip(self.epoch, id, reason).await.unwrap().is_applied());
            }
            RunState::Expired => {
                assert!(self.expire(self.epoch, id).await.unwrap().is_applied());
            }
        }
        let run = self.run_now(id).await;
        assert_eq!(run.state, state);
        run
    }

    pub(crate) async fn run_now(&self, id: RunId) -> Run {
        self.run(id).await.unwrap().unwrap()
    }

    pub(crate) async fn wanted(&self, id: RunId) -> DueRun {
        let run = self.run_now(id).await;
        DueRun {
            run: id,
            due_at: run.due_at(),
            attempt_no: run.counters.attempt_no,
            exclusive: run.exclusive,
        }
    }

    /// Tries to assign a run to the worker.
    pub(crate) async fn try_assign(&self, wanted: DueRun) -> Option<LeaseToken> {
        let token = self.token();
        let batch = AssignBatch {
            epoch: self.epoch,
            worker: self.worker,
            token,
            runs: &[wanted],
            assign_ahead: AHEAD,
            reassign_after: REASSIGN,
        };
        let given = self.assign(&batch).await.unwrap();
        (given == [wanted.run]).then_some(token)
    }

    pub(crate) async fn given_assigned(&self, id: RunId) -> LeaseToken {
        self.try_assign(self.wanted(id).await).await.expect("assigned")
    }

    pub(crate) async fn try_start(&self, token: LeaseToken, id: RunId) -> Outcome<Taken> {
        self.start(self.worker, token, &[id], TTL).await.unwrap().remove(0)
    }

    pub(crate) async fn given_running(&self, id: RunId) -> LeaseToken {
        let token = self.given_assigned(id).await;
        assert!(self.try_start(token, id).await.is_applied());
        token
    }

    /// Starts a run that waits for its next try, an hour later.
    pub(crate) async fn given_running_later(&self, id: RunId) -> LeaseToken {
        self.at(3600);
        self.given_running(id).await
    }

    pub(crate) async fn try_claim(&self, lane: &str, most: u32) -> (LeaseToken, Vec<Taken>) {
        let token = self.token();
        let batch = ClaimBatch { worker: self.worker, token, lane, most, lease_ttl: TTL };
        match self.claim(&batch).await.unwrap() {
            ClaimResult::Runs(runs) => (token, runs),
            ClaimResult::Before => panic!("a fresh token was used before"),
        }
    }

    pub(crate) async fn given_failure(&self, id: RunId, code: ErrorCode) {
        let token = self.given_running(id).await;
        assert!(self.finish(token, id, &failed(code)).await.unwrap().is_applied());
    }
}

/// A job as [`TestStore::given_job`] made it.
pub(crate) fn seen(job: &JobVersion) -> Seen {
    Seen { job: job.job, version: job.version }
}

pub(crate) fn failed(code: ErrorCode) -> AttemptResult {
    let retryable = code.is_retryable();
    AttemptResult::failed(Failure { code, retryable })
}

/// How many of these were applied.
pub(crate) fn applied<T>(outcomes: impl IntoIterator<Item = Outcome<T>>) -> usize {
    outcomes.into_iter().filter(Outcome::is_applied).count()
}

/// Runs futures at the same time and collects what they say.
pub(crate) async fn at_once<T>(
    one: impl Future<Output = T>,
    other: impl Future<Output = T>,
) -> [T; 2] {
    let (one, other) = tokio::join!(one, other);
    [one, other]
}
