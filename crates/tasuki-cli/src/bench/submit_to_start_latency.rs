//! `tasuki bench latency`: measures how long an idle node takes to start a submitted task.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tasuki::{Client, HandlerRegistry};
use tasuki_core::work_spec::WorkAction;
use tasuki_store::{Error, Job};
use tokio::sync::mpsc;

use super::fixture::{self, BenchFixture, with_bench_fixture};
use super::progress::Progress;
use super::results::LatencySamples;
use crate::database_access::DatabaseOptions;
use crate::failure::Failure;

/// Handler name of the function that the tasks call.
const HANDLER: &str = "bench latency";
/// Number of tasks that are submitted before the measurement: connections are opened and statements prepared.
const WARMUP_TASKS: u32 = 10;
/// Maximum time to wait for the start of a task.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Measure how long an idle node takes to start a submitted task, compared to two plain commits.
///
/// Two durations are measured for each task: from the submit call to the start of the function, and from the
/// acknowledgement to the start of the function. By default the node runs in the submitting program, as with the
/// library: it creates and claims the task in one commit. With --apart the node only receives a notification, as for
/// tasks of other programs, and claims the task with a second commit. For comparison, a row is inserted and deleted with
/// one commit each.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench latency --database-url sqlite:bench.db
  tasuki bench latency --samples 1000 --database-url postgres://tasuki@localhost/bench")]
pub(crate) struct BenchLatencyCommand {
    #[command(flatten)]
    pub(crate) database: DatabaseOptions,

    /// Number of tasks, which are submitted one after the other
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    samples: u32,

    /// Pause between two tasks in milliseconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pause_ms: u32,

    /// Submit each task as if from a separate program: one commit submits the task, the node gets a notification, and a
    /// second commit claims the task
    #[arg(long)]
    apart: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BenchLatencyCommand {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        with_bench_fixture(&self.database, 1, async |fixture: &BenchFixture| {
            self.measure(fixture).await
        })
        .await
    }

    async fn measure(&self, fixture: &BenchFixture) -> Result<String, Error> {
        let job =
            fixture.create_job("latency", WorkAction::Function(HANDLER.to_owned()), None).await?;
        fixture.baseline.create_tables().await?;
        let (started, mut starts) = mpsc::unbounded_channel();
        let mut functions = HandlerRegistry::default();
        functions.register(HANDLER, move |_: Value, _| {
            // The receiver is closed if the benchmark has failed.
            let _ = started.send(Instant::now());
            async { Ok(()) }
        });
        let client = Client::new(fixture.store.clone());
        let node = match self.apart {
            true => Client::new(fixture.store.clone()).node_builder("bench"),
            false => client.node_builder("bench"),
        };
        let node = fixture::start_bench_node(node?.functions(functions)).await?;
        let samples = self.collect_samples(fixture, &job, &client, &mut starts).await;
        node.stop().await;
        Ok(self.render(fixture, &samples?))
    }

    async fn collect_samples(
        &self,
        fixture: &BenchFixture,
        job: &Job,
        client: &Client,
        starts: &mut mpsc::UnboundedReceiver<Instant>,
    ) -> Result<[LatencySamples; 3], Error> {
        let empty = |what| LatencySamples { what, micros: Vec::new() };
        let mut samples =
            ["call to start", "acknowledged to start", "two plain commits"].map(empty);
        let progress = Progress::new("latency", u64::from(self.samples));
        for number in 0..WARMUP_TASKS + self.samples {
            // A varying pause, so that the submissions do not run in phase with a periodic loop of the node.
            let pause = self.pause_ms + number * 7 % (self.pause_ms / 2 + 1);
            tokio::time::sleep(Duration::from_millis(u64::from(pause))).await;
            let called = Instant::now();
            let submitted = client.submit(job.name.as_str(), &json!({ "i": 1 })).await;
            let acknowledged = Instant::now();
            submitted.map_err(|error| Error::Broken(error.to_string()))?;
            let Ok(Some(start)) = tokio::time::timeout(START_TIMEOUT, starts.recv()).await else {
                return Err(Error::Broken(
                    "a task was submitted but did not start in time".to_owned(),
                ));
            };
            tokio::time::sleep(Duration::from_millis(u64::from(pause))).await;
            let baseline = fixture.baseline.two_commits(i64::from(number)).await?;
            if number >= WARMUP_TASKS {
                samples[0].micros.push(signed_micros(start, called));
                samples[1].micros.push(signed_micros(start, acknowledged));
                samples[2].micros.push(baseline.as_micros() as i64);
                progress.add(1);
            }
        }
        Ok(samples)
    }

    fn render(&self, fixture: &BenchFixture, samples: &[LatencySamples; 3]) -> String {
        let [from_call, from_ack, baseline] = samples;
        if self.json {
            let document = json!({
                "bench": "latency",
                "database": fixture.database_product(),
                "from_call": from_call.json(),
                "from_ack": from_ack.json(),
                "bare": baseline.json(),
                "ratio": from_call.ratio_json(baseline),
            });
            return format!("{document:#}\n");
        }
        let mut text = format!(
            "latency on {}: {} tasks, idle node\n",
            fixture.database_product(),
            self.samples
        );
        for times in samples {
            times.write_text(&mut text);
        }
        from_call.write_ratio(baseline, &mut text);
        text
    }
}

/// Microseconds from `from` to `at`. Negative if the function started before its submitter received the acknowledgement.
fn signed_micros(at: Instant, from: Instant) -> i64 {
    match at.checked_duration_since(from) {
        Some(later) => later.as_micros() as i64,
        None => -(from.duration_since(at).as_micros() as i64),
    }
}
