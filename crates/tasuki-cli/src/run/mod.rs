//! `tasuki run`: what became of a job each time, and the verbs that move a run.

mod follow;
mod logs;
mod sse;
mod view;
mod wait;

use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tasuki_core::RunState;

pub(crate) use wait::Waiting;

use crate::client::Client;
use crate::output::Failure;
use crate::pages;
use crate::server::Server;
use crate::typed::{self, From};
use crate::view::Look;

/// So much two clocks that are kept right may differ.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(2);

/// One run of a job.
#[derive(Args)]
pub(crate) struct Run {
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    List(List),
    Show(Show),
    Logs(logs::Logs),
    Cancel(Cancel),
    Retry(Retry),
    Rerun(Rerun),
    Wait(wait::Wait),
    Explain(Explain),
}

/// List runs, newest first. What is planned for later is left out unless it is asked for
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run list
  tasuki run list --planned
  tasuki run list --job report --state FAILED,TIMED_OUT --since 24h
  tasuki run list --state RUNNING --json")]
struct List {
    /// Only those of this job
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Only those in these states: PENDING, ASSIGNED, RUNNING, ORPHANED, RETRY_WAIT, SUCCEEDED,
    /// FAILED, TIMED_OUT, CANCELED, SKIPPED, EXPIRED
    #[arg(long, value_name = "STATES", value_delimiter = ',')]
    state: Vec<String>,
    /// Only those made by: time, event, task, manual, rerun
    #[arg(long, value_name = "ORIGIN")]
    origin: Option<String>,
    /// Only those for this scope, such as tenant/42
    #[arg(long, value_name = "KIND/ID")]
    scope: Option<String>,
    /// Only those from here on: an instant, or a duration ago
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Only those up to here: an instant, or a duration ago
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
    /// Also those that are planned for later; --state, --until and a --since ahead show them too
    #[arg(long)]
    planned: bool,
    /// At most so many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Go on where the list before ended
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

/// Show a run with all its attempts and who moved it
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run show 7
  tasuki run show 7 --json | jq .executions")]
struct Show {
    /// The run's number
    id: i64,
}

/// Cancel a run. One that is running is asked to stop, and killed if it does not
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run cancel 7
  tasuki run cancel 7 --reason 'wrong day'")]
struct Cancel {
    /// The run's number
    id: i64,
    /// Why, for whoever wonders
    #[arg(long)]
    reason: Option<String>,
}

/// Give a run that ended badly another try
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run retry 7
  tasuki run retry 7 --reason 'the disk has room again'")]
struct Retry {
    /// The run's number
    id: i64,
    /// Why, for whoever wonders
    #[arg(long)]
    reason: Option<String>,
}

/// Run the same again as a new run
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run rerun 7
  tasuki run rerun 7 --follow")]
struct Rerun {
    /// The run's number
    id: i64,
    #[command(flatten)]
    waiting: Waiting,
}

/// Tell in words why a run is where it is and what happens next
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run explain 7")]
struct Explain {
    /// The run's number
    id: i64,
}

impl Run {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.server.ask(now, async |client, look| self.verb.run(client, look, now).await)
    }
}

impl Verb {
    async fn run(&self, client: &Client, look: &Look, now: Timestamp) -> Result<String, Failure> {
        match self {
            Self::List(list) => list.run(client, look, now).await,
            Self::Show(Show { id }) => {
                let run = client.get(address(*id)).send().await?.body;
                Ok(look.answer(&run, view::one))
            }
            Self::Logs(logs) => logs.run(client, look).await,
            Self::Cancel(Cancel { id, reason }) => {
                let answer = act(client, *id, "cancel", reason.as_deref()).await?;
                Ok(look.answer(&answer, |_, answer| match answer["done"] == true {
                    true => view::stands(&answer["run"]),
                    false => format!("run {id} was asked to stop; tasuki run wait {id} waits\n"),
                }))
            }
            Self::Retry(Retry { id, reason }) => {
                let answer = act(client, *id, "retry", reason.as_deref()).await?;
                Ok(look.answer(&answer, |_, answer| view::stands(&answer["run"])))
            }
            Self::Rerun(Rerun { id, waiting }) => {
                waiting.check()?;
                let answer = client.post(format!("{}/rerun", address(*id))).send().await?;
                waiting.after(client, look, answer).await
            }
            Self::Wait(wait) => wait.run(client, look).await,
            Self::Explain(Explain { id }) => {
                let answer = client.get(format!("{}/explain", address(*id))).send().await?.body;
                Ok(look.answer(&answer, view::explained))
            }
        }
    }
}

impl List {
    async fn run(&self, client: &Client, look: &Look, now: Timestamp) -> Result<String, Failure> {
        let since = self.since.as_deref();
        let since =
            since.map(|typed| typed::instant("--since", typed, From::Ago, now)).transpose()?;
        let until = typed::instant_if("--until", self.until.as_deref(), From::Ago, now)?;
        let (until, none) = match (until, self.lately(since, now)) {
            (None, Some(lately)) => {
                (Some(lately), "there are no such runs yet; --planned shows what lies ahead")
            }
            (until, _) => (until, "there are no such runs"),
        };
        let states = Some(self.state.join(",")).filter(|states| !states.is_empty());
        let call = |cursor: Option<String>, limit: usize| {
            client
                .get("/runs")
                .query_if("job", self.job.as_ref())
                .query_if("state", states.as_ref())
                .query_if("origin", self.origin.as_ref())
                .query_if("scope", self.scope.as_ref())
                .query_if("since", since.as_ref())
                .query_if("until", until.as_ref())
                .query_if("cursor", cursor.or_else(|| self.cursor.clone()))
                .query("limit", &limit)
        };
        let runs = pages::collect(self.limit, call).await?;
        Ok(look.answer(&runs, |look, runs| view::many(look, runs, none)))
    }

    /// Until when, unless something else is asked for: what lies ahead would stand before whatever just
    /// happened. The database's clock may be a little ahead of ours, and what was asked for just now
    /// is not to be missed.
    fn lately(&self, since: Option<Timestamp>, now: Timestamp) -> Option<String> {
        let until = now.saturating_add(CLOCKS_DIFFER).unwrap_or(now);
        let ahead = since.is_some_and(|since| since >= until);
        let hidden = !self.planned && self.state.is_empty() && !ahead;
        hidden.then(|| until.to_string())
    }
}

/// The path of one run.
fn address(id: i64) -> String {
    format!("/runs/{id}")
}

async fn act(client: &Client, id: i64, verb: &str, reason: Option<&str>) -> Result<Value, Failure> {
    let body = match reason {
        Some(reason) => json!({ "reason": reason }),
        None => json!({}),
    };
    Ok(client.post(format!("{}/{verb}", address(id))).body(body).send().await?.body)
}

/// Where a run stands, if it is a state we know.
fn state(run: &Value) -> Option<RunState> {
    run["state"].as_str()?.parse().ok()
}

/// Whether nothing more will happen to it by itself.
fn is_ended(run: &Value) -> bool {
    state(run).is_some_and(RunState::is_ended)
}
