//! `tasuki run logs`: prints the captured output of a run, or follows it.

use clap::Args;
use serde_json::Value;

use super::follow::{FollowEnd, LogFollower, OutputState, print_json, print_line};
use super::run_path;
use crate::client::ApiClient;
use crate::failure::Failure;
use crate::view::{OutputStyle, field_items, field_text};

/// Maximum number of lines per request.
const LINES_PER_PAGE: u32 = 1_000;

/// Print the captured output of a run: its stdout to stdout, its stderr to stderr
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run logs 7
  tasuki run logs 7 -f
  tasuki run logs 7 --attempt 1 2>/dev/null")]
pub(super) struct Logs {
    /// The run's number
    id: i64,
    /// Follow the output until the run ends. Ctrl-C ends this command; the run continues
    #[arg(short, long)]
    follow: bool,
    /// Number of the attempt [default: the last; with -f also later attempts]
    #[arg(long, value_name = "N")]
    attempt: Option<i64>,
}

impl Logs {
    pub(super) async fn run(
        &self,
        client: &ApiClient,
        style: &OutputStyle,
    ) -> Result<String, Failure> {
        if !self.follow || self.is_past_attempt(client).await? {
            return self.print(client, style).await;
        }
        let follower =
            LogFollower { client, id: self.id, attempt: self.attempt, json: style.json() };
        tokio::select! {
            ending = follower.follow() => match ending? {
                FollowEnd::RunEnded(_) | FollowEnd::OutputClosed => Ok(String::new()),
            },
            _ = tokio::signal::ctrl_c() => Ok(String::new()),
        }
    }

    /// Whether the selected attempt is not the current one. Following starts at the current attempt, so the output of an
    /// earlier one is printed without following.
    async fn is_past_attempt(&self, client: &ApiClient) -> Result<bool, Failure> {
        let Some(attempt) = self.attempt else { return Ok(false) };
        let run = client.get(run_path(self.id)).send().await?.body;
        Ok(run["attempt_no"].as_i64().is_some_and(|last| attempt < last))
    }

    async fn print(&self, client: &ApiClient, style: &OutputStyle) -> Result<String, Failure> {
        let mut from = 0;
        let mut attempt = self.attempt;
        loop {
            let request = client.get(format!("{}/logs", run_path(self.id)));
            let request = request
                .query_if("attempt", attempt)
                .query("from", &from)
                .query("limit", &LINES_PER_PAGE);
            let page = request.send().await?.body;
            let lines = field_items(&page, "lines");
            if from == 0 && lines.is_empty() {
                note_why_empty(&page);
            }
            // All pages come from the same attempt, even if a retry starts in the meantime.
            attempt = attempt.or(page["attempt"].as_i64());
            for line in lines {
                let state = match style.json() {
                    true => print_json(line)?,
                    false => print_line(line)?,
                };
                if state == OutputState::Closed {
                    return Ok(String::new());
                }
            }
            let next = page["next"].as_i64().unwrap_or(from);
            let all = page["lines_count"].as_i64().is_some_and(|count| next >= count);
            if all || lines.is_empty() || next <= from {
                if page["truncated"] == true {
                    eprintln!("note: the output was cut at {} bytes", page["bytes"]);
                }
                return Ok(String::new());
            }
            from = next;
        }
    }
}

fn note_why_empty(page: &Value) {
    match (field_text(page, "log_ref"), page["ended"] == true) {
        (log_ref, _) if !log_ref.is_empty() => eprintln!("note: the log was archived at {log_ref}"),
        _ if page["attempt"] == 0 => eprintln!("note: the run has not started yet; -f follows it"),
        (_, true) => eprintln!("note: the run has no output"),
        (_, false) => eprintln!("note: the run has no output yet; -f follows it"),
    }
}
