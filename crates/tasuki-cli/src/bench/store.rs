//! `tasuki bench store`: measures the statements of the store: create, claim, assign, start, finish and renew, with
//! guards and history.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tasuki_core::work_spec::{WorkAction, WorkSpec};
use tasuki_core::{Epoch, LeaseToken, WorkerId};
use tasuki_store::{
    AssignRequest, AttemptReport, AttemptResult, ClaimRequest, ClaimResult, Error, JobKind,
    JobVersion, JobVersionSpec, NewRun, NewWorker, Store, SubmitBatcher, Trigger, Writer,
};

use super::baseline::TASK_ARGS;
use super::enqueue::submit_bench_task;
use super::fixture::{self, other_jobs_or_worker_error, refuse_if_in_use};
use crate::database_access::DatabaseOptions;
use crate::failure::Failure;

const LEASE_TTL: Duration = Duration::from_secs(600);

/// Measure how fast a database creates, claims, assigns, starts, finishes and renews runs. Needs a database of its own
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench store --database-url sqlite:bench.db
  tasuki bench store --runs 5000 --database-url postgres://tasuki@localhost/bench")]
pub(crate) struct BenchStoreCommand {
    #[command(flatten)]
    pub(crate) database: DatabaseOptions,

    /// Number of runs per measurement
    #[arg(long, default_value_t = 20_000)]
    runs: u32,

    /// Batch sizes, comma-separated
    #[arg(long, default_value = "1,200,1000", value_delimiter = ',')]
    batches: Vec<u32>,

    /// Numbers of connections, comma-separated
    #[arg(long, default_value = "1,2,4", value_delimiter = ',')]
    connections: Vec<u32>,

    /// Measurements to run, comma-separated: single (one task per write), coalesced (64 concurrent callers, whose tasks
    /// are written together), bulk (many tasks per write), claim, assign, renew [default: all]
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

struct Measurement {
    what: &'static str,
    batch: u32,
    connections: u32,
    runs: u64,
    seconds: f64,
}

impl BenchStoreCommand {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        let mut measurements = Vec::new();
        self.measure(&mut measurements)
            .await
            .map_err(|error| self.database.operation_failure(&error))?;
        Ok(if self.json { as_json(&measurements) } else { as_table(&measurements) })
    }

    fn is_selected(&self, what: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|one| one == what)
    }

    async fn measure(&self, measurements: &mut Vec<Measurement>) -> Result<(), Error> {
        let max_connections = self.connections.iter().copied().max().unwrap_or(1);
        let bench =
            Arc::new(StoreFixture::new(self.database.url(), max_connections.max(16)).await?);
        let record = |measurement: Measurement, measurements: &mut Vec<Measurement>| {
            eprintln!("{}", line(&measurement));
            measurements.push(measurement);
        };
        if self.is_selected("single") {
            for &connections in &self.connections {
                record(bench.enqueue_singly(self.runs / 10, connections).await?, measurements);
            }
        }
        if self.is_selected("coalesced") {
            record(bench.enqueue_coalesced(self.runs, 64).await?, measurements);
        }
        for &batch in &self.batches {
            let runs = if batch == 1 { self.runs / 10 } else { self.runs };
            for &connections in &self.connections {
                if self.is_selected("bulk") && batch > 1 {
                    record(bench.enqueue_bulk(runs, batch, connections).await?, measurements);
                }
                if self.is_selected("claim") {
                    record(bench.claim_and_finish(runs, batch, connections).await?, measurements);
                }
                if self.is_selected("assign") {
                    let (runs, batch) = (runs.min(5_000), batch.min(200));
                    record(
                        bench.assign_start_finish(runs, batch, connections).await?,
                        measurements,
                    );
                }
            }
            if self.is_selected("renew") {
                record(bench.renew(batch, 200).await?, measurements);
            }
        }
        // Leave no running worker and no leader behind, so that the next benchmark is not refused.
        bench.store.mark_worker_gone(bench.worker).await?;
        bench.store.end_term("bench", bench.epoch).await?;
        bench.store.close().await;
        Ok(())
    }
}

/// A database with a leader, a worker and jobs to run.
struct StoreFixture {
    store: Store,
    worker: WorkerId,
    epoch: Epoch,
    claimed: Arc<JobVersion>,
    assigned: Arc<JobVersion>,
    tokens: AtomicU64,
    seed: u128,
}

impl StoreFixture {
    async fn new(url: &str, connections: u32) -> Result<Self, Error> {
        let store = Store::open(url, connections).await?;
        store.migrate().await?;
        refuse_if_in_use(&store).await?;
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
        let seen = store.get_leader_record().await?.epoch;
        store.end_term("bench", seen).await?;
        let minted = store.take_leadership(worker, seen, seen, LEASE_TTL).await?;
        let epoch = minted.ok_or_else(other_jobs_or_worker_error)?;
        // A short lane name, as the names of queues are usually short.
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
            let chunk = left.min(1_000);
            let batch: Vec<NewRun<'_>> = (0..chunk).map(|_| task(job)).collect();
            self.store.create_or_find_runs(Writer::Api, &batch).await?;
            left -= chunk;
        }
        self.store.analyze_tables().await?;
        fixture::checkpoint(&self.store).await;
        Ok(())
    }

    async fn enqueue_singly(
        self: &Arc<Self>,
        runs: u32,
        connections: u32,
    ) -> Result<Measurement, Error> {
        let started_at = Instant::now();
        self.run_in_parallel(connections, move |bench| async move {
            for _ in 0..runs / connections {
                bench.store.create_or_find_runs(Writer::Api, &[task(&bench.claimed)]).await?;
            }
            Ok(u64::from(runs / connections))
        })
        .await
        .map(|runs| measurement("enqueue single", 1, connections, runs, started_at))
    }

    async fn enqueue_coalesced(
        self: &Arc<Self>,
        runs: u32,
        callers: u32,
    ) -> Result<Measurement, Error> {
        let (enqueuer, work) = SubmitBatcher::new(self.store.clone());
        let work = tokio::spawn(work);
        let started_at = Instant::now();
        let done = self
            .run_in_parallel(callers, move |bench| {
                let enqueuer = enqueuer.clone();
                async move {
                    for _ in 0..runs / callers {
                        submit_bench_task(&enqueuer, &bench.claimed).await?;
                    }
                    Ok(u64::from(runs / callers))
                }
            })
            .await?;
        let measurement = measurement("enqueue coalesced", 1, callers, done, started_at);
        work.await.expect("the submit batcher does not panic");
        Ok(measurement)
    }

    async fn enqueue_bulk(
        self: &Arc<Self>,
        runs: u32,
        batch: u32,
        connections: u32,
    ) -> Result<Measurement, Error> {
        let started_at = Instant::now();
        let share = u64::from(runs.div_ceil(connections));
        self.run_in_parallel(connections, move |bench| async move {
            let mut done = 0;
            while done < share {
                let runs: Vec<NewRun<'_>> = (0..batch).map(|_| task(&bench.claimed)).collect();
                bench.store.create_or_find_runs(Writer::Api, &runs).await?;
                done += u64::from(batch);
            }
            Ok(done)
        })
        .await
        .map(|runs| measurement("enqueue bulk", batch, connections, runs, started_at))
    }

    async fn claim_and_finish(
        self: &Arc<Self>,
        runs: u32,
        batch: u32,
        connections: u32,
    ) -> Result<Measurement, Error> {
        // Process all waiting runs first, so that every measurement starts with the same number.
        self.claim_all(1_000).await?;
        self.fill(&self.claimed, runs).await?;
        let started_at = Instant::now();
        self.run_in_parallel(connections, move |bench| async move { bench.claim_all(batch).await })
            .await
            .map(|runs| measurement("claim+finish", batch, connections, runs, started_at))
    }

    async fn claim_all(&self, batch: u32) -> Result<u64, Error> {
        let mut done = 0;
        loop {
            let token = self.token();
            let request = ClaimRequest {
                worker: self.worker,
                token,
                lane: &self.claimed.spec.lane,
                max_runs: batch,
                lease_ttl: LEASE_TTL,
                after: None,
            };
            let ClaimResult::Runs(runs) = self.store.claim(&request).await? else { continue };
            if runs.is_empty() {
                return Ok(done);
            }
            let reports: Vec<AttemptReport> = runs
                .iter()
                .map(|run| AttemptReport::new(token, run.id, AttemptResult::default()))
                .collect();
            let outcomes = self.store.finish(&reports, &[token]).await?;
            done += outcomes.iter().filter(|outcome| outcome.is_applied()).count() as u64;
        }
    }

    async fn assign_start_finish(
        self: &Arc<Self>,
        runs: u32,
        batch: u32,
        connections: u32,
    ) -> Result<Measurement, Error> {
        self.fill(&self.assigned, runs).await?;
        let started_at = Instant::now();
        let share = runs / connections;
        // Each connection gets its own part of the waiting runs, as with a leader that assigns to several workers.
        let due_runs = self.store.list_due_in_lane("", jiff::Timestamp::MAX, runs).await?;
        let parts: Arc<Vec<_>> =
            Arc::new(due_runs.chunks(share.max(1) as usize).map(<[_]>::to_vec).collect());
        let next = Arc::new(AtomicU64::new(0));
        self.run_in_parallel(connections, move |bench| {
            let part = parts.get(next.fetch_add(1, Ordering::Relaxed) as usize).cloned();
            async move {
                let mut done = 0;
                for chunk in part.unwrap_or_default().chunks(batch as usize) {
                    let token = bench.token();
                    let request = AssignRequest {
                        epoch: bench.epoch,
                        worker: bench.worker,
                        token,
                        runs: chunk,
                        assign_ahead: LEASE_TTL,
                        reassign_after: LEASE_TTL,
                    };
                    let assigned_runs = bench.store.assign(&request).await?;
                    bench.store.start(bench.worker, token, &assigned_runs, LEASE_TTL).await?;
                    let reports: Vec<AttemptReport> = assigned_runs
                        .iter()
                        .map(|run| AttemptReport::new(token, *run, AttemptResult::default()))
                        .collect();
                    let outcomes = bench.store.finish(&reports, &[token]).await?;
                    done += outcomes.iter().filter(|outcome| outcome.is_applied()).count() as u64;
                }
                Ok(done)
            }
        })
        .await
        .map(|runs| measurement("assign+start+finish", batch, connections, runs, started_at))
    }

    async fn renew(self: &Arc<Self>, batch: u32, renewals: u32) -> Result<Measurement, Error> {
        self.fill(&self.claimed, batch).await?;
        let token = self.token();
        let lane = &self.claimed.spec.lane;
        let request = ClaimRequest {
            worker: self.worker,
            token,
            lane,
            max_runs: batch,
            lease_ttl: LEASE_TTL,
            after: None,
        };
        let ClaimResult::Runs(runs) = self.store.claim(&request).await? else {
            return Err(other_jobs_or_worker_error());
        };
        let started_at = Instant::now();
        for _ in 0..renewals {
            self.store.renew(self.worker, &[token], LEASE_TTL).await?;
        }
        let result = measurement(
            "renew (runs kept)",
            batch,
            1,
            u64::from(renewals) * runs.len() as u64,
            started_at,
        );
        let reports: Vec<AttemptReport> = runs
            .iter()
            .map(|run| AttemptReport::new(token, run.id, AttemptResult::default()))
            .collect();
        self.store.finish(&reports, &[token]).await?;
        Ok(result)
    }

    async fn run_in_parallel<F, W>(
        self: &Arc<Self>,
        tasks_count: u32,
        work: W,
    ) -> Result<u64, Error>
    where
        W: Fn(Arc<Self>) -> F,
        F: Future<Output = Result<u64, Error>> + Send + 'static,
    {
        fixture::sum_of_concurrent_tasks(tasks_count, || work(Arc::clone(self))).await
    }
}

fn task(job: &JobVersion) -> NewRun<'_> {
    NewRun { args: Some(TASK_ARGS.to_owned()), ..NewRun::task(job) }
}

async fn job(store: &Store, name: &str, lane: &str, kind: JobKind) -> Result<JobVersion, Error> {
    let spec = JobVersionSpec {
        kind,
        lane: lane.to_owned(),
        max_attempts: 4,
        backoff: Duration::from_secs(30),
        backoff_cap: Duration::from_secs(900),
        ..fixture::single_attempt_spec(&WorkSpec::new(WorkAction::Function(name.to_owned())))
    };
    let name = format!("bench store {name}");
    Ok(fixture::create_bench_job(store, &name, spec, Trigger::Task, None).await?.newest)
}

fn measurement(
    what: &'static str,
    batch: u32,
    connections: u32,
    runs: u64,
    started_at: Instant,
) -> Measurement {
    Measurement { what, batch, connections, runs, seconds: started_at.elapsed().as_secs_f64() }
}

fn rate(measurement: &Measurement) -> f64 {
    measurement.runs as f64 / measurement.seconds
}

fn line(measurement: &Measurement) -> String {
    format!(
        "{:<20} batch {:>5}  connections {:>3}  {:>9.0} runs/s",
        measurement.what,
        measurement.batch,
        measurement.connections,
        rate(measurement)
    )
}

fn as_table(measurements: &[Measurement]) -> String {
    measurements.iter().map(|measurement| line(measurement) + "\n").collect()
}

fn as_json(measurements: &[Measurement]) -> String {
    let rows: Vec<Value> = measurements
        .iter()
        .map(|measurement| {
            json!({
                "what": measurement.what,
                "batch": measurement.batch,
                "connections": measurement.connections,
                "runs": measurement.runs,
                "seconds": measurement.seconds,
                "runs_per_second": rate(measurement).round(),
            })
        })
        .collect();
    format!("{:#}\n", Value::Array(rows))
}
