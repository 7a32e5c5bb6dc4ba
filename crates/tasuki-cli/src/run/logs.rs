//! `tasuki run logs`

use clap::Args;
use serde_json::Value;

use super::address;
use super::follow::{Ending, Follow, Reader, print_json, print_line};
use crate::client::Client;
use crate::output::Failure;
use crate::view::{Look, items, text};

/// How many lines are fetched at once.
const PAGE: u32 = 1_000;

/// Print what a run printed: its stdout to stdout, its stderr to stderr
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki run logs 7
  tasuki run logs 7 -f
  tasuki run logs 7 --attempt 1 2>/dev/null")]
pub(super) struct Logs {
    /// The run's number
    id: i64,
    /// Follow it until the run ends; Ctrl-C stops following, not the run
    #[arg(short, long)]
    follow: bool,
    /// Of this attempt [default: the last; with -f also those that follow]
    #[arg(long, value_name = "N")]
    attempt: Option<i64>,
}

impl Logs {
    pub(super) async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        if !self.follow || self.is_over(client).await? {
            return self.print(client, look).await;
        }
        let follow = Follow { client, id: self.id, attempt: self.attempt, json: look.json() };
        tokio::select! {
            ending = follow.to_the_end() => match ending? {
                Ending::Ended(_) | Ending::Unread => Ok(String::new()),
            },
            _ = tokio::signal::ctrl_c() => Ok(String::new()),
        }
    }

    /// Whether it is about an attempt that others came after: a run is followed from where it is.
    async fn is_over(&self, client: &Client) -> Result<bool, Failure> {
        let Some(attempt) = self.attempt else { return Ok(false) };
        let run = client.get(address(self.id)).send().await?.body;
        Ok(run["attempt_no"].as_i64().is_some_and(|last| attempt < last))
    }

    async fn print(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let mut from = 0;
        let mut attempt = self.attempt;
        loop {
            let call = client.get(format!("{}/logs", address(self.id)));
            let call = call.query_if("attempt", attempt).query("from", &from).query("limit", &PAGE);
            let page = call.send().await?.body;
            let lines = items(&page, "lines");
            if from == 0 && lines.is_empty() {
                tell_why_there_is_nothing(&page);
            }
            // A retry that begins meanwhile must not be spliced into what we print.
            attempt = attempt.or(page["attempt"].as_i64());
            for line in lines {
                let reader = match look.json() {
                    true => print_json(line)?,
                    false => print_line(line)?,
                };
                if reader == Reader::Gone {
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

fn tell_why_there_is_nothing(page: &Value) {
    match (text(page, "log_ref"), page["ended"] == true) {
        (log_ref, _) if !log_ref.is_empty() => eprintln!("note: its log is at {log_ref}"),
        _ if page["attempt"] == 0 => eprintln!("note: it has not started yet; -f follows it"),
        (_, true) => eprintln!("note: it printed nothing"),
        (_, false) => eprintln!("note: it has printed nothing yet; -f follows it"),
    }
}
