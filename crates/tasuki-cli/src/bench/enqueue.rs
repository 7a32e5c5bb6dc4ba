//! `tasuki bench enqueue`: how fast tasks are taken, one by one and in bulk.

use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use tasuki_core::job_spec::What;
use tasuki_store::{Writer, Enqueuer, Error, Job, JobVersion, NewRun, Task};

use super::bar::Bar;
use super::bare::{ARGS, rate};
use super::figures::{Pair, Report};
use super::place::{Place, in_parallel, in_place, task};
use crate::database::Database;
use crate::output::Failure;

/// What the function is called that nobody has.
const HANDLER: &str = "bench enqueue";

/// Measure how fast tasks are taken, each acknowledged when it is durable, beside plain inserts of bare rows.
///
/// Single tasks come from many callers at once and travel together; each caller goes on when its own task is
/// durable. Beside them as many callers insert bare rows, a commit each (on SQLite one, which is faster). In bulk
/// one caller submits many at a time; beside it one inserts as many bare rows at a time. A bare row is one row, a
/// task two: the run, and its place in the queue.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench enqueue --database-url sqlite:bench.db
  tasuki bench enqueue --callers 64 --bulk 5000 --database-url postgres://tasuki@localhost/bench")]
pub(crate) struct BenchEnqueue {
    #[command(flatten)]
    pub(crate) database: Database,

    /// How many tasks one by one
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    tasks: u32,

    /// From how many callers at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    callers: u32,

    /// How many tasks in bulk
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    bulk_tasks: u32,

    /// How many of them at a time
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    bulk: u32,

    /// How often each is measured, in turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BenchEnqueue {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        let measure = async |place: &Place| self.measure(place).await;
        in_place(&self.database, self.callers, measure).await
    }

    async fn measure(&self, place: &Place) -> Result<String, Error> {
        let job = place.job("enqueue", What::Function(HANDLER.to_owned()), None).await?;
        let bar = Bar::new("enqueue", 4 * u64::from(self.rounds));
        let told = async |figure: Result<f64, Error>| {
            bar.add(1);
            figure
        };
        let single = Pair::new(
            "submit one by one, acknowledged",
            format!("bare inserts, {} callers", place.bare.most(self.callers)),
            "runs/s",
        );
        let single = single.measure(
            self.rounds,
            async || told(self.singly(place, &job).await).await,
            async || told(place.bare.insert_singly(self.tasks, self.callers).await).await,
        );
        let single = single.await?;
        let bulk =
            Pair::new("submit in bulk", format!("bare inserts, {} at a time", self.bulk), "runs/s");
        let bulk = bulk.measure(
            self.rounds,
            async || told(self.in_bulk(place, &job).await).await,
            async || told(place.bare.insert_bulk(self.bulk_tasks, self.bulk).await).await,
        );
        let bulk = bulk.await?;
        let report = Report {
            bench: "enqueue",
            database: place.database(),
            heading: format!(
                "{} tasks from {} callers, {} tasks {} at a time, {} rounds",
                self.tasks, self.callers, self.bulk_tasks, self.bulk, self.rounds
            ),
            pairs: vec![single, bulk],
        };
        Ok(report.told(self.json))
    }

    async fn singly(&self, place: &Place, job: &Job) -> Result<f64, Error> {
        let (enqueuer, work) = Enqueuer::new(place.store.clone());
        let work = tokio::spawn(work);
        let (job, share) = (Arc::new(job.newest.clone()), self.tasks.div_ceil(self.callers));
        let began = Instant::now();
        let done = in_parallel(self.callers, move || {
            let (enqueuer, job) = (enqueuer.clone(), Arc::clone(&job));
            async move {
                for _ in 0..share {
                    enqueue(&enqueuer, &job).await?;
                }
                Ok(u64::from(share))
            }
        });
        let done = done.await?;
        let took = began.elapsed();
        work.await.expect("the enqueuer does not panic");
        Ok(rate(done, took))
    }

    async fn in_bulk(&self, place: &Place, job: &Job) -> Result<f64, Error> {
        let calls = self.bulk_tasks.div_ceil(self.bulk);
        let began = Instant::now();
        for _ in 0..calls {
            let runs: Vec<NewRun<'_>> = (0..self.bulk).map(|_| task(job)).collect();
            place.store.create(Writer::Api, &runs).await?;
        }
        Ok(rate(u64::from(calls * self.bulk), began.elapsed()))
    }
}

/// Submits one task and waits until it is durable.
pub(crate) async fn enqueue(enqueuer: &Enqueuer, job: &Arc<JobVersion>) -> Result<(), Error> {
    let task = Task { args: Some(ARGS.to_owned()), ..Task::new(Arc::clone(job)) };
    enqueuer.enqueue(task).await.map(drop)
}
