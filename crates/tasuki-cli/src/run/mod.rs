//! `tasuki run`: lists, shows, follows, cancels, retries and reruns runs.

mod follow;
mod logs;
mod sse;
mod view;
mod wait;

use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tasuki_core::RunState;

pub(crate) use wait::WaitOptions;

use crate::api_server_and_token_flags::ApiServerFlags;
use crate::client::ApiClient;
use crate::failure::Failure;
use crate::fetch_all_pages;
use crate::flag_values::{self, PastOrFuture};
use crate::view::OutputStyle;

/// Maximum expected difference between the clock of this host and that of the database.
const MAX_CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_secs(2);

/// List, inspect, follow, cancel, retry and rerun runs
#[derive(Args)]
pub(crate) struct RunCommand {
    #[command(flatten)]
    endpoint: ApiServerFlags,
    #[command(subcommand)]
    verb: RunVerb,
}

#[derive(Subcommand)]
enum RunVerb {
    List(List),
    Show(Show),
    Logs(logs::Logs),
    Cancel(Cancel),
    Retry(Retry),
    Rerun(Rerun),
    Wait(wait::Wait),
    Explain(Explain),
}

/// List runs, newest first. Runs whose planned time is in the future are usually omitted; see --planned
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run list
  tasuki run list --planned
  tasuki run list --job report --state FAILED,TIMED_OUT --since 24h
  tasuki run list --state RUNNING --json")]
struct List {
    /// Only runs of this job
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Only runs in these states: PENDING, ASSIGNED, RUNNING, ORPHANED, RETRY_WAIT, SUCCEEDED,
    /// FAILED, TIMED_OUT, CANCELED, SKIPPED, EXPIRED
    #[arg(long, value_name = "STATES", value_delimiter = ',')]
    state: Vec<String>,
    /// Only runs with this origin: time, event, task, manual, rerun
    #[arg(long, value_name = "ORIGIN")]
    origin: Option<String>,
    /// Only runs of this scope, such as tenant/42
    #[arg(long, value_name = "KIND/ID")]
    scope: Option<String>,
    /// Only runs whose planned time is at or after WHEN: an instant, or a duration before now such as 24h
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,
    /// Only runs whose planned time is before WHEN: an instant, or a duration before now
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
    /// Include runs whose planned time is in the future. Without this option they are omitted, except with --state,
    /// with --until (which sets its own limit), or if --since is an instant in the future
    #[arg(long)]
    planned: bool,
    /// Maximum number of runs
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Continue after the previous page
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

/// Show a run with its attempts and transition records
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run show 7
  tasuki run show 7 --json | jq .executions

In the JSON output, executions contains the attempts, and notes contains the transition records.")]
struct Show {
    /// The run's number
    id: i64,
}

/// Cancel a run. If the run is RUNNING, its worker stops the attempt: it asks a function to stop, or sends SIGTERM to the
/// process, and SIGKILL if the process does not exit in time
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run cancel 7
  tasuki run cancel 7 --reason 'wrong day'")]
struct Cancel {
    /// The run's number
    id: i64,
    /// Reason, stored in the transition record
    #[arg(long)]
    reason: Option<String>,
}

/// Give a FAILED, TIMED_OUT or EXPIRED run one more try
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run retry 7
  tasuki run retry 7 --reason 'disk space is available again'")]
struct Retry {
    /// The run's number
    id: i64,
    /// Reason, stored in the transition record
    #[arg(long)]
    reason: Option<String>,
}

/// Create a new run of the same job with the arguments of an ended run; the new run uses the newest version of the job
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run rerun 7
  tasuki run rerun 7 --follow")]
struct Rerun {
    /// The run's number
    id: i64,
    #[command(flatten)]
    wait_options: WaitOptions,
}

/// Explain the state of a run and what happens next
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run explain 7")]
struct Explain {
    /// The run's number
    id: i64,
}

impl RunCommand {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.endpoint
            .with_client(now, async |client, style| self.verb.run(client, style, now).await)
    }
}

impl RunVerb {
    async fn run(
        &self,
        client: &ApiClient,
        style: &OutputStyle,
        now: Timestamp,
    ) -> Result<String, Failure> {
        match self {
            Self::List(list) => list.run(client, style, now).await,
            Self::Show(Show { id }) => {
                let run = client.get(run_path(*id)).send().await?.body;
                Ok(style.render(&run, view::render_details))
            }
            Self::Logs(logs) => logs.run(client, style).await,
            Self::Cancel(Cancel { id, reason }) => {
                let response = post_action(client, *id, "cancel", reason.as_deref()).await?;
                Ok(style.render(&response, |_, response| match response["done"] == true {
                    true => view::state_line(&response["run"]),
                    false => format!(
                        "cancel of run {id} requested: its worker will stop the attempt; \
                         `tasuki run wait {id}` waits until the run has ended\n"
                    ),
                }))
            }
            Self::Retry(Retry { id, reason }) => {
                let response = post_action(client, *id, "retry", reason.as_deref()).await?;
                Ok(style.render(&response, |_, response| view::state_line(&response["run"])))
            }
            Self::Rerun(Rerun { id, wait_options }) => {
                wait_options.validate()?;
                let response = client.post(format!("{}/rerun", run_path(*id))).send().await?;
                wait_options.show_or_wait(client, style, response).await
            }
            Self::Wait(wait) => wait.run(client, style).await,
            Self::Explain(Explain { id }) => {
                let response = client.get(format!("{}/explain", run_path(*id))).send().await?.body;
                Ok(style.render(&response, view::render_explanation))
            }
        }
    }
}

impl List {
    async fn run(
        &self,
        client: &ApiClient,
        style: &OutputStyle,
        now: Timestamp,
    ) -> Result<String, Failure> {
        let since = self.since.as_deref();
        let since = since
            .map(|input| flag_values::parse_instant_flag("--since", input, PastOrFuture::Past, now))
            .transpose()?;
        let until = flag_values::instant_flag_to_api_text(
            "--until",
            self.until.as_deref(),
            PastOrFuture::Past,
            now,
        )?;
        let (until, if_empty) = match (until, self.default_until(since, now)) {
            (None, Some(default_until)) => (
                Some(default_until),
                "there are no such runs yet; --planned includes runs with a future planned time",
            ),
            (until, _) => (until, "there are no such runs"),
        };
        let states = Some(self.state.join(",")).filter(|states| !states.is_empty());
        let request = |cursor: Option<String>, limit: usize| {
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
        let runs = fetch_all_pages::fetch_items(self.limit, request).await?;
        Ok(style.render(&runs, |style, runs| view::render_list(style, runs, if_empty)))
    }

    /// The default upper bound: now, because future runs would hide the most recent ones at the top of the list. The
    /// clock of the database may be slightly ahead of this one, so the bound is a little later: a run that was just
    /// submitted must be in the list.
    fn default_until(&self, since: Option<Timestamp>, now: Timestamp) -> Option<String> {
        let until = now.saturating_add(MAX_CLOCK_DIFFERENCE).unwrap_or(now);
        let ahead = since.is_some_and(|since| since >= until);
        let hidden = !self.planned && self.state.is_empty() && !ahead;
        hidden.then(|| until.to_string())
    }
}

/// Returns the API path of a run.
fn run_path(id: i64) -> String {
    format!("/runs/{id}")
}

async fn post_action(
    client: &ApiClient,
    id: i64,
    verb: &str,
    reason: Option<&str>,
) -> Result<Value, Failure> {
    let body = match reason {
        Some(reason) => json!({ "reason": reason }),
        None => json!({}),
    };
    Ok(client.post(format!("{}/{verb}", run_path(id))).body(body).send().await?.body)
}

/// The state of a run, or `None` if a newer server returned an unknown state.
fn state(run: &Value) -> Option<RunState> {
    run["state"].as_str()?.parse().ok()
}

/// Whether the run is in a final state.
fn is_ended(run: &Value) -> bool {
    state(run).is_some_and(RunState::is_ended)
}
