//! `tasuki worker`: lists, shows, drains and detaches workers.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api_server_and_token_flags::ApiServerFlags;
use crate::client::{ApiClient, encode_path_segment};
use crate::confirmation_prompt::Confirmation;
use crate::failure::Failure;
use crate::view::{OutputStyle, field_items, field_text};

/// List, inspect, drain and detach workers
#[derive(Args)]
pub(crate) struct WorkerCommand {
    #[command(flatten)]
    endpoint: ApiServerFlags,
    #[command(subcommand)]
    verb: RunVerb,
}

#[derive(Subcommand)]
enum RunVerb {
    List(List),
    Show(Show),
    Drain(Drain),
    Detach(Detach),
}

/// List workers
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki worker list\n  tasuki worker list --json")]
struct List {}

/// Show one worker
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki worker show 11111111-2222-4333-8444-555555555555")]
struct Show {
    /// The worker's id
    id: String,
}

/// Drain a worker: it finishes its runs and receives no new ones
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki worker drain 11111111-2222-4333-8444-555555555555")]
struct Drain {
    /// The worker's id
    id: String,
}

/// Detach a worker. The worker gets no new runs, and the leader assigns its unstarted runs to other workers. If the
/// worker is alive, it asks other nodes whether it may continue its running runs, and stops them if no node confirms
/// this. When these runs have ended, the worker registers under a new id. If the worker is not alive, the leader
/// recovers its running runs when their leases have expired
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki worker detach 11111111-2222-4333-8444-555555555555 --reason 'the host is down'
  tasuki worker detach 11111111-2222-4333-8444-555555555555 --reason 'the host is down' --yes")]
struct Detach {
    /// The worker's id
    id: String,
    /// Reason, stored in the audit (required)
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    confirmation: Confirmation,
}

impl WorkerCommand {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.endpoint.with_client(now, async |client, style| match &self.verb {
            RunVerb::List(List {}) => {
                let workers = client.get("/workers").send().await?.body;
                Ok(style.render(&workers, render_list))
            }
            RunVerb::Show(Show { id }) => {
                let worker = client.get(worker_path(id)?).send().await?.body;
                Ok(style.render(&worker, render_details))
            }
            RunVerb::Drain(Drain { id }) => {
                let request = client.post(format!("{}/drain", worker_path(id)?)).body(json!({}));
                let response = request.send().await?.body;
                let output = format!(
                    "worker {id} is draining: it finishes its runs and receives no new ones\n"
                );
                Ok(style.render(&response, |_, _| output))
            }
            RunVerb::Detach(detach) => detach.run(client, style).await,
        })
    }
}

impl Detach {
    async fn run(&self, client: &ApiClient, style: &OutputStyle) -> Result<String, Failure> {
        let id = &self.id;
        let worker = client.get(worker_path(id)?).send().await?.body;
        let output = render_details(style, &worker);
        self.confirmation.require(&format!(
            "this worker will be detached; it will get no new runs, and it will stop its running \
             runs unless another node allows it to continue them. The worker:\n\n{output}\n"
        ))?;
        let request = client.post(format!("{}/detach", worker_path(id)?));
        let response = request.body(json!({ "reason": self.reason })).send().await?.body;
        Ok(style.render(&response, |_, _| format!("detached worker {id}\n")))
    }
}

fn worker_path(id: &str) -> Result<String, Failure> {
    Ok(format!("/workers/{}", encode_path_segment(id)?))
}

fn render_list(style: &OutputStyle, workers: &Value) -> String {
    let mut table =
        style.table(["ID", "STATE", "NODE", "LEASES", "SLOTS", "FUNCTION SLOTS", "HEARTBEAT"]);
    for worker in field_items(workers, "items") {
        table.row([
            field_text(worker, "id"),
            field_text(worker, "state"),
            field_text(worker, "node"),
            field_text(worker, "leases"),
            field_text(worker, "slots"),
            field_text(worker, "function_slots"),
            style.instant(worker, "heartbeat_at"),
        ]);
    }
    table.render_or("there are no workers")
}

fn render_details(style: &OutputStyle, worker: &Value) -> String {
    style.fields(&[
        ("worker", field_text(worker, "id")),
        ("state", field_text(worker, "state")),
        ("node", field_text(worker, "node")),
        ("leases", field_text(worker, "leases")),
        ("slots", field_text(worker, "slots")),
        ("function slots", field_text(worker, "function_slots")),
        ("heartbeat", style.instant(worker, "heartbeat_at")),
        ("draining since", style.instant(worker, "draining_at")),
        ("detached", style.instant(worker, "detached_at")),
    ])
}
