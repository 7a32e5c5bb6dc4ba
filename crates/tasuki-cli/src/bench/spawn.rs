//! `tasuki bench spawn`: how fast a node runs commands whose output is kept.

use std::process::Command;
use std::str::FromStr as _;
use std::time::{Duration, Instant};

use clap::Args;
use tasuki::Wake;
use tasuki::node::Node;
use tasuki_core::job_spec::{Dispatch, What};
use tasuki_store::{Error, Job, RunFilter};

use super::bar::Bar;
use super::bare::rate;
use super::figures::{Pair, Report};
use super::place::{self, Place, in_place};
use crate::database::Database;
use crate::output::Failure;

/// The command, and what it prints.
const COMMAND: [&str; 2] = ["echo", "x"];
/// How long a node may take to lead.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measure how fast a node runs commands, output captured and kept, beside a bare loop that spawns and captures.
///
/// A node is up and leads; the clock runs from the submission of all commands until the database shows that every
/// run has ended. Beside it threads of this program run the same command as often, as many at a time, read what
/// it prints, and forget it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench spawn --database-url sqlite:bench.db
  tasuki bench spawn --commands 2000 --slots 8 --dispatch claim --database-url postgres://tasuki@localhost/bench")]
pub(crate) struct BenchSpawn {
    #[command(flatten)]
    pub(crate) database: Database,

    /// How many commands
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    commands: u32,

    /// How many at a time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    slots: u32,

    /// Who decides where they run: the leader (assign), or any worker with room (claim)
    #[arg(long, default_value = "assign", value_parser = Dispatch::from_str)]
    dispatch: Dispatch,

    /// How often each is measured, in turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BenchSpawn {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        in_place(&self.database, 1, async |place: &Place| self.measure(place).await).await
    }

    async fn measure(&self, place: &Place) -> Result<String, Error> {
        let wake = Wake::default();
        let builder = place::builder(&place.store, Some(self.slots), &wake)?;
        let (builder, folder) = place::with_commands(builder)?;
        let node = place::start(builder).await?;
        let pair = self.both(place, &node, &wake).await;
        node.stop().await;
        let _ = std::fs::remove_dir_all(folder);
        let report = Report {
            bench: "spawn",
            database: place.database(),
            heading: format!(
                "{} commands ({}), {} at a time, {} rounds",
                self.commands, self.dispatch, self.slots, self.rounds
            ),
            pairs: vec![pair?],
        };
        Ok(report.told(self.json))
    }

    async fn both(&self, place: &Place, node: &Node, wake: &Wake) -> Result<Pair, Error> {
        leads(place, node).await?;
        let bar = Bar::new("spawn", 2 * u64::from(self.rounds));
        let told = async |figure: Result<f64, Error>| {
            bar.add(1);
            figure
        };
        let limit = format!("bare spawn and capture, {} threads", self.slots);
        let pair = Pair::new("commands by a node", limit, "runs/s").measure(
            self.rounds,
            async || told(self.through(place, node, wake).await).await,
            async || told(self.bare().await).await,
        );
        pair.await
    }

    async fn through(&self, place: &Place, node: &Node, wake: &Wake) -> Result<f64, Error> {
        let command = COMMAND.map(str::to_owned).to_vec();
        let job = place.job("spawn", What::Command(command), Some(self.dispatch)).await?;
        let hidden = Bar::new("submit", u64::from(self.commands));
        let began = Instant::now();
        place.submit(&job, self.commands, None, &hidden).await?;
        wake.all();
        place.ended(&job, node.worker_id()).await?;
        let took = began.elapsed();
        place.all_succeeded(&job, u64::from(self.commands)).await?;
        kept(place, &job).await?;
        Ok(rate(u64::from(self.commands), took))
    }

    async fn bare(&self) -> Result<f64, Error> {
        let share = self.commands.div_ceil(self.slots);
        let began = Instant::now();
        let threads: Vec<_> =
            (0..self.slots).map(|_| std::thread::spawn(move || spawn_and_capture(share))).collect();
        for thread in threads {
            thread
                .join()
                .expect("no bench panics")
                .map_err(|error| Error::Broken(format!("{}: {error}", COMMAND[0])))?;
        }
        Ok(rate(u64::from(share * self.slots), began.elapsed()))
    }
}

fn spawn_and_capture(times: u32) -> std::io::Result<()> {
    for _ in 0..times {
        let output = Command::new(COMMAND[0]).args(&COMMAND[1..]).output()?;
        if output.stdout != b"x\n" {
            return Err(std::io::Error::other("it did not print what it should"));
        }
    }
    Ok(())
}

/// Waits until a node leads: only a leader hands out commands.
async fn leads(place: &Place, node: &Node) -> Result<(), Error> {
    let since = Instant::now();
    while place.store.leader().await?.holder != Some(node.worker_id()) {
        if since.elapsed() > PATIENCE {
            return Err(Error::Broken("the node does not come to lead".to_owned()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// That what a command printed was kept: one looked at for all.
async fn kept(place: &Place, job: &Job) -> Result<(), Error> {
    let filter = RunFilter { job: Some(job.id), ..RunFilter::default() };
    let page = place.store.runs(&filter, None, 200).await?;
    for run in &page.runs {
        let log = place.store.read_log(run.id, run.counters.attempt_no, 0, 1).await?;
        let line = log.as_ref().and_then(|page| page.lines.first());
        if line.is_none_or(|line| line.text != COMMAND[1]) {
            return Err(Error::Broken(format!("what run {} printed was not kept", run.id)));
        }
    }
    Ok(())
}
