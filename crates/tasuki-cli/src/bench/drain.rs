//! `tasuki bench drain`: measures how fast one node processes waiting tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Args;
use serde_json::Value;
use tasuki::{HandlerRegistry, Wakeups};
use tasuki_core::work_spec::WorkAction;
use tasuki_store::Error;

use super::baseline::per_second;
use super::fixture::{BenchFixture, checkpoint, with_bench_fixture};
use super::progress::Progress;
use super::results::{BenchReport, Comparison};
use crate::database_access::DatabaseOptions;
use crate::failure::Failure;

/// Handler name of the function that the tasks call.
const HANDLER: &str = "bench drain";

/// Measure how fast one node processes waiting tasks, compared to a plain SQL loop that writes the same rows.
///
/// The tasks call a function that does nothing; each run is guarded, leased and stored. The measurement lasts from the
/// start of the node until the database shows that every run has ended. The plain loop claims and finishes the same
/// number of rows in tables of its own, alternating with the node. Both start with a warm-up that is not measured.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench drain --database-url sqlite:bench.db
  tasuki bench drain --rounds 5 --function-slots 2000 --database-url postgres://tasuki@localhost/bench
  tasuki bench drain --tasks 10000 --json --database-url mysql://tasuki@localhost/bench")]
pub(crate) struct BenchDrainCommand {
    #[command(flatten)]
    pub(crate) database: DatabaseOptions,

    /// Number of tasks
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    tasks: u32,

    /// Number of measured rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Number of functions that the node runs concurrently
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    function_slots: u32,

    /// Batch size of the plain SQL loop with which tasuki is compared
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    bare_batch: u32,

    /// Number of connections of this plain SQL loop (on SQLite always one)
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    bare_connections: u32,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BenchDrainCommand {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        let measure = async |fixture: &BenchFixture| self.measure(fixture).await;
        with_bench_fixture(&self.database, self.bare_connections, measure).await
    }

    async fn measure(&self, fixture: &BenchFixture) -> Result<String, Error> {
        let (batch, connections) =
            (self.bare_batch, fixture.baseline.concurrent_writers(self.bare_connections));
        let limit = format!("plain SQL, batch {batch}, {connections} connections");
        let measure_node =
            async || measure_node_drain_rate(fixture, self.tasks, self.function_slots).await;
        let measure_baseline = async || {
            let checkpoint = async || checkpoint(&fixture.store).await;
            fixture.baseline.measure_drain_rate(self.tasks, batch, connections, checkpoint).await
        };
        // Warm-up: a new PostgreSQL connection plans its first executions of a statement anew each time, with bad plans.
        measure_node_drain_rate(fixture, self.tasks.div_ceil(5), self.function_slots).await?;
        measure_baseline().await?;
        let comparison = Comparison::without_measurements("drain by a node", limit, "runs/s");
        let comparison = comparison.measure(self.rounds, measure_node, measure_baseline).await?;
        let report = BenchReport {
            bench: "drain",
            database: fixture.database_product(),
            heading: format!(
                "{} tasks, {} slots, {} rounds",
                self.tasks, self.function_slots, self.rounds
            ),
            comparisons: vec![comparison],
        };
        Ok(report.render(self.json))
    }
}

/// Submits `tasks` tasks, starts a node and returns how many tasks per second it processes.
pub(crate) async fn measure_node_drain_rate(
    fixture: &BenchFixture,
    tasks: u32,
    slots: u32,
) -> Result<f64, Error> {
    let job = fixture.create_job("drain", WorkAction::Function(HANDLER.to_owned()), None).await?;
    let progress = Progress::new("submit", u64::from(tasks));
    fixture.submit_tasks(&job, tasks, None, &progress).await?;
    drop(progress);
    fixture.analyze_and_checkpoint().await?;
    let calls = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&calls);
    let mut functions = HandlerRegistry::default();
    functions.register(HANDLER, move |_: Value, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        async { Ok(()) }
    });
    let progress = Progress::new("drain", u64::from(tasks));
    let started = Instant::now();
    let node = fixture.start_node(functions, Some(slots), &Wakeups::default()).await?;
    let wait = async {
        fixture.wait_until_called(&calls, u64::from(tasks), &progress).await?;
        fixture.wait_until_ended(&job, node.worker_id()).await
    };
    let ended = wait.await;
    let elapsed = started.elapsed();
    node.stop().await;
    ended?;
    fixture.check_all_succeeded(&job, u64::from(tasks)).await?;
    Ok(per_second(u64::from(tasks), elapsed))
}
