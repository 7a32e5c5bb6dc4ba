//! `tasuki event`: emits events and lists the runs that they started.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api_server_and_token_flags::ApiServerFlags;
use crate::client::ApiClient;
use crate::failure::Failure;
use crate::fetch_all_pages;
use crate::flag_values;
use crate::view::{OutputStyle, field_items, field_text};

/// Emit events and list the runs that they started
#[derive(Args)]
pub(crate) struct EventCommand {
    #[command(flatten)]
    endpoint: ApiServerFlags,
    #[command(subcommand)]
    verb: RunVerb,
}

#[derive(Subcommand)]
enum RunVerb {
    Emit(Emit),
    List(List),
    Show(Show),
}

/// Emit an event. tasuki creates a run of each job whose event types and filter match, unless the job is disabled or
/// paused
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki event emit order.paid --payload '{\"order\": 42}'
  tasuki event emit order.paid --payload-file order.json --key order-42
  tasuki event emit nightly.done --job report")]
struct Emit {
    /// Type of the event, such as order.paid
    #[arg(value_name = "TYPE")]
    kind: String,
    /// Payload that is passed to the jobs, as JSON
    #[arg(long, value_name = "JSON", conflicts_with = "payload_file")]
    payload: Option<String>,
    /// File with the payload as JSON; - is stdin
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// Idempotency key: requests with the same source and key create one event
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Run only this job for the event [default: all matching jobs]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Source of the event
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
    /// Maximum number of events
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Only events older than this event number
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
}

/// Show one event with its payload
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki event show 3")]
struct Show {
    /// Number of the event
    id: i64,
}

impl EventCommand {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.endpoint.with_client(now, async |client, style| match &self.verb {
            RunVerb::Emit(emit) => emit.run(client, style).await,
            RunVerb::List(list) => list.run(client, style).await,
            RunVerb::Show(Show { id }) => {
                let event = client.get(format!("/events/{id}")).send().await?.body;
                Ok(style.render(&event, render_details))
            }
        })
    }
}

impl Emit {
    async fn run(&self, client: &ApiClient, style: &OutputStyle) -> Result<String, Failure> {
        let mut body = json!({ "type": self.kind, "source": self.source });
        let payload = match (&self.payload, &self.payload_file) {
            (Some(input), _) => Some(flag_values::parse_json_flag("--payload", input)?),
            (None, Some(file)) => Some(flag_values::parse_json_flag(
                "--payload-file",
                &flag_values::read_file_or_stdin(file)?,
            )?),
            (None, None) => None,
        };
        let optional_fields = [
            ("payload", payload),
            ("dedupe_key", self.key.as_ref().map(|key| json!(key))),
            ("job", self.job.as_ref().map(|job| json!(job))),
        ];
        for (name, value) in optional_fields {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        let response = client.post("/events").body(body).send().await?.body;
        Ok(style.render(&response, |_, response| match response["existed"] == true {
            true => format!("event {} already exists with this key\n", response["id"]),
            false => format!("created event {}\n", response["id"]),
        }))
    }
}

impl List {
    async fn run(&self, client: &ApiClient, style: &OutputStyle) -> Result<String, Failure> {
        let request = |next: Option<String>, limit: usize| {
            let before = next.or_else(|| self.before.map(|id| id.to_string()));
            client.get("/events").query_if("before", before).query("limit", &limit)
        };
        let events = fetch_all_pages::fetch_items(self.limit, request).await?;
        Ok(style.render(&events, render_list))
    }
}

fn render_list(style: &OutputStyle, events: &Value) -> String {
    let mut table = style.table(["ID", "TYPE", "SOURCE", "CREATED", "RESULT"]);
    for event in field_items(events, "items") {
        table.row([
            field_text(event, "id"),
            field_text(event, "type"),
            field_text(event, "source"),
            style.instant(event, "created_at"),
            describe_result(event),
        ]);
    }
    table.render_or("there are no events; `tasuki event emit --help` shows how to emit one")
}

fn render_details(style: &OutputStyle, event: &Value) -> String {
    let payload = match &event["payload"] {
        Value::Null => String::new(),
        payload => format!("{payload:#}"),
    };
    style.fields(&[
        ("event", field_text(event, "id")),
        ("type", field_text(event, "type")),
        ("source", field_text(event, "source")),
        ("for job", field_text(event, "job")),
        ("key", field_text(event, "dedupe_key")),
        ("created", style.instant(event, "created_at")),
        ("processed", style.instant(event, "processed_at")),
        ("result", describe_result(event)),
        ("payload", payload),
    ])
}

/// The result of an event: its number of runs, a problem, no matching job, or not processed yet.
fn describe_result(event: &Value) -> String {
    let runs = match &event["runs"] {
        Value::Array(ids) => ids.len() as u64,
        count => count.as_u64().unwrap_or(0),
    };
    match (field_text(event, "problem"), event["processed_at"].is_null(), runs) {
        (problem, _, _) if !problem.is_empty() => problem,
        (_, true, _) => "not processed yet".to_owned(),
        (_, false, 0) => "no matching job".to_owned(),
        (_, false, 1) => "1 run".to_owned(),
        (_, false, count) => format!("{count} runs"),
    }
}
