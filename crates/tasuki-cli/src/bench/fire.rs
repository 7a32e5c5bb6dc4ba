//! `tasuki bench fire`: how late runs start that were planned for an instant.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tasuki::node::Node;
use tasuki::{Functions, Wake};
use tasuki_core::misfire::Misfire;
use tasuki_core::schedule::{DstChoice, ScheduleKind};
use tasuki_core::job_spec::{What, Work};
use tasuki_core::{JobId, RunState, Schedule};
use tasuki_store::{Writer, Error, Job, NewRun, Run, RunFilter, Store, Trigger};

use super::bar::Bar;
use super::figures::quantile;
use super::place;
use crate::database::Database;
use crate::output::Failure;

/// What the function is called.
const HANDLER: &str = "bench fire";
/// How long after everything was made the first is due: all of it is assigned by then.
const LEAD: SignedDuration = SignedDuration::from_secs(3);
/// How many commands at once: more than are due.
const SLOTS: u32 = 1_000;
/// How long stragglers are waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measure how late planned runs start, with a node of its own on a database made for it.
///
/// Two figures for each run: from its planned instant to the write that makes it RUNNING, by the database's
/// clock; and to its start: a function was called, or a process read the clock and told. The second has the
/// commit in it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench fire --database-url sqlite:bench.db
  tasuki bench fire --rate 50 --seconds 30 --kind command --database-url postgres://tasuki@localhost/bench
  tasuki bench fire --rate 1000 --whole-seconds --database-url sqlite:bench.db")]
pub(crate) struct BenchFire {
    #[command(flatten)]
    pub(crate) database: Database,

    /// How many runs a second
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,

    /// For how long
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,

    /// What runs
    #[arg(long, value_enum, default_value_t = Kind::Function)]
    kind: Kind,

    /// Fire all of a second's runs at the whole second, by that many schedules, instead of evenly
    #[arg(long)]
    whole_seconds: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Function,
    Command,
}

/// How late each run started, in microseconds.
#[derive(Default)]
struct Lateness {
    running: Vec<i64>,
    start: Vec<i64>,
}

type Calls = Arc<Mutex<Vec<i64>>>;

impl BenchFire {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        let store = Store::open(self.database.url(), 8)
            .await
            .map_err(|error| self.database.unopened(&error))?;
        let found = self.measure(&store).await.map_err(|error| self.database.failed(&error));
        store.close().await;
        let found = found?;
        let planned = u64::from(self.rate) * u64::from(self.seconds);
        if found.running.len() as u64 != planned {
            let message = format!("{planned} runs were planned, {} started", found.running.len());
            return Err(Failure::refused(message).after(self.told(&found)));
        }
        Ok(self.told(&found))
    }

    async fn measure(&self, store: &Store) -> Result<Lateness, Error> {
        store.migrate().await?;
        place::refuse_workers(store).await?;
        let calls = Calls::default();
        let wake = Wake::default();
        let (node, folder) = self.node(store, &wake, &calls).await?;
        let begins = whole_second(store.clock().await? + LEAD)?;
        let jobs = self.plan(store, begins).await?;
        wake.all();
        let runs = self.wait(store, &jobs, begins).await;
        for job in &jobs {
            if let Some(job) = store.job_by_id(job.id).await? {
                let _ = store.delete_job("bench", job.seen()).await?;
            }
        }
        node.stop().await;
        let runs = runs?;
        let mut found = Lateness {
            running: runs
                .iter()
                .filter_map(|run| since(run.scheduled_for, run.started_at))
                .collect(),
            start: std::mem::take(&mut *calls.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        if self.kind == Kind::Command {
            found.start = self.printed(store, &runs).await?;
        }
        if let Some(folder) = folder {
            let _ = std::fs::remove_dir_all(folder);
        }
        Ok(found)
    }

    async fn node(
        &self,
        store: &Store,
        wake: &Wake,
        calls: &Calls,
    ) -> Result<(Node, Option<PathBuf>), Error> {
        let mut functions = Functions::default();
        let calls = Arc::clone(calls);
        functions.add(HANDLER, move |(), call| {
            let late = since(call.scheduled_for(), Some(Timestamp::now())).unwrap_or_default();
            calls.lock().unwrap_or_else(PoisonError::into_inner).push(late);
            async { Ok(()) }
        });
        let builder = place::builder(store, Some(SLOTS), wake)?.functions(functions);
        if self.kind == Kind::Function {
            return Ok((place::start(builder).await?, None));
        }
        let (builder, folder) = place::with_commands(builder)?;
        Ok((place::start(builder).await?, Some(folder)))
    }

    /// Everything that is to fire.
    async fn plan(&self, store: &Store, begins: Timestamp) -> Result<Vec<Job>, Error> {
        if !self.whole_seconds {
            let job = self.job(store, 0, Trigger::Task, None).await?;
            let gap = 1_000_000 / i64::from(self.rate);
            let at = |n: u32| begins + SignedDuration::from_micros(i64::from(n) * gap);
            let run = |n| NewRun { scheduled_for: Some(at(n)), ..NewRun::task(&job.newest) };
            let runs: Vec<NewRun<'_>> = (0..self.rate * self.seconds).map(run).collect();
            for some in runs.chunks(1_000) {
                store.create(Writer::Api, some).await?;
            }
            return Ok(vec![job]);
        }
        let schedule = Schedule::parse(ScheduleKind::Every, "1s", "UTC", DstChoice::default())?;
        let mut jobs = Vec::new();
        for number in 0..self.rate {
            let misfire = Some(Misfire::EveryWithin(Duration::from_secs(3_600)));
            let trigger = Trigger::Time { schedule: schedule.clone(), misfire };
            jobs.push(self.job(store, number, trigger, Some(begins)).await?);
        }
        Ok(jobs)
    }

    async fn job(
        &self,
        store: &Store,
        number: u32,
        trigger: Trigger,
        next_fire: Option<Timestamp>,
    ) -> Result<Job, Error> {
        let work = Work::new(match self.kind {
            Kind::Function => What::Function(HANDLER.to_owned()),
            // The clock as the process itself reads it, first thing.
            Kind::Command => What::Command(vec!["date".to_owned(), "+%s%6N".to_owned()]),
        });
        let name = format!("bench fire {number} {}", Timestamp::now().as_microsecond());
        place::job(store, &name, place::spec(&work), trigger, next_fire).await
    }

    /// Waits until all that was planned has ended.
    async fn wait(
        &self,
        store: &Store,
        jobs: &[Job],
        begins: Timestamp,
    ) -> Result<Vec<Run>, Error> {
        let lasts = SignedDuration::from_secs(i64::from(self.seconds));
        let ends = begins + lasts - SignedDuration::from_millis(1);
        let bar = Bar::new("fire", u64::from(self.seconds));
        loop {
            let clock = store.clock().await?;
            if clock > ends {
                break;
            }
            bar.at(clock.duration_since(begins).as_secs().max(0) as u64);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        drop(bar);
        let waited = std::time::Instant::now();
        loop {
            let mut runs = Vec::new();
            for job in jobs {
                runs.extend(all(store, job.id, begins, ends).await?);
            }
            let open = runs.iter().filter(|run| !run.state.is_ended()).count();
            if open == 0 || waited.elapsed() > PATIENCE {
                runs.retain(|run| run.state == RunState::Succeeded);
                return Ok(runs);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// What the processes printed: when they read the clock.
    async fn printed(&self, store: &Store, runs: &[Run]) -> Result<Vec<i64>, Error> {
        let mut late = Vec::with_capacity(runs.len());
        for run in runs {
            let Some(page) = store.read_log(run.id, run.counters.attempt_no, 0, 1).await? else {
                continue;
            };
            let line = page.lines.first().and_then(|line| line.text.parse::<i64>().ok());
            late.extend(line.map(|at| at - run.scheduled_for.as_microsecond()));
        }
        Ok(late)
    }

    fn told(&self, found: &Lateness) -> String {
        let rows = [("to RUNNING", &found.running), ("to start", &found.start)];
        if self.json {
            let rows: Vec<Value> = rows.iter().map(|(what, late)| as_json(what, late)).collect();
            let told = json!({ "rate": self.rate, "seconds": self.seconds, "lateness": rows });
            return format!("{told:#}\n");
        }
        let mut text = format!(
            "{} runs, {} a second{}\n",
            found.running.len(),
            self.rate,
            if self.whole_seconds { ", all at the whole second" } else { "" }
        );
        for (what, late) in rows {
            let [p50, p99, max] = figures(late).map(|micros| micros as f64 / 1_000.0);
            writeln!(text, "{what:<12} p50 {p50:>8.1} ms  p99 {p99:>8.1} ms  max {max:>8.1} ms")
                .expect("a string takes all");
        }
        text
    }
}

fn as_json(what: &str, late: &[i64]) -> Value {
    let [p50, p99, max] = figures(late);
    json!({ "what": what, "runs": late.len(), "p50_us": p50, "p99_us": p99, "max_us": max })
}

fn figures(late: &[i64]) -> [i64; 3] {
    [0.5, 0.99, 1.0].map(|share| quantile(late, share))
}

fn since(planned: Timestamp, at: Option<Timestamp>) -> Option<i64> {
    Some(at?.as_microsecond() - planned.as_microsecond())
}

fn whole_second(at: Timestamp) -> Result<Timestamp, Error> {
    Timestamp::from_second(at.as_second()).map_err(|error| Error::Broken(error.to_string()))
}

/// All runs of a job that were planned for a stretch of time.
async fn all(
    store: &Store,
    job: JobId,
    since: Timestamp,
    until: Timestamp,
) -> Result<Vec<Run>, Error> {
    let filter = RunFilter {
        job: Some(job),
        since: Some(since),
        until: Some(until),
        ..RunFilter::default()
    };
    let (mut runs, mut cursor) = (Vec::new(), None);
    loop {
        let page = store.runs(&filter, cursor.as_ref(), 200).await?;
        runs.extend(page.runs);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(runs);
        }
    }
}
