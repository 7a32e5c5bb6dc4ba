//! `tasuki bench drain`: how fast one node works off what waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Args;
use serde_json::Value;
use tasuki::{Functions, Wake};
use tasuki_core::job_spec::What;
use tasuki_store::Error;

use super::bar::Bar;
use super::bare::rate;
use super::figures::{Pair, Report};
use super::place::{Place, checkpoint, in_place};
use crate::database::Database;
use crate::output::Failure;

/// What the function is called.
const HANDLER: &str = "bench drain";

/// Measure how fast one node works off tasks that wait, beside a bare SQL loop that writes the same rows.
///
/// The tasks call a function that does nothing; each is guarded, leased and kept. The clock runs from the start
/// of the node until the database shows that every run has ended. The bare loop claims and finishes as many rows
/// of bare tables, in turns with the node. A first round of both is not counted.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench drain --database-url sqlite:bench.db
  tasuki bench drain --rounds 5 --function-slots 2000 --database-url postgres://tasuki@localhost/bench
  tasuki bench drain --tasks 10000 --json --database-url mysql://tasuki@localhost/bench")]
pub(crate) struct BenchDrain {
    #[command(flatten)]
    pub(crate) database: Database,

    /// How many tasks
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    tasks: u32,

    /// How often each is measured, in turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// How many functions the node runs at once
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    function_slots: u32,

    /// How many rows the bare loop takes at a time
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    bare_batch: u32,

    /// On how many connections the bare loop runs (one on SQLite)
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    bare_connections: u32,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BenchDrain {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        let measure = async |place: &Place| self.measure(place).await;
        in_place(&self.database, self.bare_connections, measure).await
    }

    async fn measure(&self, place: &Place) -> Result<String, Error> {
        let (batch, connections) = (self.bare_batch, place.bare.most(self.bare_connections));
        let limit = format!("bare SQL, {batch} a batch on {connections}");
        let ours = async || drain(place, self.tasks, self.function_slots).await;
        let bare = async || {
            let checkpoint = async || checkpoint(&place.store).await;
            place.bare.drain(self.tasks, batch, connections, checkpoint).await
        };
        // Not counted: in its first batches a new session of PostgreSQL plans anew each time, and badly.
        drain(place, self.tasks.div_ceil(5), self.function_slots).await?;
        bare().await?;
        let pair = Pair::new("drain by a node", limit, "runs/s");
        let pair = pair.measure(self.rounds, ours, bare).await?;
        let report = Report {
            bench: "drain",
            database: place.database(),
            heading: format!(
                "{} tasks, {} slots, {} rounds",
                self.tasks, self.function_slots, self.rounds
            ),
            pairs: vec![pair],
        };
        Ok(report.told(self.json))
    }
}

/// How many tasks a second a node works off, of so many that wait when it starts.
pub(crate) async fn drain(place: &Place, tasks: u32, slots: u32) -> Result<f64, Error> {
    let job = place.job("drain", What::Function(HANDLER.to_owned()), None).await?;
    let bar = Bar::new("submit", u64::from(tasks));
    place.submit(&job, tasks, None, &bar).await?;
    drop(bar);
    place.settle().await?;
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let mut functions = Functions::default();
    functions.add(HANDLER, move |_: Value, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok(()) }
    });
    let bar = Bar::new("drain", u64::from(tasks));
    let began = Instant::now();
    let node = place.node(functions, Some(slots), &Wake::default()).await?;
    let waited = async {
        place.called(&calls, u64::from(tasks), &bar).await?;
        place.ended(&job, node.worker_id()).await
    };
    let ended = waited.await;
    let took = began.elapsed();
    node.stop().await;
    ended?;
    place.all_succeeded(&job, u64::from(tasks)).await?;
    Ok(rate(u64::from(tasks), took))
}
