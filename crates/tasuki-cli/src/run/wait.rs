//! `tasuki run wait` and the options `--wait`, `--follow` and `--timeout`: waits for the end of a run and sets the exit
//! code by its outcome.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tasuki_core::{RunState, duration};
use tokio::time::Instant;

use super::follow::{FollowEnd, LogFollower};
use super::{is_ended, run_path, state, view};
use crate::client::{ApiClient, ApiResponse};
use crate::failure::Failure;
use crate::view::OutputStyle;

/// Maximum wait time that the server accepts in one request.
const MAX_WAIT_PER_REQUEST: Duration = Duration::from_secs(50);

/// Wait until a run has ended; exit 0 if it SUCCEEDED, else 1
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run wait 7
  tasuki run wait 7 --timeout 10m && echo done")]
pub(super) struct Wait {
    /// The run's number
    id: i64,
    /// Maximum time to wait [default: no limit]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
}

impl Wait {
    pub(super) async fn run(
        &self,
        client: &ApiClient,
        style: &OutputStyle,
    ) -> Result<String, Failure> {
        let timeout = parse_timeout(self.timeout.as_deref())?;
        let run = interruptible(self.id, wait_until_ended(client, self.id, timeout)).await?;
        outcome_of(style, &run)
    }
}

/// Options of commands that create a run: return immediately, wait for its end, or follow its output.
#[derive(Args)]
pub(crate) struct WaitOptions {
    /// Wait until the run has ended; exit 0 if it SUCCEEDED, else 1
    #[arg(long)]
    wait: bool,
    /// Print the output of the run while waiting
    #[arg(long)]
    follow: bool,
    /// Maximum time to wait [default: no limit]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
}

impl WaitOptions {
    /// Shows the created run, or waits for its end if an option selects that.
    pub(crate) async fn show_or_wait(
        &self,
        client: &ApiClient,
        style: &OutputStyle,
        created: ApiResponse,
    ) -> Result<String, Failure> {
        let timeout = parse_timeout(self.timeout.as_deref())?;
        let id = created.body["id"].as_i64().unwrap_or_default();
        if self.follow {
            eprintln!("{}", view::describe_state(&created.body));
            let follower = LogFollower { client, id, attempt: None, json: style.json() };
            let followed = async {
                match timeout {
                    None => follower.follow().await,
                    Some(limit) => tokio::time::timeout(limit, follower.follow())
                        .await
                        .unwrap_or_else(|_| Err(timeout_failure(id, limit))),
                }
            };
            return match interruptible(id, followed).await? {
                FollowEnd::RunEnded(run) => outcome_after_output(style, &run),
                FollowEnd::OutputClosed => Ok(String::new()),
            };
        }
        if self.wait || timeout.is_some() {
            let run = interruptible(id, wait_until_ended(client, id, timeout)).await?;
            return outcome_of(style, &run);
        }
        let existed = created.status.as_u16() == 200;
        Ok(style.render(&created.body, |_, run| match existed {
            true => format!("{}; it already existed with this key\n", view::describe_state(run)),
            false => view::state_line(run),
        }))
    }

    /// Checks the options before the run is created, so that an invalid value creates no run.
    pub(crate) fn validate(&self) -> Result<(), Failure> {
        parse_timeout(self.timeout.as_deref()).map(drop)
    }
}

fn parse_timeout(input: Option<&str>) -> Result<Option<Duration>, Failure> {
    let read = |input| duration::parse_duration_field("--timeout", input);
    input.map(read).transpose().map_err(|invalid| Failure::invalid_input(&invalid))
}

async fn wait_until_ended(
    client: &ApiClient,
    id: i64,
    timeout: Option<Duration>,
) -> Result<Value, Failure> {
    let started = Instant::now();
    loop {
        let left =
            timeout.map_or(MAX_WAIT_PER_REQUEST, |limit| limit.saturating_sub(started.elapsed()));
        let request_timeout = left.min(MAX_WAIT_PER_REQUEST).max(Duration::from_millis(1));
        let request = client.get(format!("{}/wait", run_path(id)));
        let request = request.query("timeout", &duration::format_exact_duration(request_timeout));
        let run = request.timeout(request_timeout + Duration::from_secs(10)).send().await?.body;
        if is_ended(&run) {
            return Ok(run);
        }
        if let Some(limit) = timeout.filter(|limit| started.elapsed() >= *limit) {
            return Err(timeout_failure(id, limit));
        }
    }
}

fn timeout_failure(id: i64, limit: Duration) -> Failure {
    let limit = duration::format_exact_duration(limit);
    Failure::new(format!("run {id} has not ended within {limit}; it continues"))
        .hint(format!("`tasuki run explain {id}` explains the state of the run"))
}

/// Runs `work` until Ctrl-C. Ctrl-C ends the wait, not the run.
async fn interruptible<T>(
    id: i64,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => {
            Err(Failure::interrupted(format!("stopped waiting; run {id} continues"))
                .hint(format!("`tasuki run cancel {id}` cancels it")))
        }
    }
}

/// The outcome of the command for an ended run: its state line, or a failure if it did not succeed.
fn outcome_of(style: &OutputStyle, run: &Value) -> Result<String, Failure> {
    let output = style.render(run, |_, run| view::state_line(run));
    match state(run) == Some(RunState::Succeeded) {
        true => Ok(output),
        false if style.json() => Err(Failure::new(view::describe_state(run)).with_stdout(output)),
        false => Err(Failure::new(view::describe_state(run)).hint(failure_hint(run))),
    }
}

/// As [`outcome_of`], after the output of the run was printed: stdout contains only that output, so the state goes to
/// stderr.
fn outcome_after_output(style: &OutputStyle, run: &Value) -> Result<String, Failure> {
    match state(run) == Some(RunState::Succeeded) {
        true => {
            eprintln!("{}", view::describe_state(run));
            Ok(String::new())
        }
        false if style.json() => Err(Failure::new(view::describe_state(run))),
        false => Err(Failure::new(view::describe_state(run)).hint(failure_hint(run))),
    }
}

fn failure_hint(run: &Value) -> String {
    let id = &run["id"];
    format!("`tasuki run logs {id}` shows its output, `tasuki run explain {id}` explains its state")
}
