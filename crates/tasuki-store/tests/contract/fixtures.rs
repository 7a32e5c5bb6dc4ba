//! Test fixtures: a new database for each test, and helpers that create jobs and bring runs into any state.

use std::future::Future;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki_core::exit::ClassifiedFailure;
use tasuki_core::{AttemptErrorCode, Epoch, LeaseToken, RunId, RunState, WorkerId};
use tasuki_store::{
    AssignRequest, AttemptReport, AttemptResult, ClaimRequest, ClaimResult, CreatedRun, Dialect,
    DueRun, Error, ExpectedVersion, JobCreateResult, JobDefinition, JobVersion, NewRun, NewWorker,
    Outcome, RenewResult, Run, ScheduleCursorMove, StartedRun, StateAfterAttempt, Store, Trigger,
    Writer,
};

pub(crate) use crate::run_options::RunOptions;

/// Defines one test for each database (SQLite, PostgreSQL, MySQL) from one function.
macro_rules! contract {
    ($($(#[$meta:meta])* async fn $name:ident($store:ident: TestStore) $body:block)+) => {
        $(
            $(#[$meta])*
            mod $name {
                use super::*;

                async fn contract($store: &TestStore) $body

                #[test]
                fn sqlite() {
                    crate::fixtures::run_contract(tasuki_store::Dialect::Sqlite, async |store| contract(store).await);
                }

                #[test]
                fn postgres() {
                    crate::fixtures::run_contract(tasuki_store::Dialect::Postgres, async |store| contract(store).await);
                }

                #[test]
                fn mysql() {
                    crate::fixtures::run_contract(tasuki_store::Dialect::MySql, async |store| contract(store).await);
                }
            }
        )+
    };
}
pub(crate) use contract;

/// Duration of leases and of leader terms in tests.
pub(crate) const TTL: Duration = Duration::from_secs(30);
/// Time after the expiry of a lease before it may be recovered.
pub(crate) const GRACE: Duration = Duration::from_secs(3);
/// How long before its due time a run may be assigned.
pub(crate) const ASSIGN_AHEAD: Duration = Duration::from_secs(30);
/// Time after which an assigned run that was not started may no longer be started.
pub(crate) const REASSIGN_AFTER: Duration = Duration::from_secs(15);

/// A store on a new, migrated database with one worker, which is also the leader. Its clock is bound to noon.
pub(crate) struct TestStore {
    store: Store,
    pub(crate) url: String,
    pub(crate) epoch: Epoch,
    pub(crate) worker: WorkerId,
    counter: AtomicU64,
    clock: AtomicI64,
    doctor_skipped: AtomicBool,
}

impl Deref for TestStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// The instant at which every test starts.
pub(crate) fn noon() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

/// Runs a contract test on a new database, and then checks the database with the doctor.
pub(crate) fn run_contract(dialect: Dialect, test: impl AsyncFnOnce(&TestStore)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let place = TestDatabase::new(dialect).await;
        let store = TestStore::new(&place.url).await;
        test(&store).await;
        if !store.doctor_skipped.load(Ordering::Relaxed) {
            assert_eq!(
                store.doctor_findings().await,
                [] as [String; 0],
                "the doctor must have no findings"
            );
        }
        store.close().await;
        place.remove().await;
    });
}

/// Like [`run_contract`], with `connections` connections and a multi-threaded runtime.
pub(crate) fn run_in_parallel<F: Future<Output = ()>>(
    dialect: Dialect,
    connections: u32,
    test: impl FnOnce(Arc<TestStore>) -> F,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let place = TestDatabase::new(dialect).await;
        let store = Arc::new(TestStore::with_connections(&place.url, connections).await);
        test(Arc::clone(&store)).await;
        assert_eq!(
            store.doctor_findings().await,
            [] as [String; 0],
            "the doctor must have no findings"
        );
        store.close().await;
        place.remove().await;
    });
}

/// The database of one test. It is removed by [`TestDatabase::remove`], unless the test fails.
pub(crate) struct TestDatabase {
    pub(crate) url: String,
    server: Option<(String, String)>,
    folder: Option<PathBuf>,
}

impl TestDatabase {
    pub(crate) async fn new(dialect: Dialect) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tasuki_{}_{count}", std::process::id());
        let variable = match dialect {
            Dialect::Sqlite => {
                let folder = std::env::temp_dir().join(&name);
                // A failed test may have left a folder behind, and its process id may be reused.
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
        // A failed test may have left a database behind, and its process id may be reused.
        admin.execute_script(&format!("drop database if exists {name}")).await.unwrap();
        admin.execute_script(&format!("create database {name}")).await.unwrap();
        admin.close().await;
        let (start, _) = server.rsplit_once('/').unwrap();
        Self { url: format!("{start}/{name}"), server: Some((server, name)), folder: None }
    }

    pub(crate) async fn remove(self) {
        if let Some((server, name)) = self.server {
            let admin = Store::open(&server, 1).await.unwrap();
            admin.execute_script(&format!("drop database {name}")).await.unwrap();
            admin.close().await;
        }
        if let Some(folder) = self.folder {
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}

impl TestStore {
    /// Creates the runs of one schedule and moves its cursor.
    pub(crate) async fn create_scheduled_one(
        &self,
        epoch: Epoch,
        cursor: &ScheduleCursorMove,
        runs: &[NewRun<'_>],
    ) -> Result<Option<Vec<CreatedRun>>, Error> {
        let mut created = self.create_scheduled(epoch, &[(cursor.clone(), runs.to_vec())]).await?;
        Ok(created.pop().flatten())
    }

    /// Reports the end of one attempt, and closes its lease if no run is left under it.
    pub(crate) async fn finish_run(
        &self,
        token: LeaseToken,
        run: RunId,
        result: &AttemptResult,
    ) -> Result<Outcome<StateAfterAttempt>, Error> {
        Ok(self.finish_runs(token, &[(run, result.clone())]).await?.remove(0))
    }

    /// Reports the ends of attempts under one lease, and closes the lease if no run is left under it.
    pub(crate) async fn finish_runs(
        &self,
        token: LeaseToken,
        results: &[(RunId, AttemptResult)],
    ) -> Result<Vec<Outcome<StateAfterAttempt>>, Error> {
        let report = |(run, result): &(RunId, AttemptResult)| {
            AttemptReport::new(token, *run, result.clone())
        };
        let reports: Vec<AttemptReport> = results.iter().map(report).collect();
        self.finish(&reports, &[token]).await
    }

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
        let doctor_skipped = AtomicBool::new(false);
        let mut test = Self {
            store,
            url: url.to_owned(),
            epoch: Epoch(0),
            worker,
            counter,
            clock,
            doctor_skipped,
        };
        test.given_worker(worker).await;
        test.epoch = test.take_leadership(worker, Epoch(0), Epoch(0), TTL).await.unwrap().unwrap();
        test
    }

    /// Switches off the doctor check at the end of the test, for tests that break the data on purpose.
    pub(crate) fn skip_doctor(&self) {
        self.doctor_skipped.store(true, Ordering::Relaxed);
    }

    /// The findings of the doctor, each with the id of its check.
    pub(crate) async fn doctor_findings(&self) -> Vec<String> {
        let report = self.check_invariants(|| self.test_time()).await.unwrap();
        report
            .findings()
            .map(|(id, one)| format!("{id}: {} {:?}", one.problem, one.examples))
            .collect()
    }

    /// The instant to which the clock of the test is bound.
    pub(crate) fn test_time(&self) -> Timestamp {
        Timestamp::from_microsecond(self.clock.load(Ordering::Relaxed)).unwrap()
    }

    /// A number that is different for each call, for ids and names.
    pub(crate) fn next_number(&self) -> u128 {
        u128::from(self.counter.fetch_add(1, Ordering::Relaxed))
    }

    /// A lease token that was not used before.
    pub(crate) fn new_token(&self) -> LeaseToken {
        LeaseToken::from_random(self.next_number() << 64)
    }

    /// Binds the clock to this many seconds after noon.
    pub(crate) fn set_time(&self, seconds: i64) {
        let now = noon() + SignedDuration::from_secs(seconds);
        self.clock.store(now.as_microsecond(), Ordering::Relaxed);
        self.set_clock(Some(now));
    }

    /// Registers a worker with plenty of slots.
    pub(crate) async fn given_worker(&self, id: WorkerId) {
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

    /// Creates a task job with these options, under a new name.
    pub(crate) async fn given_job(&self, options: &RunOptions) -> JobVersion {
        let name = format!("job {}", self.next_number()).parse().unwrap();
        let definition =
            JobDefinition { trigger: Trigger::Task, enabled: true, spec: options.spec() };
        match self.create_job("test", &name, &definition, None).await.unwrap() {
            JobCreateResult::Created(job) => job.newest,
            JobCreateResult::NameTaken => panic!("{name} is taken"),
        }
    }

    /// Creates a run of a job that waits.
    pub(crate) async fn given_waiting_run(&self, job: &JobVersion, options: &RunOptions) -> RunId {
        let later = |seconds: i64| noon() + SignedDuration::from_secs(seconds);
        let new = NewRun {
            skip_at: options.skip_after.map(later),
            expires_at: options.expire_after.map(later),
            ..NewRun::task(job)
        };
        self.create_or_find_runs(Writer::Api, &[new]).await.unwrap()[0].run
    }

    /// Creates a job with default options and a run of it that is due now.
    pub(crate) async fn given_due_run(&self) -> RunId {
        let job = self.given_job(&RunOptions::default()).await;
        self.given_waiting_run(&job, &RunOptions::default()).await
    }

    /// Creates a run and brings it into this state with the verbs of the store.
    pub(crate) async fn given_run(&self, state: RunState) -> Run {
        self.given_run_with(state, &RunOptions::default()).await
    }

    /// Like [`Self::given_run`], with these options. Limits that the state needs are set.
    pub(crate) async fn given_run_with(&self, state: RunState, options: &RunOptions) -> Run {
        let mut options = options.clone();
        match state {
            RunState::TimedOut => options.max_attempts = 1,
            RunState::Skipped => options.skip_after = Some(-1),
            RunState::Expired => options.expire_after = Some(-1),
            _ => {}
        }
        let job = self.given_job(&options).await;
        let id = self.given_waiting_run(&job, &options).await;
        match state {
            RunState::Pending => {}
            RunState::Assigned => drop(self.given_assigned(id).await),
            RunState::Running => drop(self.given_running(id).await),
            RunState::Orphaned => {
                let token = self.given_assigned(id).await;
                assert!(self.release(token, id).await.unwrap().is_applied());
            }
            RunState::RetryWait => self.given_failure(id, AttemptErrorCode::UNEXPECTED_ERROR).await,
            RunState::Failed => self.given_failure(id, AttemptErrorCode::INVALID_INPUT).await,
            RunState::TimedOut => self.given_failure(id, AttemptErrorCode::RUNTIME_TIMEOUT).await,
            RunState::Succeeded => {
                let token = self.given_running(id).await;
                assert!(
                    self.finish_run(token, id, &AttemptResult::default())
                        .await
                        .unwrap()
                        .is_applied()
                );
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
                assert!(self.expire_waiting_run(self.epoch, id).await.unwrap().is_applied());
            }
        }
        let run = self.read_run(id).await;
        assert_eq!(run.state, state);
        run
    }

    /// Reads a run that must exist.
    pub(crate) async fn read_run(&self, id: RunId) -> Run {
        self.find_run(id).await.unwrap().unwrap()
    }

    /// The due row of a waiting run.
    pub(crate) async fn read_due_run(&self, id: RunId) -> DueRun {
        let run = self.read_run(id).await;
        DueRun {
            run: id,
            due_at: run.due_at(),
            attempt_no: run.counters.attempt_no,
            exclusive: run.exclusive,
        }
    }

    /// Tries to assign a run to the worker. Returns the lease token if it was assigned.
    pub(crate) async fn try_assign(&self, due_run: DueRun) -> Option<LeaseToken> {
        let token = self.new_token();
        let batch = AssignRequest {
            epoch: self.epoch,
            worker: self.worker,
            token,
            runs: &[due_run],
            assign_ahead: ASSIGN_AHEAD,
            reassign_after: REASSIGN_AFTER,
        };
        let assigned = self.assign(&batch).await.unwrap();
        (assigned == [due_run.run]).then_some(token)
    }

    /// Assigns a waiting run to the worker. Returns the lease token.
    pub(crate) async fn given_assigned(&self, id: RunId) -> LeaseToken {
        self.try_assign(self.read_due_run(id).await).await.expect("the run must be assigned")
    }

    /// Tries to start an assigned run.
    pub(crate) async fn try_start(&self, token: LeaseToken, id: RunId) -> Outcome<StartedRun> {
        self.start(self.worker, token, &[id], TTL).await.unwrap().remove(0)
    }

    /// Assigns and starts a waiting run. Returns the lease token.
    pub(crate) async fn given_running(&self, id: RunId) -> LeaseToken {
        let token = self.given_assigned(id).await;
        assert!(self.try_start(token, id).await.is_applied());
        token
    }

    /// Moves the clock to 13:00, when every retry is due, and starts the run.
    pub(crate) async fn given_running_after_an_hour(&self, id: RunId) -> LeaseToken {
        self.set_time(3600);
        self.given_running(id).await
    }

    /// Renews one lease of the worker.
    pub(crate) async fn renew_one(&self, token: LeaseToken) -> RenewResult {
        self.renew(self.worker, &[token], TTL).await.unwrap().remove(0)
    }

    /// Claims up to `limit` runs of a lane with a new token.
    pub(crate) async fn try_claim(&self, lane: &str, limit: u32) -> (LeaseToken, Vec<StartedRun>) {
        let token = self.new_token();
        let batch = ClaimRequest {
            worker: self.worker,
            token,
            lane,
            max_runs: limit,
            lease_ttl: TTL,
            after: None,
        };
        match self.claim(&batch).await.unwrap() {
            ClaimResult::Runs(runs) => (token, runs),
            ClaimResult::AlreadyClaimed => panic!("a new token was already used"),
        }
    }

    /// Runs a waiting run once; the attempt fails with this error code.
    pub(crate) async fn given_failure(&self, id: RunId, code: AttemptErrorCode) {
        let token = self.given_running(id).await;
        assert!(self.finish_run(token, id, &failed_result(code)).await.unwrap().is_applied());
    }
}

/// The expected version for a change of a job that [`TestStore::given_job`] created.
pub(crate) fn expected_version(job: &JobVersion) -> ExpectedVersion {
    ExpectedVersion { job: job.job, version: job.version }
}

/// The result of an attempt that failed with this error code.
pub(crate) fn failed_result(code: AttemptErrorCode) -> AttemptResult {
    let retryable = code.is_retryable();
    AttemptResult::from_failure(ClassifiedFailure { code, retryable })
}

/// Number of outcomes that were applied.
pub(crate) fn count_applied<T>(outcomes: impl IntoIterator<Item = Outcome<T>>) -> usize {
    outcomes.into_iter().filter(Outcome::is_applied).count()
}

/// Runs two futures at the same time and returns both results.
pub(crate) async fn run_both<T>(
    one: impl Future<Output = T>,
    other: impl Future<Output = T>,
) -> [T; 2] {
    let (one, other) = tokio::join!(one, other);
    [one, other]
}
