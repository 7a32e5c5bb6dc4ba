//! `tasuki bench fire`: measures how late runs start after their scheduled time.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tasuki::node::Node;
use tasuki::{HandlerRegistry, Wakeups};
use tasuki_core::plan_scheduled_runs::MisfirePolicy;
use tasuki_core::schedule::{DstRuleOverrides, ScheduleKind};
use tasuki_core::work_spec::{WorkAction, WorkSpec};
use tasuki_core::{JobId, RunState, Schedule};
use tasuki_store::{Error, Job, NewRun, Run, RunFilter, Store, Trigger, Writer};

use super::fixture;
use super::progress::Progress;
use super::results::quantile;
use crate::database_access::DatabaseOptions;
use crate::failure::Failure;

/// Handler name of the function that the runs call.
const HANDLER: &str = "bench fire";
/// Time between creation of the runs and the first scheduled time; all runs are assigned by then.
const LEAD_TIME: SignedDuration = SignedDuration::from_secs(3);
/// Number of concurrent commands; more than are due at the same time.
const SLOTS: u32 = 1_000;
/// Maximum time to wait for late runs after the last scheduled time.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Measure how late scheduled runs start. Starts its own node; needs a database of its own.
///
/// Two delays are measured for each run: from its scheduled time to the statement that sets it to RUNNING, by the clock
/// of the database; and to its actual start, when the function is called or the process prints its clock. The second
/// delay includes the commit.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench fire --database-url sqlite:bench.db
  tasuki bench fire --rate 50 --seconds 30 --kind command --database-url postgres://tasuki@localhost/bench
  tasuki bench fire --rate 1000 --whole-seconds --database-url sqlite:bench.db")]
pub(crate) struct BenchFireCommand {
    #[command(flatten)]
    pub(crate) database: DatabaseOptions,

    /// Number of runs per second
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,

    /// Duration of the measurement in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,

    /// Kind of the job
    #[arg(long, value_enum, default_value_t = Kind::Function)]
    kind: Kind,

    /// In each second, plan all runs for the same moment, the start of the second; each run belongs to a different job.
    /// Without this option, the runs are spread evenly over the second
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

/// The start delays of all runs, in microseconds: until RUNNING, and until the actual start.
#[derive(Default)]
struct StartDelays {
    running: Vec<i64>,
    start: Vec<i64>,
}

type CallDelays = Arc<Mutex<Vec<i64>>>;

impl BenchFireCommand {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        let store = Store::open(self.database.url(), 8)
            .await
            .map_err(|error| self.database.open_failure(&error))?;
        let delays =
            self.measure(&store).await.map_err(|error| self.database.operation_failure(&error));
        store.close().await;
        let delays = delays?;
        let planned = u64::from(self.rate) * u64::from(self.seconds);
        if delays.running.len() as u64 != planned {
            let message =
                format!("{planned} runs were scheduled, but {} succeeded", delays.running.len());
            return Err(Failure::new(message).with_stdout(self.render(&delays)));
        }
        Ok(self.render(&delays))
    }

    async fn measure(&self, store: &Store) -> Result<StartDelays, Error> {
        store.migrate().await?;
        fixture::refuse_if_in_use(store).await?;
        let calls = CallDelays::default();
        let wake = Wakeups::default();
        let (node, folder) = self.start_node(store, &wake, &calls).await?;
        let first_at = whole_second(store.read_clock().await? + LEAD_TIME)?;
        let jobs = self.create_planned_runs(store, first_at).await?;
        wake.wake_all();
        let runs = self.wait_until_ended(store, &jobs, first_at).await;
        for job in &jobs {
            if let Some(job) = store.find_job_by_id(job.id).await? {
                let _ = store.delete_job("bench", job.expected_version()).await?;
            }
        }
        node.stop().await;
        let runs = runs?;
        let mut delays = StartDelays {
            running: runs
                .iter()
                .filter_map(|run| micros_between(run.scheduled_for, run.started_at))
                .collect(),
            start: std::mem::take(&mut *calls.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        if self.kind == Kind::Command {
            delays.start = self.read_printed_delays(store, &runs).await?;
        }
        if let Some(folder) = folder {
            let _ = std::fs::remove_dir_all(folder);
        }
        Ok(delays)
    }

    async fn start_node(
        &self,
        store: &Store,
        wake: &Wakeups,
        calls: &CallDelays,
    ) -> Result<(Node, Option<PathBuf>), Error> {
        let mut functions = HandlerRegistry::default();
        let calls = Arc::clone(calls);
        functions.register(HANDLER, move |(), call| {
            let delay =
                micros_between(call.scheduled_for(), Some(Timestamp::now())).unwrap_or_default();
            calls.lock().unwrap_or_else(PoisonError::into_inner).push(delay);
            async { Ok(()) }
        });
        let builder = fixture::bench_node_builder(store, Some(SLOTS), wake)?.functions(functions);
        if self.kind == Kind::Function {
            return Ok((fixture::start_bench_node(builder).await?, None));
        }
        let (builder, folder) = fixture::enable_command_execution(builder)?;
        Ok((fixture::start_bench_node(builder).await?, Some(folder)))
    }

    /// Creates the jobs and runs that will fire.
    async fn create_planned_runs(
        &self,
        store: &Store,
        first_at: Timestamp,
    ) -> Result<Vec<Job>, Error> {
        if !self.whole_seconds {
            let job = self.create_job(store, 0, Trigger::Task, None).await?;
            let gap = 1_000_000 / i64::from(self.rate);
            let at = |n: u32| first_at + SignedDuration::from_micros(i64::from(n) * gap);
            let run = |n| NewRun { scheduled_for: Some(at(n)), ..NewRun::task(&job.newest) };
            let runs: Vec<NewRun<'_>> = (0..self.rate * self.seconds).map(run).collect();
            for batch in runs.chunks(1_000) {
                store.create_or_find_runs(Writer::Api, batch).await?;
            }
            return Ok(vec![job]);
        }
        let schedule =
            Schedule::parse(ScheduleKind::Every, "1s", "UTC", DstRuleOverrides::default())?;
        let mut jobs = Vec::new();
        for number in 0..self.rate {
            let misfire = Some(MisfirePolicy::EveryWithin(Duration::from_secs(3_600)));
            let trigger = Trigger::Time { schedule: schedule.clone(), misfire };
            jobs.push(self.create_job(store, number, trigger, Some(first_at)).await?);
        }
        Ok(jobs)
    }

    async fn create_job(
        &self,
        store: &Store,
        number: u32,
        trigger: Trigger,
        next_fire: Option<Timestamp>,
    ) -> Result<Job, Error> {
        let work = WorkSpec::new(match self.kind {
            Kind::Function => WorkAction::Function(HANDLER.to_owned()),
            // The process prints its own clock immediately.
            Kind::Command => WorkAction::Command(vec!["date".to_owned(), "+%s%6N".to_owned()]),
        });
        let name = format!("bench fire {number} {}", Timestamp::now().as_microsecond());
        fixture::create_bench_job(
            store,
            &name,
            fixture::single_attempt_spec(&work),
            trigger,
            next_fire,
        )
        .await
    }

    /// Waits until all scheduled runs have ended, and returns those that succeeded.
    async fn wait_until_ended(
        &self,
        store: &Store,
        jobs: &[Job],
        first_at: Timestamp,
    ) -> Result<Vec<Run>, Error> {
        let lasts = SignedDuration::from_secs(i64::from(self.seconds));
        let last_at = first_at + lasts - SignedDuration::from_millis(1);
        let progress = Progress::new("fire", u64::from(self.seconds));
        loop {
            let clock = store.read_clock().await?;
            if clock > last_at {
                break;
            }
            progress.set(clock.duration_since(first_at).as_secs().max(0) as u64);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        drop(progress);
        let waited = std::time::Instant::now();
        loop {
            let mut runs = Vec::new();
            for job in jobs {
                runs.extend(list_runs(store, job.id, first_at, last_at).await?);
            }
            let open = runs.iter().filter(|run| !run.state.is_ended()).count();
            if open == 0 || waited.elapsed() > STALL_TIMEOUT {
                runs.retain(|run| run.state == RunState::Succeeded);
                return Ok(runs);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The start delays by the clock values that the processes printed.
    async fn read_printed_delays(&self, store: &Store, runs: &[Run]) -> Result<Vec<i64>, Error> {
        let mut delay = Vec::with_capacity(runs.len());
        for run in runs {
            let Some(page) = store.read_log(run.id, run.counters.attempt_no, 0, 1).await? else {
                continue;
            };
            let line = page.lines.first().and_then(|line| line.text.parse::<i64>().ok());
            delay.extend(line.map(|at| at - run.scheduled_for.as_microsecond()));
        }
        Ok(delay)
    }

    fn render(&self, delays: &StartDelays) -> String {
        let rows = [("to RUNNING", &delays.running), ("to start", &delays.start)];
        if self.json {
            let rows: Vec<Value> = rows.iter().map(|(what, delay)| as_json(what, delay)).collect();
            let document = json!({ "rate": self.rate, "seconds": self.seconds, "lateness": rows });
            return format!("{document:#}\n");
        }
        let mut text = format!(
            "{} runs, {} per second{}\n",
            delays.running.len(),
            self.rate,
            if self.whole_seconds { ", all at the full second" } else { "" }
        );
        for (what, delay) in rows {
            let [p50, p99, max] = delay_quantiles(delay).map(|micros| micros as f64 / 1_000.0);
            writeln!(text, "{what:<12} p50 {p50:>8.1} ms  p99 {p99:>8.1} ms  max {max:>8.1} ms")
                .expect("writing to a string does not fail");
        }
        text
    }
}

fn as_json(what: &str, delay: &[i64]) -> Value {
    let [p50, p99, max] = delay_quantiles(delay);
    json!({ "what": what, "runs": delay.len(), "p50_us": p50, "p99_us": p99, "max_us": max })
}

fn delay_quantiles(delay: &[i64]) -> [i64; 3] {
    [0.5, 0.99, 1.0].map(|share| quantile(delay, share))
}

fn micros_between(planned: Timestamp, at: Option<Timestamp>) -> Option<i64> {
    Some(at?.as_microsecond() - planned.as_microsecond())
}

fn whole_second(at: Timestamp) -> Result<Timestamp, Error> {
    Timestamp::from_second(at.as_second()).map_err(|error| Error::Broken(error.to_string()))
}

/// All runs of a job that are scheduled within a period.
async fn list_runs(
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
        let page = store.list_runs(&filter, cursor.as_ref(), 200).await?;
        runs.extend(page.runs);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(runs);
        }
    }
}
