//! The fixture of a benchmark: checks that the database is not in use, creates jobs and nodes, and cleans up at the end.

use std::path::PathBuf;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tasuki::node::{Config, DataDirLock, Node, NodeBuilder, NodeError};
use tasuki::{HandlerRegistry, Wakeups};
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::work_spec::{Dispatch, WorkAction, WorkSpec};
use tasuki_core::{InvalidInput, LeaseToken, WorkerId};
use tasuki_store::{
    AttemptReport, AttemptResult, ClaimRequest, ClaimResult, Error, Job, JobCreateResult,
    JobDefinition, JobVersionSpec, NewRun, NewWorker, PrunePosition, Store, Trigger, Writer,
};

use super::baseline::{Baseline, TASK_ARGS};
use super::progress::Progress;
use crate::database_access::DatabaseOptions;
use crate::failure::Failure;

/// Maximum number of connections of the store, the same as for a node of `tasuki up`.
const MAX_CONNECTIONS: u32 = 8;
/// A worker whose last heartbeat is more recent than this counts as running.
const RECENT_HEARTBEAT: SignedDuration = SignedDuration::from_secs(15);
/// Maximum time without progress before a benchmark fails.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Polling interval while a benchmark waits for the end of its runs.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Number of runs that are created or finished in one statement.
const BATCH_SIZE: u32 = 1_000;

/// A database that is used only by a benchmark.
pub(crate) struct BenchFixture {
    pub(crate) store: Store,
    pub(crate) baseline: Baseline,
}

/// Runs `work` on a database that is used only by the benchmark, and cleans up afterwards even if `work` fails.
pub(crate) async fn with_bench_fixture<T>(
    database: &DatabaseOptions,
    connections: u32,
    work: impl AsyncFnOnce(&BenchFixture) -> Result<T, Error>,
) -> Result<T, Failure> {
    let fixture = BenchFixture::open(database.url(), connections)
        .await
        .map_err(|error| database.open_failure(&error))?;
    let done = match fixture.prepare().await {
        Ok(()) => {
            // Runs of an interrupted benchmark would be processed together with the new ones.
            let done = match fixture.clean_up().await {
                Ok(()) => work(&fixture).await,
                Err(error) => Err(error),
            };
            let remaining = fixture.clean_up().await;
            done.and_then(|done| remaining.map(|()| done))
        }
        Err(error) => Err(error),
    };
    fixture.close().await;
    done.map_err(|error| database.operation_failure(&error))
}

impl BenchFixture {
    /// Opens the database; the baseline gets `connections` connections.
    pub(crate) async fn open(url: &str, connections: u32) -> Result<Self, Error> {
        if url.contains(":memory:") || url.contains("mode=memory") {
            let expected =
                "a database file (an in-memory database is visible to one connection only)";
            return Err(InvalidInput::with_described_value(
                "database",
                "an in-memory database",
                expected,
            )
            .into());
        }
        let store = Store::open(url, MAX_CONNECTIONS).await?;
        let baseline = Baseline::open(url, connections).await?;
        Ok(Self { store, baseline })
    }

    /// Migrates the database. Refuses one with running workers or with jobs that are not of a benchmark, because the
    /// clean-up deletes all runs that have ended.
    pub(crate) async fn prepare(&self) -> Result<(), Error> {
        self.store.migrate().await?;
        refuse_if_in_use(&self.store).await?;
        match self.baseline.count_jobs_not_from_bench().await? {
            0 => Ok(()),
            _ => Err(other_jobs_or_worker_error()),
        }
    }

    pub(crate) async fn close(&self) {
        self.baseline.close().await;
        self.store.close().await;
    }

    /// Deletes everything that benchmarks created: the tables of the baseline, jobs and runs.
    async fn clean_up(&self) -> Result<(), Error> {
        self.baseline.drop_tables().await?;
        let progress = Progress::new("clean up", 0);
        loop {
            let jobs = self.store.list_jobs(None, BATCH_SIZE).await?;
            if jobs.is_empty() {
                break;
            }
            for job in jobs {
                self.finish_due_runs(&job, &progress).await?;
                let _ = self.store.delete_job("bench", job.expected_version()).await?;
            }
        }
        self.prune(PrunePosition::default(), &progress).await
    }

    /// Deletes all ended runs from a position on.
    pub(crate) async fn prune(
        &self,
        from: PrunePosition,
        progress: &Progress,
    ) -> Result<(), Error> {
        let mut fixture = Some(from);
        while let Some(from) = fixture {
            let pruned = self.store.prune_runs(Duration::ZERO, from, 5 * BATCH_SIZE).await?;
            progress.add(pruned.deleted);
            fixture = pruned.next;
        }
        Ok(())
    }

    /// Creates a job that runs on request, with one attempt per run.
    pub(crate) async fn create_job(
        &self,
        name: &str,
        what: WorkAction,
        dispatch: Option<Dispatch>,
    ) -> Result<Job, Error> {
        let work = WorkSpec::new(what);
        let name = format!("bench {name} {}", Timestamp::now().as_microsecond());
        let lane = work.lane_for_dispatch(dispatch.unwrap_or(work.kind().default_dispatch()));
        create_bench_job(
            &self.store,
            &name,
            JobVersionSpec { lane, ..single_attempt_spec(&work) },
            Trigger::Task,
            None,
        )
        .await
    }

    /// Submits tasks in bulk, for an instant or for now.
    pub(crate) async fn submit_tasks(
        &self,
        job: &Job,
        runs: u32,
        at: Option<Timestamp>,
        progress: &Progress,
    ) -> Result<(), Error> {
        let remaining = AtomicU64::new(u64::from(runs));
        let submit_batches = async || {
            loop {
                let take = |remaining: u64| Some(remaining.saturating_sub(u64::from(BATCH_SIZE)));
                let before = remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
                let count = before.unwrap_or_default().min(u64::from(BATCH_SIZE));
                if count == 0 {
                    return Ok::<(), Error>(());
                }
                let run = |_| NewRun { scheduled_for: at, ..new_bench_task(job) };
                let batch: Vec<NewRun<'_>> = (0..count).map(run).collect();
                self.store.create_or_find_runs(Writer::Api, &batch).await?;
                progress.add(count);
            }
        };
        // Two at a time: one batch is built while the other is sent.
        tokio::try_join!(submit_batches(), submit_batches())?;
        Ok(())
    }

    /// Claims and finishes all due runs of a claimable job without a node, and returns their number. Runs that a leader
    /// must assign are left.
    pub(crate) async fn finish_due_runs(
        &self,
        job: &Job,
        progress: &Progress,
    ) -> Result<u64, Error> {
        let lane = &job.newest.spec.lane;
        let due = self.store.read_clock().await?;
        let is_waiting =
            self.store.find_next_due_in_lane(lane, Timestamp::UNIX_EPOCH, due).await?.is_some();
        if lane.is_empty() || !is_waiting {
            return Ok(0);
        }
        let worker = WorkerId::from_random(unique_number());
        let new = NewWorker {
            id: worker,
            node: "bench".parse()?,
            pid: None,
            address: None,
            labels: None,
            slots: 0,
            function_slots: u32::MAX / 2,
        };
        self.store.register_worker(&new).await?;
        let submit_batches = async || {
            let mut done = 0;
            loop {
                let token = LeaseToken::from_random(unique_number());
                let batch = ClaimRequest {
                    worker,
                    token,
                    lane,
                    max_runs: BATCH_SIZE,
                    lease_ttl: STALL_TIMEOUT,
                    after: None,
                };
                let ClaimResult::Runs(runs) = self.store.claim(&batch).await? else { continue };
                if runs.is_empty() {
                    return Ok::<u64, Error>(done);
                }
                let reports: Vec<AttemptReport> = runs
                    .iter()
                    .map(|run| AttemptReport::new(token, run.id, AttemptResult::default()))
                    .collect();
                let outcomes = self.store.finish(&reports, &[token]).await?;
                let ended = outcomes.iter().filter(|outcome| outcome.is_applied()).count() as u64;
                progress.add(ended);
                done += ended;
            }
        };
        let (first, second) = tokio::try_join!(submit_batches(), submit_batches())?;
        self.store.mark_worker_gone(worker).await?;
        Ok(first + second)
    }

    /// Brings statistics and pages into the state some time after the last write: analyze and checkpoint.
    pub(crate) async fn analyze_and_checkpoint(&self) -> Result<(), Error> {
        self.store.analyze_tables().await?;
        checkpoint(&self.store).await;
        Ok(())
    }

    /// Starts a node that runs functions.
    pub(crate) async fn start_node(
        &self,
        functions: HandlerRegistry,
        slots: Option<u32>,
        wake: &Wakeups,
    ) -> Result<Node, Error> {
        let builder = bench_node_builder(&self.store, None, wake)?.functions(functions);
        start_bench_node(match slots {
            Some(slots) => builder.queue("default", slots),
            None => builder,
        })
        .await
    }

    /// Waits until the database shows no waiting run of a job and no lease of a worker.
    pub(crate) async fn wait_until_ended(&self, job: &Job, worker: WorkerId) -> Result<(), Error> {
        let (last_progress, lane) = (Instant::now(), &job.newest.spec.lane);
        let (from, until) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        loop {
            // In this order: a run that no longer waits is leased or has ended.
            let is_waiting = self.store.find_next_due_in_lane(lane, from, until).await?.is_some();
            if !is_waiting && self.store.list_leases_of_worker(worker).await?.is_empty() {
                return Ok(());
            }
            if last_progress.elapsed() > STALL_TIMEOUT {
                return Err(Error::Broken(format!("the runs of {} do not end", job.name)));
            }
            // While runs still wait, the end is not near: poll less often, to disturb the measurement less.
            tokio::time::sleep(if is_waiting { 5 * POLL_INTERVAL } else { POLL_INTERVAL }).await;
        }
    }

    /// Waits until a function was called `runs` times.
    pub(crate) async fn wait_until_called(
        &self,
        calls: &AtomicU64,
        runs: u64,
        progress: &Progress,
    ) -> Result<(), Error> {
        let (mut last_count, mut last_progress) = (0, Instant::now());
        loop {
            let now = calls.load(Ordering::Relaxed);
            progress.set(now);
            if now >= runs {
                return Ok(());
            }
            if now > last_count {
                (last_count, last_progress) = (now, Instant::now());
            }
            if last_progress.elapsed() > STALL_TIMEOUT {
                return Err(Error::Broken(format!(
                    "{runs} runs were submitted, but {now} started"
                )));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Checks that exactly `runs` runs of a job have succeeded.
    pub(crate) async fn check_all_succeeded(&self, job: &Job, runs: u64) -> Result<(), Error> {
        match self.baseline.count_succeeded_job_runs(job.id).await? {
            found if found == runs => Ok(()),
            found => {
                Err(Error::Broken(format!("{runs} runs were submitted, but {found} succeeded")))
            }
        }
    }

    /// Name of the database product.
    pub(crate) fn database_product(&self) -> &'static str {
        self.store.database_product()
    }
}

/// Performs a database checkpoint. Without the permission for it, later writes of the database disturb the measurement;
/// this prints a warning once.
pub(crate) async fn checkpoint(store: &Store) {
    static WARN_ONCE: Once = Once::new();
    if let Err(error) = store.checkpoint().await {
        WARN_ONCE.call_once(|| {
            eprintln!(
                "warning: no checkpoint before the measurement, so results may be too good: {error}"
            );
        });
    }
}

/// Returns the builder of a node. `slots`: number of concurrent commands.
pub(crate) fn bench_node_builder(
    store: &Store,
    slots: Option<u32>,
    wake: &Wakeups,
) -> Result<NodeBuilder, Error> {
    let mut config = Config::new("bench".parse()?);
    config.slots = slots;
    Ok(Node::builder(config, store.clone()).wakeups(wake.clone()))
}

/// Enables commands on a node. Returns its data directory, which the caller removes after the node has stopped.
pub(crate) fn enable_command_execution(
    builder: NodeBuilder,
) -> Result<(NodeBuilder, PathBuf), Error> {
    let folder = std::env::temp_dir().join(format!("tasuki_bench_{}", std::process::id()));
    let home = DataDirLock::acquire(&folder).map_err(|error| Error::Broken(error.to_string()))?;
    let spawner = crate::run_node_until_stopped::spawner_command(&home)
        .map_err(|_| Error::Broken("cannot find the path of this program".to_owned()))?;
    Ok((builder.commands(home, spawner), folder))
}

pub(crate) async fn start_bench_node(builder: NodeBuilder) -> Result<Node, Error> {
    builder.start().await.map_err(|error| match error {
        NodeError::Store(error) => error,
        other => Error::Broken(other.to_string()),
    })
}

/// Refuses a database with a running worker.
pub(crate) async fn refuse_if_in_use(store: &Store) -> Result<(), Error> {
    let clock = store.read_clock().await?;
    let is_recent = |at: Timestamp| clock.duration_since(at) < RECENT_HEARTBEAT;
    let workers = store.list_workers().await?;
    match workers.iter().any(|worker| worker.may_continue() && is_recent(worker.heartbeat_at)) {
        true => Err(other_jobs_or_worker_error()),
        false => Ok(()),
    }
}

pub(crate) fn other_jobs_or_worker_error() -> Error {
    InvalidInput::with_described_value(
        "database",
        "other jobs or an active worker",
        "a database that only benchmarks use",
    )
    .into()
}

/// A new task with arguments.
pub(crate) fn new_bench_task(job: &Job) -> NewRun<'_> {
    NewRun { args: Some(TASK_ARGS.to_owned()), ..NewRun::task(&job.newest) }
}

/// A job specification with one attempt and no concurrency limit.
pub(crate) fn single_attempt_spec(work: &WorkSpec) -> JobVersionSpec {
    JobVersionSpec {
        kind: work.kind(),
        spec: work.to_json().to_string(),
        lane: work.lane_for_dispatch(work.kind().default_dispatch()),
        concurrency: ConcurrencyPolicy::Allow,
        max_attempts: 1,
        max_releases: 20,
        backoff: Duration::ZERO,
        backoff_cap: Duration::ZERO,
        jitter_percent: 0,
        retry_lost: true,
        labels: Default::default(),
    }
}

/// Creates a job. Its name starts with `bench`, which distinguishes it from other jobs.
pub(crate) async fn create_bench_job(
    store: &Store,
    name: &str,
    spec: JobVersionSpec,
    trigger: Trigger,
    next_fire: Option<Timestamp>,
) -> Result<Job, Error> {
    let definition = JobDefinition { trigger, enabled: true, spec };
    match store.create_job("bench", &name.parse()?, &definition, next_fire).await? {
        JobCreateResult::Created(job) => Ok(*job),
        JobCreateResult::NameTaken => Err(other_jobs_or_worker_error()),
    }
}

/// Returns a number for ids and tokens that is unique within a benchmark; it need not be unpredictable.
fn unique_number() -> u128 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    (Timestamp::now().as_nanosecond() as u128) << 64 | u128::from(count)
}

/// Runs `work` in `tasks_count` concurrent tasks and returns the sum of their results.
pub(crate) async fn sum_of_concurrent_tasks<F, W>(
    tasks_count: u32,
    mut work: W,
) -> Result<u64, Error>
where
    W: FnMut() -> F,
    F: Future<Output = Result<u64, Error>> + Send + 'static,
{
    let tasks: Vec<_> = (0..tasks_count).map(|_| tokio::spawn(work())).collect();
    drop(work);
    let mut done = 0;
    for task in tasks {
        done += task.await.expect("benchmark tasks do not panic")?;
    }
    Ok(done)
}
