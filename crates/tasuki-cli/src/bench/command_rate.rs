//! `tasuki bench spawn`: measures how fast a node runs commands and stores their output.

use std::process::Command;
use std::str::FromStr as _;
use std::time::{Duration, Instant};

use clap::Args;
use tasuki::Wakeups;
use tasuki::node::Node;
use tasuki_core::work_spec::{Dispatch, WorkAction};
use tasuki_store::{Error, Job, RunFilter};

use super::baseline::per_second;
use super::fixture::{self, BenchFixture, with_bench_fixture};
use super::progress::Progress;
use super::results::{BenchReport, Comparison};
use crate::database_access::DatabaseOptions;
use crate::failure::Failure;

/// The command; its argument is the output that it prints.
const COMMAND: [&str; 2] = ["echo", "x"];
/// Maximum time until the node is the leader.
const LEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Measure how fast a node runs commands and stores their output, compared to a plain loop that spawns processes and
/// reads their output.
///
/// The node is started and is the leader before the measurement, which lasts from the submission of all commands until
/// the database shows that every run has ended. In comparison, threads of this program run the same command equally
/// often and with the same concurrency, and discard the output.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench spawn --database-url sqlite:bench.db
  tasuki bench spawn --commands 2000 --slots 8 --dispatch claim --database-url postgres://tasuki@localhost/bench")]
pub(crate) struct BenchSpawnCommand {
    #[command(flatten)]
    pub(crate) database: DatabaseOptions,

    /// Number of commands
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    commands: u32,

    /// Number of concurrent commands
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    slots: u32,

    /// Dispatch mode: assign (the leader selects a worker), claim (any worker with a free slot takes the run)
    #[arg(long, default_value = "assign", value_parser = Dispatch::from_str)]
    dispatch: Dispatch,

    /// Number of measured rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BenchSpawnCommand {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        with_bench_fixture(&self.database, 1, async |fixture: &BenchFixture| {
            self.measure(fixture).await
        })
        .await
    }

    async fn measure(&self, fixture: &BenchFixture) -> Result<String, Error> {
        let wake = Wakeups::default();
        let builder = fixture::bench_node_builder(&fixture.store, Some(self.slots), &wake)?;
        let (builder, folder) = fixture::enable_command_execution(builder)?;
        let node = fixture::start_bench_node(builder).await?;
        let comparison = self.compare(fixture, &node, &wake).await;
        node.stop().await;
        let _ = std::fs::remove_dir_all(folder);
        let report = BenchReport {
            bench: "spawn",
            database: fixture.database_product(),
            heading: format!(
                "{} commands ({}), {} at a time, {} rounds",
                self.commands, self.dispatch, self.slots, self.rounds
            ),
            comparisons: vec![comparison?],
        };
        Ok(report.render(self.json))
    }

    async fn compare(
        &self,
        fixture: &BenchFixture,
        node: &Node,
        wake: &Wakeups,
    ) -> Result<Comparison, Error> {
        wait_until_leader(fixture, node).await?;
        let progress = Progress::new("spawn", 2 * u64::from(self.rounds));
        let count_round = async |rate: Result<f64, Error>| {
            progress.add(1);
            rate
        };
        let limit = format!("plain spawn and capture, {} threads", self.slots);
        let comparison = Comparison::without_measurements("commands by a node", limit, "runs/s")
            .measure(
                self.rounds,
                async || count_round(self.measure_node(fixture, node, wake).await).await,
                async || count_round(self.measure_baseline().await).await,
            );
        comparison.await
    }

    async fn measure_node(
        &self,
        fixture: &BenchFixture,
        node: &Node,
        wake: &Wakeups,
    ) -> Result<f64, Error> {
        let command = COMMAND.map(str::to_owned).to_vec();
        let job =
            fixture.create_job("spawn", WorkAction::Command(command), Some(self.dispatch)).await?;
        let hidden = Progress::new("submit", u64::from(self.commands));
        let started = Instant::now();
        fixture.submit_tasks(&job, self.commands, None, &hidden).await?;
        wake.wake_all();
        fixture.wait_until_ended(&job, node.worker_id()).await?;
        let elapsed = started.elapsed();
        fixture.check_all_succeeded(&job, u64::from(self.commands)).await?;
        check_output_stored(fixture, &job).await?;
        Ok(per_second(u64::from(self.commands), elapsed))
    }

    async fn measure_baseline(&self) -> Result<f64, Error> {
        let share = self.commands.div_ceil(self.slots);
        let started = Instant::now();
        let threads: Vec<_> =
            (0..self.slots).map(|_| std::thread::spawn(move || spawn_and_capture(share))).collect();
        for thread in threads {
            thread
                .join()
                .expect("benchmark threads do not panic")
                .map_err(|error| Error::Broken(format!("{}: {error}", COMMAND[0])))?;
        }
        Ok(per_second(u64::from(share * self.slots), started.elapsed()))
    }
}

fn spawn_and_capture(times: u32) -> std::io::Result<()> {
    for _ in 0..times {
        let output = Command::new(COMMAND[0]).args(&COMMAND[1..]).output()?;
        if output.stdout != b"x\n" {
            return Err(std::io::Error::other("unexpected output"));
        }
    }
    Ok(())
}

/// Waits until the node is the leader: only a leader assigns commands.
async fn wait_until_leader(fixture: &BenchFixture, node: &Node) -> Result<(), Error> {
    let since = Instant::now();
    while fixture.store.get_leader_record().await?.holder != Some(node.worker_id()) {
        if since.elapsed() > LEADER_TIMEOUT {
            return Err(Error::Broken("the node did not become the leader in time".to_owned()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Checks that the output of the commands was stored (for the first page of runs).
async fn check_output_stored(fixture: &BenchFixture, job: &Job) -> Result<(), Error> {
    let filter = RunFilter { job: Some(job.id), ..RunFilter::default() };
    let page = fixture.store.list_runs(&filter, None, 200).await?;
    for run in &page.runs {
        let log = fixture.store.read_log(run.id, run.counters.attempt_no, 0, 1).await?;
        let line = log.as_ref().and_then(|page| page.lines.first());
        if line.is_none_or(|line| line.text != COMMAND[1]) {
            return Err(Error::Broken(format!("the output of run {} was not stored", run.id)));
        }
    }
    Ok(())
}
