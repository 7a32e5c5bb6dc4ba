//! Where a bench is at home: a database made for it, jobs of its own, a node, and order when it leaves.

use std::path::PathBuf;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tasuki::node::{Config, HomeLock, Node, NodeBuilder, NodeError};
use tasuki::{Functions, Wake};
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::job_spec::{Dispatch, What, Work};
use tasuki_core::{Invalid, LeaseToken, RunId, WorkerId};
use tasuki_store::{
    Writer, ClaimBatch, ClaimResult, Dialect, Error, AttemptResult, Job, JobCreated, JobDefinition, JobSpec,
    NewRun, NewWorker, PrunePlace, Store, Trigger,
};

use super::bar::Bar;
use super::bare::{ARGS, Bare};
use crate::database::Database;
use crate::output::Failure;

/// As many as a node of `tasuki up` has.
const CONNECTIONS: u32 = 8;
/// A worker that was heard of so lately is at work.
const LATELY: SignedDuration = SignedDuration::from_secs(15);
/// How long nothing may happen before a bench gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is asked whether everything has ended.
const LOOK: Duration = Duration::from_millis(2);
/// How many runs are made or deleted at a time.
const SOME: u32 = 1_000;

/// A database made for a bench.
pub(crate) struct Place {
    pub(crate) store: Store,
    pub(crate) bare: Bare,
}

/// Does something in a database made for it, and leaves that in order whatever comes of it.
pub(crate) async fn in_place<T>(
    database: &Database,
    connections: u32,
    work: impl AsyncFnOnce(&Place) -> Result<T, Error>,
) -> Result<T, Failure> {
    let place = Place::open(database.url(), connections)
        .await
        .map_err(|error| database.unopened(&error))?;
    let done = match place.is_ours().await {
        Ok(()) => {
            // What an interrupted one left would be drained with the rest.
            let done = match place.leave().await {
                Ok(()) => work(&place).await,
                Err(error) => Err(error),
            };
            let left = place.leave().await;
            done.and_then(|done| left.map(|()| done))
        }
        Err(error) => Err(error),
    };
    place.close().await;
    done.map_err(|error| database.failed(&error))
}

impl Place {
    /// Opens and migrates it; the bare tables may have so many connections.
    pub(crate) async fn open(url: &str, connections: u32) -> Result<Self, Error> {
        if url.contains(":memory:") || url.contains("mode=memory") {
            let expected = "a file: what is in memory is seen by one connection";
            return Err(Invalid::described("database", "none but in memory", expected).into());
        }
        let store = Store::open(url, CONNECTIONS).await?;
        let bare = Bare::open(url, connections).await?;
        Ok(Self { store, bare })
    }

    /// Migrates it, and refuses one where others are at work or have been: whatever has ended here goes
    /// when the bench leaves.
    pub(crate) async fn is_ours(&self) -> Result<(), Error> {
        self.store.migrate().await?;
        refuse_workers(&self.store).await?;
        match self.bare.others().await? {
            0 => Ok(()),
            _ => Err(others_at_work()),
        }
    }

    pub(crate) async fn close(&self) {
        self.bare.close().await;
        self.store.close().await;
    }

    /// Takes away what benches have made here: bare tables, jobs, and the runs of them.
    async fn leave(&self) -> Result<(), Error> {
        self.bare.drop_tables().await?;
        let bar = Bar::new("clean up", 0);
        loop {
            let jobs = self.store.jobs(None, SOME).await?;
            if jobs.is_empty() {
                break;
            }
            for job in jobs {
                self.end_all(&job, &bar).await?;
                let _ = self.store.delete_job("bench", job.seen()).await?;
            }
        }
        self.prune(PrunePlace::default(), &bar).await
    }

    /// Takes away all runs from a place on that have ended.
    pub(crate) async fn prune(&self, from: PrunePlace, bar: &Bar) -> Result<(), Error> {
        let mut place = Some(from);
        while let Some(from) = place {
            let pruned = self.store.prune_runs(Duration::ZERO, from, 5 * SOME).await?;
            bar.add(pruned.deleted);
            place = pruned.next;
        }
        Ok(())
    }

    /// A job of this name that does this when asked, once.
    pub(crate) async fn job(
        &self,
        name: &str,
        what: What,
        dispatch: Option<Dispatch>,
    ) -> Result<Job, Error> {
        let work = Work::new(what);
        let name = format!("bench {name} {}", Timestamp::now().as_microsecond());
        let lane = work.lane(dispatch.unwrap_or(work.kind().dispatch()));
        job(&self.store, &name, JobSpec { lane, ..spec(&work) }, Trigger::Task, None).await
    }

    /// Submits so many tasks in bulk, to be run at an instant or at once.
    pub(crate) async fn submit(
        &self,
        job: &Job,
        runs: u32,
        at: Option<Timestamp>,
        bar: &Bar,
    ) -> Result<(), Error> {
        let left = AtomicU64::new(u64::from(runs));
        let some = async || {
            loop {
                let take = |left: u64| Some(left.saturating_sub(u64::from(SOME)));
                let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
                let some = before.unwrap_or_default().min(u64::from(SOME));
                if some == 0 {
                    return Ok::<(), Error>(());
                }
                let run = |_| NewRun { scheduled_for: at, ..task(job) };
                let batch: Vec<NewRun<'_>> = (0..some).map(run).collect();
                self.store.create(Writer::Api, &batch).await?;
                bar.add(some);
            }
        };
        // One is made while the other is sent.
        tokio::try_join!(some(), some())?;
        Ok(())
    }

    /// Claims and finishes all of a job that is due, without a node, and tells how many that were. What waits
    /// for a leader stays.
    pub(crate) async fn end_all(&self, job: &Job, bar: &Bar) -> Result<u64, Error> {
        let lane = &job.newest.spec.lane;
        let due = self.store.clock().await?;
        let waits = self.store.next_due(lane, Timestamp::UNIX_EPOCH, due).await?.is_some();
        if lane.is_empty() || !waits {
            return Ok(0);
        }
        let worker = WorkerId::from_random(random());
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
        let some = async || {
            let mut done = 0;
            loop {
                let token = LeaseToken::from_random(random());
                let batch = ClaimBatch { worker, token, lane, most: SOME, lease_ttl: PATIENCE };
                let ClaimResult::Runs(runs) = self.store.claim(&batch).await? else { continue };
                if runs.is_empty() {
                    return Ok::<u64, Error>(done);
                }
                let ends: Vec<(RunId, AttemptResult)> =
                    runs.iter().map(|run| (run.id, AttemptResult::default())).collect();
                let outcomes = self.store.finish_many(token, &ends).await?;
                let ended = outcomes.iter().filter(|one| one.is_applied()).count() as u64;
                bar.add(ended);
                done += ended;
            }
        };
        let (one, other) = tokio::try_join!(some(), some())?;
        self.store.worker_gone(worker).await?;
        Ok(one + other)
    }

    /// Statistics and pages as they are some time after the last write.
    pub(crate) async fn settle(&self) -> Result<(), Error> {
        self.store.tidy().await?;
        checkpoint(&self.store).await;
        Ok(())
    }

    /// A node for functions.
    pub(crate) async fn node(
        &self,
        functions: Functions,
        slots: Option<u32>,
        wake: &Wake,
    ) -> Result<Node, Error> {
        let builder = builder(&self.store, None, wake)?.functions(functions);
        start(match slots {
            Some(slots) => builder.queue("default", slots),
            None => builder,
        })
        .await
    }

    /// Waits until the database shows that nothing of a job waits and a worker carries nothing.
    pub(crate) async fn ended(&self, job: &Job, worker: WorkerId) -> Result<(), Error> {
        let (since, lane) = (Instant::now(), &job.newest.spec.lane);
        let (from, until) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        loop {
            // In this order: what no longer waits is carried or has ended.
            let waits = self.store.next_due(lane, from, until).await?.is_some();
            if !waits && self.store.leases_of(worker).await?.is_empty() {
                return Ok(());
            }
            if since.elapsed() > PATIENCE {
                return Err(Error::Broken(format!("{} does not end", job.name)));
            }
            // What still waits is some way from its end, and is not disturbed.
            tokio::time::sleep(if waits { 5 * LOOK } else { LOOK }).await;
        }
    }

    /// Waits until a function was called so often.
    pub(crate) async fn called(
        &self,
        calls: &AtomicU64,
        runs: u64,
        bar: &Bar,
    ) -> Result<(), Error> {
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            let now = calls.load(Ordering::Relaxed);
            bar.at(now);
            if now >= runs {
                return Ok(());
            }
            if now > seen {
                (seen, since) = (now, Instant::now());
            }
            if since.elapsed() > PATIENCE {
                return Err(Error::Broken(format!("{runs} runs were submitted, {now} started")));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// That so many runs of a job, and all that there were, have succeeded.
    pub(crate) async fn all_succeeded(&self, job: &Job, runs: u64) -> Result<(), Error> {
        match self.bare.succeeded(job.id).await? {
            found if found == runs => Ok(()),
            found => Err(Error::Broken(format!("{runs} runs were submitted, {found} succeeded"))),
        }
    }

    /// What its database is called.
    pub(crate) fn database(&self) -> &'static str {
        match self.store.dialect() {
            Dialect::Sqlite => "SQLite",
            Dialect::Postgres => "PostgreSQL",
            Dialect::MySql => "MariaDB or MySQL",
        }
    }
}

/// Has the database write everything out. Whoever may not have it do so measures with some of that still to come.
pub(crate) async fn checkpoint(store: &Store) {
    static TOLD: Once = Once::new();
    if let Err(error) = store.checkpoint().await {
        TOLD.call_once(|| eprintln!("without a checkpoint first, figures are flattered: {error}"));
    }
}

/// A node of a bench; `slots`: how many commands at once.
pub(crate) fn builder(
    store: &Store,
    slots: Option<u32>,
    wake: &Wake,
) -> Result<NodeBuilder, Error> {
    let mut config = Config::new("bench".parse()?);
    config.slots = slots;
    Ok(Node::builder(config, store.clone()).wake(wake.clone()))
}

/// Lets it run commands. Its data directory is to be removed when it has stopped.
pub(crate) fn with_commands(builder: NodeBuilder) -> Result<(NodeBuilder, PathBuf), Error> {
    let folder = std::env::temp_dir().join(format!("tasuki_bench_{}", std::process::id()));
    let home = HomeLock::take(&folder).map_err(|error| Error::Broken(error.to_string()))?;
    let spawner = crate::serve::spawner(&home)
        .map_err(|_| Error::Broken("this program cannot find itself".to_owned()))?;
    Ok((builder.commands(home, spawner), folder))
}

pub(crate) async fn start(builder: NodeBuilder) -> Result<Node, Error> {
    builder.start().await.map_err(|error| match error {
        NodeError::Store(error) => error,
        other => Error::Broken(other.to_string()),
    })
}

/// Refuses a database where a worker is at work.
pub(crate) async fn refuse_workers(store: &Store) -> Result<(), Error> {
    let clock = store.clock().await?;
    let works = |at: Timestamp| clock.duration_since(at) < LATELY;
    let workers = store.workers().await?;
    match workers.iter().any(|worker| worker.is_attached() && works(worker.heartbeat_at)) {
        true => Err(others_at_work()),
        false => Ok(()),
    }
}

pub(crate) fn others_at_work() -> Error {
    Invalid::described("database", "others at work", "a database made for the bench").into()
}

/// A task with something to read.
pub(crate) fn task(job: &Job) -> NewRun<'_> {
    NewRun { args: Some(ARGS.to_owned()), ..NewRun::task(&job.newest) }
}

/// Work that is tried once.
pub(crate) fn spec(work: &Work) -> JobSpec {
    JobSpec {
        kind: work.kind(),
        spec: work.to_json().to_string(),
        lane: work.lane(work.kind().dispatch()),
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

/// Makes a job; its name begins with `bench`, which tells it from those of people.
pub(crate) async fn job(
    store: &Store,
    name: &str,
    spec: JobSpec,
    trigger: Trigger,
    next_fire: Option<Timestamp>,
) -> Result<Job, Error> {
    let definition = JobDefinition { trigger, enabled: true, spec };
    match store.create_job("bench", &name.parse()?, &definition, next_fire).await? {
        JobCreated::Made(job) => Ok(*job),
        JobCreated::NameTaken => Err(others_at_work()),
    }
}

/// As different as ids of one bench need to be: nobody has to be kept from guessing them.
fn random() -> u128 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    (Timestamp::now().as_nanosecond() as u128) << 64 | u128::from(count)
}

/// Does the same so many times at once, and adds up what each did.
pub(crate) async fn in_parallel<F, W>(how_many: u32, mut work: W) -> Result<u64, Error>
where
    W: FnMut() -> F,
    F: Future<Output = Result<u64, Error>> + Send + 'static,
{
    let tasks: Vec<_> = (0..how_many).map(|_| tokio::spawn(work())).collect();
    drop(work);
    let mut done = 0;
    for task in tasks {
        done += task.await.expect("no bench panics")?;
    }
    Ok(done)
}
