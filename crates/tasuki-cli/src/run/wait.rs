//! Waiting for a run to end, and the exit code that tells how it did.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tasuki_core::{RunState, duration};
use tokio::time::Instant;

use super::follow::{Ending, Follow};
use super::{address, is_ended, state, view};
use crate::client::{Answer, Client};
use crate::output::Failure;
use crate::view::Look;

/// The longest the server lets one call wait.
const ONE_CALL: Duration = Duration::from_secs(50);

/// Wait until a run has ended: exit 0 if it SUCCEEDED, else 1
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run wait 7
  tasuki run wait 7 --timeout 10m && echo done")]
pub(super) struct Wait {
    /// The run's number
    id: i64,
    /// How long to wait at most [default: as long as it takes]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
}

impl Wait {
    pub(super) async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let timeout = read_timeout(self.timeout.as_deref())?;
        let run = interruptible(self.id, until_ended(client, self.id, timeout)).await?;
        verdict(look, &run)
    }
}

/// What to do after a run was made.
#[derive(Args)]
pub(crate) struct Waiting {
    /// Wait until it has ended: exit 0 if it SUCCEEDED, else 1
    #[arg(long)]
    wait: bool,
    /// Print its output while waiting
    #[arg(long)]
    follow: bool,
    /// How long to wait at most [default: as long as it takes]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
}

impl Waiting {
    /// Shows the run that was made, or waits for its end if that was asked for.
    pub(crate) async fn after(
        &self,
        client: &Client,
        look: &Look,
        made: Answer,
    ) -> Result<String, Failure> {
        let timeout = read_timeout(self.timeout.as_deref())?;
        let id = made.body["id"].as_i64().unwrap_or_default();
        if self.follow {
            eprintln!("{}", view::in_words(&made.body));
            let follow = Follow { client, id, attempt: None, json: look.json() };
            let followed = async {
                match timeout {
                    None => follow.to_the_end().await,
                    Some(limit) => tokio::time::timeout(limit, follow.to_the_end())
                        .await
                        .unwrap_or_else(|_| Err(out_of_time(id, limit))),
                }
            };
            return match interruptible(id, followed).await? {
                Ending::Ended(run) => verdict_after_output(look, &run),
                Ending::Unread => Ok(String::new()),
            };
        }
        if self.wait || timeout.is_some() {
            let run = interruptible(id, until_ended(client, id, timeout)).await?;
            return verdict(look, &run);
        }
        let existed = made.status.as_u16() == 200;
        Ok(look.answer(&made.body, |_, run| match existed {
            true => format!("{}, made before under this key\n", view::in_words(run)),
            false => view::stands(run),
        }))
    }

    /// Refuses early what would otherwise be refused after the run was made.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        read_timeout(self.timeout.as_deref()).map(drop)
    }
}

fn read_timeout(typed: Option<&str>) -> Result<Option<Duration>, Failure> {
    let read = |typed| duration::read("--timeout", typed);
    typed.map(read).transpose().map_err(|invalid| Failure::usage(&invalid))
}

async fn until_ended(
    client: &Client,
    id: i64,
    timeout: Option<Duration>,
) -> Result<Value, Failure> {
    let begun = Instant::now();
    loop {
        let left = timeout.map_or(ONE_CALL, |limit| limit.saturating_sub(begun.elapsed()));
        let this_time = left.min(ONE_CALL).max(Duration::from_millis(1));
        let call = client.get(format!("{}/wait", address(id)));
        let call = call.query("timeout", &duration::show(this_time));
        let run = call.patience(this_time + Duration::from_secs(10)).send().await?.body;
        if is_ended(&run) {
            return Ok(run);
        }
        if let Some(limit) = timeout.filter(|limit| begun.elapsed() >= *limit) {
            return Err(out_of_time(id, limit));
        }
    }
}

fn out_of_time(id: i64, limit: Duration) -> Failure {
    let limit = duration::show(limit);
    Failure::refused(format!("run {id} has not ended within {limit}; it goes on"))
        .hint(format!("tasuki run explain {id} tells what it waits for"))
}

/// Ctrl-C ends the waiting, not the run.
async fn interruptible<T>(
    id: i64,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => {
            Err(Failure::interrupted(format!("no longer waiting; run {id} goes on"))
                .hint(format!("tasuki run cancel {id} stops it")))
        }
    }
}

/// How it ended, as words and exit code.
fn verdict(look: &Look, run: &Value) -> Result<String, Failure> {
    let told = look.answer(run, |_, run| view::stands(run));
    match state(run) == Some(RunState::Succeeded) {
        true => Ok(told),
        false if look.json() => Err(Failure::refused(view::in_words(run)).after(told)),
        false => Err(Failure::refused(view::in_words(run)).hint(advice(run))),
    }
}

/// The run's own output has stdout for itself.
fn verdict_after_output(look: &Look, run: &Value) -> Result<String, Failure> {
    match state(run) == Some(RunState::Succeeded) {
        true => {
            eprintln!("{}", view::in_words(run));
            Ok(String::new())
        }
        false if look.json() => Err(Failure::refused(view::in_words(run))),
        false => Err(Failure::refused(view::in_words(run)).hint(advice(run))),
    }
}

fn advice(run: &Value) -> String {
    let id = &run["id"];
    format!("tasuki run logs {id} shows its output, tasuki run explain {id} what happened")
}
