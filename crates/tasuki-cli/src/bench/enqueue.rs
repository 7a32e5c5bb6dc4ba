//! `tasuki bench enqueue`: measures how fast tasks are submitted, one by one and in bulk.

use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use tasuki_core::work_spec::WorkAction;
use tasuki_store::{Error, Job, JobVersion, NewRun, PendingTask, SubmitBatcher, Writer};

use super::baseline::{TASK_ARGS, per_second};
use super::fixture::{BenchFixture, new_bench_task, sum_of_concurrent_tasks, with_bench_fixture};
use super::progress::Progress;
use super::results::{BenchReport, Comparison};
use crate::database_access::DatabaseOptions;
use crate::failure::Failure;

/// Handler name of a function that no worker has, so that the tasks stay in the queue.
const HANDLER: &str = "bench enqueue";

/// Measure how fast tasks are submitted, each acknowledged when it is durable, compared to plain inserts of rows.
///
/// Single tasks come from many concurrent callers and are combined into batches; each caller continues when its own task
/// is durable. In comparison, the same number of callers insert rows with one commit each (one caller on SQLite, which
/// is faster). In bulk, one caller submits many tasks per call, compared to one that inserts as many rows per statement.
/// The baseline inserts one row per task; tasuki inserts two: the run and its due row.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench enqueue --database-url sqlite:bench.db
  tasuki bench enqueue --callers 64 --bulk 5000 --database-url postgres://tasuki@localhost/bench")]
pub(crate) struct BenchEnqueueCommand {
    #[command(flatten)]
    pub(crate) database: DatabaseOptions,

    /// Number of tasks that are submitted one by one
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    tasks: u32,

    /// Number of concurrent callers
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    callers: u32,

    /// Number of tasks that are submitted in bulk
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    bulk_tasks: u32,

    /// Number of tasks per bulk call
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    bulk: u32,

    /// Number of measured rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BenchEnqueueCommand {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        let measure = async |fixture: &BenchFixture| self.measure(fixture).await;
        with_bench_fixture(&self.database, self.callers, measure).await
    }

    async fn measure(&self, fixture: &BenchFixture) -> Result<String, Error> {
        let job =
            fixture.create_job("enqueue", WorkAction::Function(HANDLER.to_owned()), None).await?;
        let progress = Progress::new("enqueue", 4 * u64::from(self.rounds));
        let count_round = async |rate: Result<f64, Error>| {
            progress.add(1);
            rate
        };
        let single = Comparison::without_measurements(
            "submit one by one, acknowledged",
            format!("plain inserts, {} callers", fixture.baseline.concurrent_writers(self.callers)),
            "runs/s",
        );
        let single = single.measure(
            self.rounds,
            async || count_round(self.submit_singly(fixture, &job).await).await,
            async || {
                count_round(fixture.baseline.insert_singly(self.tasks, self.callers).await).await
            },
        );
        let single = single.await?;
        let bulk = Comparison::without_measurements(
            "submit in bulk",
            format!("plain inserts, {} at a time", self.bulk),
            "runs/s",
        );
        let bulk = bulk.measure(
            self.rounds,
            async || count_round(self.submit_in_bulk(fixture, &job).await).await,
            async || {
                count_round(fixture.baseline.insert_bulk(self.bulk_tasks, self.bulk).await).await
            },
        );
        let bulk = bulk.await?;
        let report = BenchReport {
            bench: "enqueue",
            database: fixture.database_product(),
            heading: format!(
                "{} tasks from {} callers, {} tasks {} at a time, {} rounds",
                self.tasks, self.callers, self.bulk_tasks, self.bulk, self.rounds
            ),
            comparisons: vec![single, bulk],
        };
        Ok(report.render(self.json))
    }

    async fn submit_singly(&self, fixture: &BenchFixture, job: &Job) -> Result<f64, Error> {
        let (enqueuer, work) = SubmitBatcher::new(fixture.store.clone());
        let work = tokio::spawn(work);
        let (job, share) = (Arc::new(job.newest.clone()), self.tasks.div_ceil(self.callers));
        let started = Instant::now();
        let done = sum_of_concurrent_tasks(self.callers, move || {
            let (enqueuer, job) = (enqueuer.clone(), Arc::clone(&job));
            async move {
                for _ in 0..share {
                    submit_bench_task(&enqueuer, &job).await?;
                }
                Ok(u64::from(share))
            }
        });
        let done = done.await?;
        let elapsed = started.elapsed();
        work.await.expect("the submit batcher does not panic");
        Ok(per_second(done, elapsed))
    }

    async fn submit_in_bulk(&self, fixture: &BenchFixture, job: &Job) -> Result<f64, Error> {
        let calls = self.bulk_tasks.div_ceil(self.bulk);
        let started = Instant::now();
        for _ in 0..calls {
            let runs: Vec<NewRun<'_>> = (0..self.bulk).map(|_| new_bench_task(job)).collect();
            fixture.store.create_or_find_runs(Writer::Api, &runs).await?;
        }
        Ok(per_second(u64::from(calls * self.bulk), started.elapsed()))
    }
}

/// Submits one task and waits until it is durable.
pub(crate) async fn submit_bench_task(
    enqueuer: &SubmitBatcher,
    job: &Arc<JobVersion>,
) -> Result<(), Error> {
    let task =
        PendingTask { args: Some(TASK_ARGS.to_owned()), ..PendingTask::new(Arc::clone(job)) };
    enqueuer.submit(task).await.map(drop)
}
