//! `tasuki leader`: who plans, and how to let another one plan.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::ask::Consent;
use crate::client::Client;
use crate::output::Failure;
use crate::server::Server;
use crate::view::{Look, items, text};

/// Who plans.
#[derive(Args)]
pub(crate) struct Leader {
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Show(Show),
    Demote(Demote),
}

/// Show who leads, since when, and who did before
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki leader show\n  tasuki leader show --json")]
struct Show {}

/// End the leader's term; another one takes over
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki leader demote --reason 'its machine is slow'
  tasuki leader demote --yes")]
struct Demote {
    /// Why, for whoever wonders
    #[arg(long, default_value = "")]
    reason: String,
    #[command(flatten)]
    consent: Consent,
}

impl Leader {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.server.ask(now, async |client, look| match &self.verb {
            Verb::Show(Show {}) => {
                let leader = client.get("/leader").send().await?.body;
                Ok(look.answer(&leader, told))
            }
            Verb::Demote(demote) => demote.run(client, look).await,
        })
    }
}

impl Demote {
    /// The term that was shown is the one that is ended, not one that began meanwhile.
    async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let leader = client.get("/leader").send().await?.body;
        let facts = facts(look, &leader);
        self.consent
            .ask(&format!("this term will be ended, and another one begins:\n\n{facts}\n"))?;
        let body = json!({ "epoch": leader["epoch"], "reason": self.reason });
        let answer = client.post("/leader/demote").body(body).send().await?.body;
        let ended = format!("ended the term with epoch {}\n", leader["epoch"]);
        Ok(look.answer(&answer, |_, _| ended))
    }
}

fn facts(look: &Look, leader: &Value) -> String {
    let holder = match text(leader, "holder") {
        holder if holder.is_empty() => "nobody".to_owned(),
        holder => holder,
    };
    look.facts(&[
        ("leader", holder),
        ("epoch", text(leader, "epoch")),
        ("lease until", look.instant(leader, "lease_until")),
        ("clock", look.instant(leader, "clock")),
    ])
}

fn told(look: &Look, leader: &Value) -> String {
    let mut table = look.table(["EPOCH", "LEADER", "BEGAN"]);
    for term in items(leader, "terms") {
        table.row([text(term, "epoch"), text(term, "holder"), look.instant(term, "minted_at")]);
    }
    format!("{}\n{}", facts(look, leader), table.or("nobody has led yet"))
}
