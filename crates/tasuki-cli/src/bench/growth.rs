//! `tasuki bench growth`: measures whether many future or ended runs in the database slow a node down.

use std::path::PathBuf;

use clap::Args;
use jiff::SignedDuration;
use tasuki_core::work_spec::WorkAction;
use tasuki_store::{Error, PrunePosition, Store};

use super::baseline::Baseline;
use super::drain::measure_node_drain_rate;
use super::fixture::{BenchFixture, other_jobs_or_worker_error};
use super::progress::Progress;
use super::results::{BenchReport, Comparison};
use crate::database_access::DatabaseOptions;
use crate::failure::Failure;

/// Function slots of a node by default.
const SLOTS: u32 = 256;

/// Handler name of the ended and the future runs.
const HANDLER: &str = "bench growth";
/// Delay until the future runs are due: after the end of the measurement.
const FUTURE_OFFSET: SignedDuration = SignedDuration::from_hours(24);

/// Measure how fast a node processes tasks in a database with a million future runs, and in one with a million ended
/// runs, compared to an empty database.
///
/// Creates three databases next to the given one and drops them at the end: one empty, one with runs that are due
/// tomorrow, one with ended runs. A node processes the same number of tasks in each, in alternating order, and these
/// tasks are deleted again. A warm-up round comes first. The user needs the permission to create databases.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench growth --database-url sqlite:bench.db
  tasuki bench growth --present 100000 --rounds 6 --database-url postgres://tasuki@localhost/bench")]
pub(crate) struct BenchGrowthCommand {
    #[command(flatten)]
    pub(crate) database: DatabaseOptions,

    /// Number of runs in each of two temporary databases: future runs in one, ended runs in the other
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    present: u32,

    /// Number of tasks that are processed in each measurement
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    tasks: u32,

    /// Number of measured rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BenchGrowthCommand {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        let failure = |error: Error| self.database.operation_failure(&error);
        let url = self.database.url();
        match Store::probe(url).await {
            Err(Error::FileNotFound { .. }) => {}
            result => result.map_err(|error| self.database.open_failure(&error))?,
        }
        let mut databases = Vec::new();
        let measured = self.measure(url, &mut databases).await;
        // Remove the databases even if the measurement failed.
        let mut removed = Ok(());
        for temporary in databases {
            removed = removed.and(temporary.remove().await);
        }
        let report = measured.map_err(|error| {
            failure(error).hint("bench growth creates databases next to the given one; check that the user has the permission")
        })?;
        removed.map_err(failure)?;
        Ok(report)
    }

    async fn measure(
        &self,
        url: &str,
        databases: &mut Vec<TemporaryDatabase>,
    ) -> Result<String, Error> {
        for name in ["empty", "ahead", "ended"] {
            let temporary = TemporaryDatabase::make(url, name).await?;
            databases.push(temporary);
        }
        let [empty, ahead, ended] = &databases[..] else {
            return Err(other_jobs_or_worker_error());
        };
        let [empty, ahead, ended] = [&empty.fixture, &ahead.fixture, &ended.fixture];
        self.fill_with_future_runs(ahead).await?;
        self.fill_with_ended_runs(ended).await?;
        let comparison = |what, limit| Comparison::without_measurements(what, limit, "runs/s");
        let limit = "drain in an empty database";
        let mut with_ahead = comparison("drain beside future runs", limit);
        let mut with_ended = comparison("drain beside ended runs", limit);
        let progress = Progress::new("growth", 3 * (1 + u64::from(self.rounds)));
        // Warm-up, as in `drain`.
        for fixture in [empty, ahead, ended] {
            self.drain(fixture).await?;
            progress.add(1);
        }
        for round in 0..self.rounds {
            let mut rates = [0.0; 3];
            for index in measuring_order(round) {
                rates[index] = self.drain([empty, ahead, ended][index]).await?;
                progress.add(1);
            }
            for (comparison, ours) in [(&mut with_ahead, rates[1]), (&mut with_ended, rates[2])] {
                comparison.ours.push(ours);
                comparison.baseline.push(rates[0]);
            }
        }
        let report = BenchReport {
            bench: "growth",
            database: empty.database_product(),
            heading: format!(
                "{} runs present, {} tasks, {} rounds",
                self.present, self.tasks, self.rounds
            ),
            comparisons: vec![with_ahead, with_ended],
        };
        Ok(report.render(self.json))
    }

    /// Measures the drain in a database, then deletes the drained runs, so that every round starts with the same rows.
    async fn drain(&self, fixture: &BenchFixture) -> Result<f64, Error> {
        let from = PrunePosition::before_runs_scheduled_at(fixture.store.read_clock().await?);
        let rate = measure_node_drain_rate(fixture, self.tasks, SLOTS).await?;
        fixture.prune(from, &Progress::new("clean up", u64::from(self.tasks))).await?;
        fixture.store.analyze_tables().await?;
        Ok(rate)
    }

    async fn fill_with_future_runs(&self, fixture: &BenchFixture) -> Result<(), Error> {
        let job =
            fixture.create_job("growth", WorkAction::Function(HANDLER.to_owned()), None).await?;
        let progress = Progress::new("ahead", u64::from(self.present));
        let at = fixture.store.read_clock().await? + FUTURE_OFFSET;
        fixture.submit_tasks(&job, self.present, Some(at), &progress).await
    }

    /// Fills a database with runs that are created, claimed and finished in the usual way.
    async fn fill_with_ended_runs(&self, fixture: &BenchFixture) -> Result<(), Error> {
        let job =
            fixture.create_job("growth", WorkAction::Function(HANDLER.to_owned()), None).await?;
        let progress = Progress::new("ended", 2 * u64::from(self.present));
        fixture.submit_tasks(&job, self.present, None, &progress).await?;
        match fixture.finish_due_runs(&job, &progress).await? {
            ended if ended == u64::from(self.present) => Ok(()),
            ended => {
                Err(Error::Broken(format!("{} runs were created, but {ended} ended", self.present)))
            }
        }
    }
}

/// The order in which the three databases are measured in a round. In three rounds each database is first, second and
/// third once; in six rounds each database follows each other one equally often.
fn measuring_order(round: u32) -> [usize; 3] {
    let mut order = if (round / 3).is_multiple_of(2) { [0, 1, 2] } else { [2, 1, 0] };
    order.rotate_left(round as usize % 3);
    order
}

/// A database that is created next to another one for the benchmark.
struct TemporaryDatabase {
    fixture: BenchFixture,
    database: CreatedDatabase,
}

enum CreatedDatabase {
    /// An SQLite file; its `-wal` and `-shm` files are removed with it.
    File(PathBuf),
    /// A database on the server of this URL.
    Database { server: String, name: String },
}

impl TemporaryDatabase {
    async fn make(url: &str, what: &str) -> Result<Self, Error> {
        let name = format!("tasuki_bench_{what}_{}", std::process::id());
        let (base, parameters) = match url.split_once('?') {
            Some((base, parameters)) => (base, format!("?{parameters}")),
            None => (url, String::new()),
        };
        let (database, url) = match url.split_once("://").filter(|(scheme, _)| *scheme != "sqlite")
        {
            None => {
                let path = base.trim_start_matches("sqlite:").trim_start_matches("//");
                let file = PathBuf::from(path).with_file_name(name + ".db");
                let url = format!("sqlite:{}{parameters}", file.display());
                (CreatedDatabase::File(file), url)
            }
            Some(_) => {
                let (server, _) = base.rsplit_once('/').unwrap_or((base, ""));
                let created_url = format!("{server}/{name}{parameters}");
                let database = CreatedDatabase::Database { server: url.to_owned(), name };
                database.script("create").await?;
                (database, created_url)
            }
        };
        let opened = async {
            let fixture = BenchFixture::open(&url, 1).await?;
            fixture.prepare().await?;
            Ok(fixture)
        };
        match opened.await {
            Ok(fixture) => Ok(Self { fixture, database }),
            Err(error) => {
                let _ = database.remove().await;
                Err(error)
            }
        }
    }

    async fn remove(self) -> Result<(), Error> {
        self.fixture.close().await;
        self.database.remove().await
    }
}

impl CreatedDatabase {
    async fn remove(&self) -> Result<(), Error> {
        match self {
            Self::File(file) => {
                for end in ["", "-wal", "-shm"] {
                    let mut name = file.clone().into_os_string();
                    name.push(end);
                    let _ = std::fs::remove_file(name);
                }
                Ok(())
            }
            Self::Database { .. } => self.script("drop").await,
        }
    }

    async fn script(&self, verb: &str) -> Result<(), Error> {
        let Self::Database { server, name } = self else { return Ok(()) };
        let baseline = Baseline::open(server, 1).await?;
        let done = baseline.create_or_drop_database(verb, name).await;
        baseline.close().await;
        done
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::measuring_order;

    #[test]
    fn every_position_and_every_sequence_occurs_equally_often() {
        for (rounds, often) in [(3, 1), (6, 2)] {
            let (mut positions, mut pairs) = (HashMap::new(), HashMap::new());
            for order in (0..rounds).map(measuring_order) {
                for (position, index) in order.into_iter().enumerate() {
                    *positions.entry((position, index)).or_insert(0) += 1;
                }
                for pair in order.windows(2) {
                    *pairs.entry([pair[0], pair[1]]).or_insert(0) += 1;
                }
            }
            assert!(positions.len() == 9 && positions.values().all(|&times| times == often));
            if rounds == 6 {
                assert!(pairs.len() == 6 && pairs.values().all(|&times| times == 2), "{pairs:?}");
            }
        }
    }
}
