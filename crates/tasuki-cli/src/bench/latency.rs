//! `tasuki bench latency`: how long an idle node takes to start what was just submitted.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tasuki::{Client, Functions};
use tasuki_core::job_spec::What;
use tasuki_store::{Error, Job};
use tokio::sync::mpsc;

use super::bar::Bar;
use super::figures::Times;
use super::place::{self, Place, in_place};
use crate::database::Database;
use crate::output::Failure;

/// What the function is called.
const HANDLER: &str = "bench latency";
/// How many are submitted before any is measured: connections are opened, statements prepared.
const WARM: u32 = 10;
/// How long a start is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measure how long an idle node takes to start a task that was just submitted, beside two bare commits.
///
/// Two figures for each task: from the call that submits it to the start of its function, and from the
/// acknowledgement. The node is in the program that submits, as with the library: it carries the task from its first
/// commit on. With --apart it is told of it only, as it is of what other programs submit, and claims it with a second
/// commit. Beside each task a bare row is inserted and deleted, a commit each.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki bench latency --database-url sqlite:bench.db
  tasuki bench latency --samples 1000 --database-url postgres://tasuki@localhost/bench")]
pub(crate) struct BenchLatency {
    #[command(flatten)]
    pub(crate) database: Database,

    /// How many tasks, one after the other
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    samples: u32,

    /// How long to pause between two, in milliseconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pause_ms: u32,

    /// Submit without the node's knowing, as from another program
    #[arg(long)]
    apart: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BenchLatency {
    pub(crate) async fn run(&self) -> Result<String, Failure> {
        in_place(&self.database, 1, async |place: &Place| self.measure(place).await).await
    }

    async fn measure(&self, place: &Place) -> Result<String, Error> {
        let job = place.job("latency", What::Function(HANDLER.to_owned()), None).await?;
        place.bare.make().await?;
        let (started, mut starts) = mpsc::unbounded_channel();
        let mut functions = Functions::default();
        functions.add(HANDLER, move |_: Value, _| {
            // Nobody listens any more once the bench has given up.
            let _ = started.send(Instant::now());
            async { Ok(()) }
        });
        let client = Client::new(place.store.clone());
        let node = match self.apart {
            true => Client::new(place.store.clone()).node("bench"),
            false => client.node("bench"),
        };
        let node = place::start(node?.functions(functions)).await?;
        let samples = self.sample(place, &job, &client, &mut starts).await;
        node.stop().await;
        Ok(self.told(place, &samples?))
    }

    async fn sample(
        &self,
        place: &Place,
        job: &Job,
        client: &Client,
        starts: &mut mpsc::UnboundedReceiver<Instant>,
    ) -> Result<[Times; 3], Error> {
        let times = |what| Times { what, micros: Vec::new() };
        let mut found = ["call to start", "acknowledged to start", "two bare commits"].map(times);
        let bar = Bar::new("latency", u64::from(self.samples));
        for number in 0..WARM + self.samples {
            // Not in step with anything that has a pace of its own.
            let pause = self.pause_ms + number * 7 % (self.pause_ms / 2 + 1);
            tokio::time::sleep(Duration::from_millis(u64::from(pause))).await;
            let called = Instant::now();
            let submitted = client.submit(job.name.as_str(), &json!({ "i": 1 })).await;
            let acknowledged = Instant::now();
            submitted.map_err(|error| Error::Broken(error.to_string()))?;
            let Ok(Some(start)) = tokio::time::timeout(PATIENCE, starts.recv()).await else {
                return Err(Error::Broken("a task was submitted and not started".to_owned()));
            };
            tokio::time::sleep(Duration::from_millis(u64::from(pause))).await;
            let bare = place.bare.two_commits(i64::from(number)).await?;
            if number >= WARM {
                found[0].micros.push(signed_micros(start, called));
                found[1].micros.push(signed_micros(start, acknowledged));
                found[2].micros.push(bare.as_micros() as i64);
                bar.add(1);
            }
        }
        Ok(found)
    }

    fn told(&self, place: &Place, found: &[Times; 3]) -> String {
        let [from_call, from_ack, bare] = found;
        if self.json {
            let told = json!({
                "bench": "latency",
                "database": place.database(),
                "from_call": from_call.json(),
                "from_ack": from_ack.json(),
                "bare": bare.json(),
                "ratio": from_call.ratio_json(bare),
            });
            return format!("{told:#}\n");
        }
        let mut text =
            format!("latency on {}: {} tasks, idle node\n", place.database(), self.samples);
        for times in found {
            times.write(&mut text);
        }
        from_call.write_ratio(bare, &mut text);
        text
    }
}

/// A function may start before whoever submitted it has heard that it is durable.
fn signed_micros(at: Instant, from: Instant) -> i64 {
    match at.checked_duration_since(from) {
        Some(later) => later.as_micros() as i64,
        None => -(from.duration_since(at).as_micros() as i64),
    }
}
