//! `tasuki bench store`: how fast a database makes the moves of runs, guards and history included.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tasuki_core::job_spec::{What, Work};
use tasuki_core::{Epoch, LeaseToken, RunId, WorkerId};
use tasuki_store::{
    AssignBatch, Writer, ClaimBatch, ClaimResult, Enqueuer, Error, AttemptResult, JobKind, JobSpec,
    JobVersion, NewRun, NewWorker, Store, Trigger,
};

use super::bare::ARGS;
use super::enqueue::enqueue;
use super::place::{self, others_at_work, refuse_workers};
use crate::database::Database;
use crate::output::Failure;

const TTL: Duration = Duration::from_secs(600);

/// Measure enqueue, claim, assign, start, finish and renew on a database made for it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench store --database-url sqlite:bench.db
  tasuki bench store --runs 5000 --database-url postgres://tasuki@localhost/bench")]
pub(crate) struct BenchStore {
    /// A database made for it: it is migrated, and filled with runs
    #[command(flatten)]
    pub(crate) database: Database,

    /// How many runs for each figure
    #[arg(long, default_value_t = 20_000)]
    runs: u32,

    /// Batch sizes, with commas
    #[arg(long, default_value = "1,200,1000", value_delimiter = ',')]
    batches: Vec<u32>,

    /// Numbers of connections, with commas
    #[arg(long, default_value = "1,2,4", value_delimiter = ',')]
    connections: Vec<u32>,

    /// Only these: single, coalesced, bulk, claim, assign, renew
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

struct Figure {
    what: &'static str,
    batch: u32,
    connections: u32,
    runs: u64,
    seconds: f64,
}

impl BenchStore {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        let mut figures = Vec::new();
        self.measure(&mut figures).await.map_err(|error| self.database.failed(&error))?;
        Ok(if self.json { as_json(&figures) } else { as_table(&figures) })
    }

    fn wants(&self, what: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|one| one == what)
    }

    async fn measure(&self, figures: &mut Vec<Figure>) -> Result<(), Error> {
        let most = self.connections.iter().copied().max().unwrap_or(1);
        let bench = Arc::new(Bench::new(self.database.url(), most.max(16)).await?);
        let tell = |figure: Figure, figures: &mut Vec<Figure>| {
            eprintln!("{}", line(&figure));
            figures.push(figure);
        };
        if self.wants("single") {
            for &connections in &self.connections {
                tell(bench.enqueue_singly(self.runs / 10, connections).await?, figures);
            }
        }
        if self.wants("coalesced") {
            tell(bench.enqueue_coalesced(self.runs, 64).await?, figures);
        }
        for &batch in &self.batches {
            let runs = if batch == 1 { self.runs / 10 } else { self.runs };
            for &connections in &self.connections {
                if self.wants("bulk") && batch > 1 {
                    tell(bench.enqueue_bulk(runs, batch, connections).await?, figures);
                }
                if self.wants("claim") {
                    tell(bench.claim_and_finish(runs, batch, connections).await?, figures);
                }
                if self.wants("assign") {
                    let (runs, batch) = (runs.min(5_000), batch.min(200));
                    tell(bench.assign_start_finish(runs, batch, connections).await?, figures);
                }
            }
            if self.wants("renew") {
                tell(bench.renew(batch, 200).await?, figures);
            }
        }
        // The next bench finds nobody at work, and may lead.
        bench.store.worker_gone(bench.worker).await?;
        bench.store.depose("bench", bench.epoch).await?;
        bench.store.close().await;
        Ok(())
    }
}

/// A database with a leader, a worker and jobs to run.
struct Bench {
    store: Store,
    worker: WorkerId,
    epoch: Epoch,
    claimed: Arc<JobVersion>,
    assigned: Arc<JobVersion>,
    tokens: AtomicU64,
    seed: u128,
}

impl Bench {
    async fn new(url: &str, connections: u32) -> Result<Self, Error> {
        let store = Store::open(url, connections).await?;
        store.migrate().await?;
        refuse_workers(&store).await?;
        let started = jiff::Timestamp::now().as_nanosecond() as u128;
        let worker = WorkerId::from_random(started);
        let new = NewWorker {
            id: worker,
            node: "bench".parse()?,
            pid: None,
            address: None,
            labels: None,
            slots: 1_000_000,
            function_slots: 1_000_000,
        };
        store.register_worker(&new).await?;
        let seen = store.leader().await?.epoch;
        store.depose("bench", seen).await?;
        let minted = store.mint(worker, seen, seen, TTL).await?;
        let epoch = minted.ok_or_else(others_at_work)?;
        // As short as the names of queues are.
        let lane = format!("b{:x}", (started / 1_000) as u32);
        let claimed = job(&store, &lane, &lane, JobKind::Function).await?;
        let assigned = job(&store, &format!("{lane} assigned"), "", JobKind::Command).await?;
        Ok(Self {
            store,
            worker,
            epoch,
            claimed: Arc::new(claimed),
            assigned: Arc::new(assigned),
            tokens: AtomicU64::new(0),
            seed: started << 64,
        })
    }

    fn token(&self) -> LeaseToken {
        LeaseToken::from_random(self.seed | u128::from(self.tokens.fetch_add(1, Ordering::Relaxed)))
    }

    async fn fill(&self, job: &JobVersion, runs: u32) -> Result<(), Error> {
        let mut left = runs;
        while left > 0 {
            let some = left.min(1_000);
            let batch: Vec<NewRun<'_>> = (0..some).map(|_| task(job)).collect();
            self.store.create(Writer::Api, &batch).await?;
            left -= some;
        }
        self.store.tidy().await?;
        place::checkpoint(&self.store).await;
        Ok(())
    }

    async fn enqueue_singly(
        self: &Arc<Self>,
        runs: u32,
        connections: u32,
    ) -> Result<Figure, Error> {
        let began = Instant::now();
        self.in_parallel(connections, move |bench| async move {
            for _ in 0..runs / connections {
                bench.store.create(Writer::Api, &[task(&bench.claimed)]).await?;
            }
            Ok(u64::from(runs / connections))
        })
        .await
        .map(|runs| figure("enqueue single", 1, connections, runs, began))
    }

    async fn enqueue_coalesced(self: &Arc<Self>, runs: u32, callers: u32) -> Result<Figure, Error> {
        let (enqueuer, work) = Enqueuer::new(self.store.clone());
        let work = tokio::spawn(work);
        let began = Instant::now();
        let done = self
            .in_parallel(callers, move |bench| {
                let enqueuer = enqueuer.clone();
                async move {
                    for _ in 0..runs / callers {
                        enqueue(&enqueuer, &bench.claimed).await?;
                    }
                    Ok(u64::from(runs / callers))
                }
            })
            .await?;
        let figure = figure("enqueue coalesced", 1, callers, done, began);
        work.await.expect("the enqueuer does not panic");
        Ok(figure)
    }

    async fn enqueue_bulk(
        self: &Arc<Self>,
        runs: u32,
        batch: u32,
        connections: u32,
    ) -> Result<Figure, Error> {
        let began = Instant::now();
        let share = u64::from(runs.div_ceil(connections));
        self.in_parallel(connections, move |bench| async move {
            let mut done = 0;
            while done < share {
                let runs: Vec<NewRun<'_>> = (0..batch).map(|_| task(&bench.claimed)).collect();
                bench.store.create(Writer::Api, &runs).await?;
                done += u64::from(batch);
            }
            Ok(done)
        })
        .await
        .map(|runs| figure("enqueue bulk", batch, connections, runs, began))
    }

    async fn claim_and_finish(
        self: &Arc<Self>,
        runs: u32,
        batch: u32,
        connections: u32,
    ) -> Result<Figure, Error> {
        // Whatever waits, so that each figure begins with the same.
        self.claim_all(1_000).await?;
        self.fill(&self.claimed, runs).await?;
        let began = Instant::now();
        self.in_parallel(connections, move |bench| async move { bench.claim_all(batch).await })
            .await
            .map(|runs| figure("claim+finish", batch, connections, runs, began))
    }

    async fn claim_all(&self, batch: u32) -> Result<u64, Error> {
        let mut done = 0;
        loop {
            let token = self.token();
            let asked = ClaimBatch {
                worker: self.worker,
                token,
                lane: &self.claimed.spec.lane,
                most: batch,
                lease_ttl: TTL,
            };
            let ClaimResult::Runs(runs) = self.store.claim(&asked).await? else { continue };
            if runs.is_empty() {
                return Ok(done);
            }
            let ends: Vec<(RunId, AttemptResult)> =
                runs.iter().map(|run| (run.id, AttemptResult::default())).collect();
            let outcomes = self.store.finish_many(token, &ends).await?;
            done += outcomes.iter().filter(|outcome| outcome.is_applied()).count() as u64;
        }
    }

    async fn assign_start_finish(
        self: &Arc<Self>,
        runs: u32,
        batch: u32,
        connections: u32,
    ) -> Result<Figure, Error> {
        self.fill(&self.assigned, runs).await?;
        let began = Instant::now();
        let share = runs / connections;
        // Each has its own part of what waits, as a leader that plans for several workers does.
        let wanted = self.store.due("", jiff::Timestamp::MAX, runs).await?;
        let parts: Arc<Vec<_>> =
            Arc::new(wanted.chunks(share.max(1) as usize).map(<[_]>::to_vec).collect());
        let next = Arc::new(AtomicU64::new(0));
        self.in_parallel(connections, move |bench| {
            let part = parts.get(next.fetch_add(1, Ordering::Relaxed) as usize).cloned();
            async move {
                let mut done = 0;
                for some in part.unwrap_or_default().chunks(batch as usize) {
                    let token = bench.token();
                    let asked = AssignBatch {
                        epoch: bench.epoch,
                        worker: bench.worker,
                        token,
                        runs: some,
                        assign_ahead: TTL,
                        reassign_after: TTL,
                    };
                    let given = bench.store.assign(&asked).await?;
                    bench.store.start(bench.worker, token, &given, TTL).await?;
                    let ends: Vec<(RunId, AttemptResult)> =
                        given.iter().map(|run| (*run, AttemptResult::default())).collect();
                    let outcomes = bench.store.finish_many(token, &ends).await?;
                    done += outcomes.iter().filter(|outcome| outcome.is_applied()).count() as u64;
                }
                Ok(done)
            }
        })
        .await
        .map(|runs| figure("assign+start+finish", batch, connections, runs, began))
    }

    async fn renew(self: &Arc<Self>, batch: u32, renewals: u32) -> Result<Figure, Error> {
        self.fill(&self.claimed, batch).await?;
        let token = self.token();
        let lane = &self.claimed.spec.lane;
        let asked = ClaimBatch { worker: self.worker, token, lane, most: batch, lease_ttl: TTL };
        let ClaimResult::Runs(runs) = self.store.claim(&asked).await? else {
            return Err(others_at_work());
        };
        let began = Instant::now();
        for _ in 0..renewals {
            self.store.renew(self.worker, token, TTL).await?;
        }
        let told =
            figure("renew (runs kept)", batch, 1, u64::from(renewals) * runs.len() as u64, began);
        let ends: Vec<(RunId, AttemptResult)> =
            runs.iter().map(|run| (run.id, AttemptResult::default())).collect();
        self.store.finish_many(token, &ends).await?;
        Ok(told)
    }

    async fn in_parallel<F, W>(self: &Arc<Self>, how_many: u32, work: W) -> Result<u64, Error>
    where
        W: Fn(Arc<Self>) -> F,
        F: Future<Output = Result<u64, Error>> + Send + 'static,
    {
        place::in_parallel(how_many, || work(Arc::clone(self))).await
    }
}

fn task(job: &JobVersion) -> NewRun<'_> {
    NewRun { args: Some(ARGS.to_owned()), ..NewRun::task(job) }
}

async fn job(store: &Store, name: &str, lane: &str, kind: JobKind) -> Result<JobVersion, Error> {
    let spec = JobSpec {
        kind,
        lane: lane.to_owned(),
        max_attempts: 4,
        backoff: Duration::from_secs(30),
        backoff_cap: Duration::from_secs(900),
        ..place::spec(&Work::new(What::Function(name.to_owned())))
    };
    let name = format!("bench store {name}");
    Ok(place::job(store, &name, spec, Trigger::Task, None).await?.newest)
}

fn figure(what: &'static str, batch: u32, connections: u32, runs: u64, began: Instant) -> Figure {
    Figure { what, batch, connections, runs, seconds: began.elapsed().as_secs_f64() }
}

fn rate(figure: &Figure) -> f64 {
    figure.runs as f64 / figure.seconds
}

fn line(figure: &Figure) -> String {
    format!(
        "{:<20} batch {:>5}  connections {:>3}  {:>9.0} runs/s",
        figure.what,
        figure.batch,
        figure.connections,
        rate(figure)
    )
}

fn as_table(figures: &[Figure]) -> String {
    figures.iter().map(|figure| line(figure) + "\n").collect()
}

fn as_json(figures: &[Figure]) -> String {
    let rows: Vec<Value> = figures
        .iter()
        .map(|figure| {
            json!({
                "what": figure.what,
                "batch": figure.batch,
                "connections": figure.connections,
                "runs": figure.runs,
                "seconds": figure.seconds,
                "runs_per_second": rate(figure).round(),
            })
        })
        .collect();
    format!("{:#}\n", Value::Array(rows))
}
