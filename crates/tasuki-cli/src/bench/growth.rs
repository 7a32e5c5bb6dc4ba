//! `tasuki bench growth`: whether a node works off what waits as fast beside much that does not concern it.

use std::path::PathBuf;

use clap::Args;
use jiff::SignedDuration;
use tasuki_core::job_spec::What;
use tasuki_store::{Error, PrunePlace, Store};

use super::bar::Bar;
use super::bare::Bare;
use super::drain::drain;
use super::figures::{Pair, Report};
use super::place::{Place, others_at_work};
use crate::database::Database;
use crate::output::Failure;

/// As a node has them by default.
const SLOTS: u32 = 256;

/// What the function is called that made the history, and the one that lies ahead.
const HANDLER: &str = "bench growth";
/// When what lies ahead is due: not while anybody looks.
const AHEAD: SignedDuration = SignedDuration::from_hours(24);

/// Measure how fast a node works off tasks where a million runs lie ahead, or a million have ended, over where none do.
///
/// Three databases of its own, made beside the one that is named and dropped in the end: one empty, one full of
/// runs that are due tomorrow, one full of history. A node drains as many tasks in each, in turns, and what it drained is
/// taken away again. A first round is not counted. The user must be allowed to make databases.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench growth --database-url sqlite:bench.db
  tasuki bench growth --present 100000 --rounds 6 --database-url postgres://tasuki@localhost/bench")]
pub(crate) struct BenchGrowth {
    #[command(flatten)]
    pub(crate) database: Database,

    /// How many runs lie ahead, and how many have ended
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    present: u32,

    /// How many tasks are drained each time
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    tasks: u32,

    /// How often each is measured, in turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BenchGrowth {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        let failed = |error: Error| self.database.failed(&error);
        let url = self.database.url();
        match Store::reach(url).await {
            Err(Error::NoFile { .. }) => {}
            answer => answer.map_err(|error| self.database.unopened(&error))?,
        }
        let mut made = Vec::new();
        let measured = self.measure(url, &mut made).await;
        // What was made goes, whatever came of it.
        let mut gone = Ok(());
        for beside in made {
            gone = gone.and(beside.remove().await);
        }
        let told = measured.map_err(|error| {
            failed(error).hint("it makes databases beside the one that is named: may this user?")
        })?;
        gone.map_err(failed)?;
        Ok(told)
    }

    async fn measure(&self, url: &str, made: &mut Vec<Beside>) -> Result<String, Error> {
        for name in ["empty", "ahead", "ended"] {
            let beside = Beside::make(url, name).await?;
            made.push(beside);
        }
        let [empty, ahead, ended] = &made[..] else { return Err(others_at_work()) };
        let [empty, ahead, ended] = [&empty.place, &ahead.place, &ended.place];
        self.fill_ahead(ahead).await?;
        self.fill_ended(ended).await?;
        let of = |what, limit| Pair::new(what, limit, "runs/s");
        let beside = "drain where there are none";
        let mut with_ahead = of("drain beside runs that lie ahead", beside);
        let mut with_ended = of("drain beside runs that have ended", beside);
        let bar = Bar::new("growth", 3 * (1 + u64::from(self.rounds)));
        // Not counted, as in `drain`.
        for place in [empty, ahead, ended] {
            self.drain(place).await?;
            bar.add(1);
        }
        for round in 0..self.rounds {
            let mut rates = [0.0; 3];
            for which in order(round) {
                rates[which] = self.drain([empty, ahead, ended][which]).await?;
                bar.add(1);
            }
            for (pair, ours) in [(&mut with_ahead, rates[1]), (&mut with_ended, rates[2])] {
                pair.ours.push(ours);
                pair.bare.push(rates[0]);
            }
        }
        let report = Report {
            bench: "growth",
            database: empty.database(),
            heading: format!(
                "{} runs present, {} tasks, {} rounds",
                self.present, self.tasks, self.rounds
            ),
            pairs: vec![with_ahead, with_ended],
        };
        Ok(report.told(self.json))
    }

    /// Drains in a place, and leaves it as it was: what was drained is no history of the next round.
    async fn drain(&self, place: &Place) -> Result<f64, Error> {
        let from = PrunePlace::planned_from(place.store.clock().await?);
        let rate = drain(place, self.tasks, SLOTS).await?;
        place.prune(from, &Bar::new("clean up", u64::from(self.tasks))).await?;
        place.store.tidy().await?;
        Ok(rate)
    }

    async fn fill_ahead(&self, place: &Place) -> Result<(), Error> {
        let job = place.job("growth", What::Function(HANDLER.to_owned()), None).await?;
        let bar = Bar::new("ahead", u64::from(self.present));
        let at = place.store.clock().await? + AHEAD;
        place.submit(&job, self.present, Some(at), &bar).await
    }

    /// Runs that were made, claimed and finished like any other.
    async fn fill_ended(&self, place: &Place) -> Result<(), Error> {
        let job = place.job("growth", What::Function(HANDLER.to_owned()), None).await?;
        let bar = Bar::new("ended", 2 * u64::from(self.present));
        place.submit(&job, self.present, None, &bar).await?;
        match place.end_all(&job, &bar).await? {
            ended if ended == u64::from(self.present) => Ok(()),
            ended => Err(Error::Broken(format!("{} runs were made, {ended} ended", self.present))),
        }
    }
}

/// Who is first, second and third in a round: in three rounds each has each place once, in six each comes after each other
/// as often.
fn order(round: u32) -> [usize; 3] {
    let mut order = if (round / 3).is_multiple_of(2) { [0, 1, 2] } else { [2, 1, 0] };
    order.rotate_left(round as usize % 3);
    order
}

/// A database made beside another.
struct Beside {
    place: Place,
    made: Made,
}

enum Made {
    /// A file, and what SQLite keeps beside it.
    File(PathBuf),
    /// A database on the server that this URL names.
    Database { server: String, name: String },
}

impl Beside {
    async fn make(url: &str, what: &str) -> Result<Self, Error> {
        let name = format!("tasuki_bench_{what}_{}", std::process::id());
        let (base, parameters) = match url.split_once('?') {
            Some((base, parameters)) => (base, format!("?{parameters}")),
            None => (url, String::new()),
        };
        let (made, url) = match url.split_once("://").filter(|(scheme, _)| *scheme != "sqlite") {
            None => {
                let path = base.trim_start_matches("sqlite:").trim_start_matches("//");
                let file = PathBuf::from(path).with_file_name(name + ".db");
                let url = format!("sqlite:{}{parameters}", file.display());
                (Made::File(file), url)
            }
            Some(_) => {
                let (server, _) = base.rsplit_once('/').unwrap_or((base, ""));
                let beside = format!("{server}/{name}{parameters}");
                let made = Made::Database { server: url.to_owned(), name };
                made.script("create").await?;
                (made, beside)
            }
        };
        let opened = async {
            let place = Place::open(&url, 1).await?;
            place.is_ours().await?;
            Ok(place)
        };
        match opened.await {
            Ok(place) => Ok(Self { place, made }),
            Err(error) => {
                let _ = made.remove().await;
                Err(error)
            }
        }
    }

    async fn remove(self) -> Result<(), Error> {
        self.place.close().await;
        self.made.remove().await
    }
}

impl Made {
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
        let bare = Bare::open(server, 1).await?;
        let done = bare.database(verb, name).await;
        bare.close().await;
        done
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::order;

    #[test]
    fn each_is_at_each_place_and_behind_each_other_as_often() {
        for (rounds, often) in [(3, 1), (6, 2)] {
            let (mut places, mut pairs) = (HashMap::new(), HashMap::new());
            for order in (0..rounds).map(order) {
                for (place, which) in order.into_iter().enumerate() {
                    *places.entry((place, which)).or_insert(0) += 1;
                }
                for pair in order.windows(2) {
                    *pairs.entry([pair[0], pair[1]]).or_insert(0) += 1;
                }
            }
            assert!(places.len() == 9 && places.values().all(|&times| times == often));
            if rounds == 6 {
                assert!(pairs.len() == 6 && pairs.values().all(|&times| times == 2), "{pairs:?}");
            }
        }
    }
}
