//! `tasuki event`: something happened, and which runs came of it.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::client::Client;
use crate::output::Failure;
use crate::pages;
use crate::server::Server;
use crate::typed;
use crate::view::{Look, items, text};

/// What happened.
#[derive(Args)]
pub(crate) struct Event {
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Emit(Emit),
    List(List),
    Show(Show),
}

/// Tell that something happened; every job that takes such events runs
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki event emit order.paid --payload '{\"order\": 42}'
  tasuki event emit order.paid --payload-file order.json --key order-42
  tasuki event emit nightly.done --job report")]
struct Emit {
    /// Its type, such as order.paid
    #[arg(value_name = "TYPE")]
    kind: String,
    /// What the jobs get to know about it, as JSON
    #[arg(long, value_name = "JSON", conflicts_with = "payload_file")]
    payload: Option<String>,
    /// The same from a file; - is stdin
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// The same key twice is the same event
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// For this job alone
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Where it comes from
    #[arg(long, default_value = "cli")]
    source: String,
}

/// List events, newest first
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki event list
  tasuki event list -n 200 --json")]
struct List {
    /// At most so many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Older than this event
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
}

/// Show one event with its payload
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki event show 3")]
struct Show {
    /// The event's number
    id: i64,
}

impl Event {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.server.ask(now, async |client, look| match &self.verb {
            Verb::Emit(emit) => emit.run(client, look).await,
            Verb::List(list) => list.run(client, look).await,
            Verb::Show(Show { id }) => {
                let event = client.get(format!("/events/{id}")).send().await?.body;
                Ok(look.answer(&event, one))
            }
        })
    }
}

impl Emit {
    async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let mut body = json!({ "type": self.kind, "source": self.source });
        let payload = match (&self.payload, &self.payload_file) {
            (Some(typed), _) => Some(typed::json("--payload", typed)?),
            (None, Some(file)) => Some(typed::json("--payload-file", &typed::file(file)?)?),
            (None, None) => None,
        };
        let given = [
            ("payload", payload),
            ("dedupe_key", self.key.as_ref().map(|key| json!(key))),
            ("job", self.job.as_ref().map(|job| json!(job))),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        let answer = client.post("/events").body(body).send().await?.body;
        Ok(look.answer(&answer, |_, answer| match answer["existed"] == true {
            true => format!("event {} existed before under this key\n", answer["id"]),
            false => format!("event {}\n", answer["id"]),
        }))
    }
}

impl List {
    async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let call = |next: Option<String>, limit: usize| {
            let before = next.or_else(|| self.before.map(|id| id.to_string()));
            client.get("/events").query_if("before", before).query("limit", &limit)
        };
        let events = pages::collect(self.limit, call).await?;
        Ok(look.answer(&events, many))
    }
}

fn many(look: &Look, events: &Value) -> String {
    let mut table = look.table(["ID", "TYPE", "SOURCE", "CREATED", "BECAME"]);
    for event in items(events, "items") {
        table.row([
            text(event, "id"),
            text(event, "type"),
            text(event, "source"),
            look.instant(event, "created_at"),
            became(event),
        ]);
    }
    table.or("there are no events; tasuki event emit --help shows how to make one")
}

fn one(look: &Look, event: &Value) -> String {
    let payload = match &event["payload"] {
        Value::Null => String::new(),
        payload => format!("{payload:#}"),
    };
    look.facts(&[
        ("event", text(event, "id")),
        ("type", text(event, "type")),
        ("source", text(event, "source")),
        ("for job", text(event, "job")),
        ("key", text(event, "dedupe_key")),
        ("created", look.instant(event, "created_at")),
        ("processed", look.instant(event, "processed_at")),
        ("became", became(event)),
        ("payload", payload),
    ])
}

/// What came of it: runs, a problem, nothing, or nothing yet.
fn became(event: &Value) -> String {
    let runs = match &event["runs"] {
        Value::Array(ids) => ids.len() as u64,
        count => count.as_u64().unwrap_or(0),
    };
    match (text(event, "problem"), event["processed_at"].is_null(), runs) {
        (problem, _, _) if !problem.is_empty() => problem,
        (_, true, _) => "not looked at yet".to_owned(),
        (_, false, 0) => "nobody takes it".to_owned(),
        (_, false, 1) => "1 run".to_owned(),
        (_, false, count) => format!("{count} runs"),
    }
}
