//! `tasuki worker`: who runs the runs.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::ask::Consent;
use crate::client::{Client, segment};
use crate::output::Failure;
use crate::server::Server;
use crate::view::{Look, items, text};

/// Who runs the runs.
#[derive(Args)]
pub(crate) struct Worker {
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
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

/// Let a worker finish what it has and give it nothing more
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki worker drain 11111111-2222-4333-8444-555555555555")]
struct Drain {
    /// The worker's id
    id: String,
}

/// Give up on a worker: it is given nothing more, and its runs are recovered when their leases end
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki worker detach 11111111-2222-4333-8444-555555555555 --reason 'the machine is gone'
  tasuki worker detach 11111111-2222-4333-8444-555555555555 --yes")]
struct Detach {
    /// The worker's id
    id: String,
    /// Why, for whoever wonders
    #[arg(long, default_value = "")]
    reason: String,
    #[command(flatten)]
    consent: Consent,
}

impl Worker {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.server.ask(now, async |client, look| match &self.verb {
            Verb::List(List {}) => {
                let workers = client.get("/workers").send().await?.body;
                Ok(look.answer(&workers, many))
            }
            Verb::Show(Show { id }) => {
                let worker = client.get(address(id)?).send().await?.body;
                Ok(look.answer(&worker, one))
            }
            Verb::Drain(Drain { id }) => {
                let call = client.post(format!("{}/drain", address(id)?)).body(json!({}));
                let answer = call.send().await?.body;
                let told = format!("worker {id} finishes what it has and gets nothing more\n");
                Ok(look.answer(&answer, |_, _| told))
            }
            Verb::Detach(detach) => detach.run(client, look).await,
        })
    }
}

impl Detach {
    async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let id = &self.id;
        let worker = client.get(address(id)?).send().await?.body;
        let told = one(look, &worker);
        self.consent.ask(&format!(
            "this worker will be detached, and its runs recovered when their leases end:\n\n{told}\n"
        ))?;
        let call = client.post(format!("{}/detach", address(id)?));
        let answer = call.body(json!({ "reason": self.reason })).send().await?.body;
        Ok(look.answer(&answer, |_, _| format!("detached worker {id}\n")))
    }
}

fn address(id: &str) -> Result<String, Failure> {
    Ok(format!("/workers/{}", segment(id)?))
}

fn many(look: &Look, workers: &Value) -> String {
    let mut table = look.table(["ID", "STATE", "NODE", "RUNS", "SLOTS", "FUNCTIONS", "HEARTBEAT"]);
    for worker in items(workers, "items") {
        table.row([
            text(worker, "id"),
            text(worker, "state"),
            text(worker, "node"),
            text(worker, "leases"),
            text(worker, "slots"),
            text(worker, "function_slots"),
            look.instant(worker, "heartbeat_at"),
        ]);
    }
    table.or("there are no workers")
}

fn one(look: &Look, worker: &Value) -> String {
    look.facts(&[
        ("worker", text(worker, "id")),
        ("state", text(worker, "state")),
        ("node", text(worker, "node")),
        ("runs it carries", text(worker, "leases")),
        ("slots", text(worker, "slots")),
        ("function slots", text(worker, "function_slots")),
        ("heartbeat", look.instant(worker, "heartbeat_at")),
        ("draining since", look.instant(worker, "draining_at")),
        ("detached", look.instant(worker, "detached_at")),
    ])
}
