//! `tasuki leader`: shows the leader and ends its term.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api_server_and_token_flags::ApiServerFlags;
use crate::client::ApiClient;
use crate::confirmation_prompt::Confirmation;
use crate::failure::Failure;
use crate::view::{OutputStyle, field_items, field_text};

/// Show or demote the leader, the worker that plans runs
#[derive(Args)]
pub(crate) struct LeaderCommand {
    #[command(flatten)]
    endpoint: ApiServerFlags,
    #[command(subcommand)]
    verb: RunVerb,
}

#[derive(Subcommand)]
enum RunVerb {
    Show(Show),
    Demote(Demote),
}

/// Show the current leader and the latest terms
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki leader show\n  tasuki leader show --json")]
struct Show {}

/// End the term of the leader, so that a new leader is elected
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki leader demote --reason 'its host is slow'
  tasuki leader demote --reason 'its host is slow' --yes")]
struct Demote {
    /// Reason, stored in the audit (required)
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    confirmation: Confirmation,
}

impl LeaderCommand {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.endpoint.with_client(now, async |client, style| match &self.verb {
            RunVerb::Show(Show {}) => {
                let leader = client.get("/leader").send().await?.body;
                Ok(style.render(&leader, render_terms))
            }
            RunVerb::Demote(demote) => demote.run(client, style).await,
        })
    }
}

impl Demote {
    /// Ends exactly the term that was shown: the request contains its epoch, so a newer term is not ended.
    async fn run(&self, client: &ApiClient, style: &OutputStyle) -> Result<String, Failure> {
        let leader = client.get("/leader").send().await?.body;
        let details = render_leader(style, &leader);
        self.confirmation.require(&format!(
            "this term will be ended, and the workers will elect a new leader:\n\n{details}\n"
        ))?;
        let body = json!({ "epoch": leader["epoch"], "reason": self.reason });
        let response = client.post("/leader/demote").body(body).send().await?.body;
        let ended = format!("ended the term with epoch {}\n", leader["epoch"]);
        Ok(style.render(&response, |_, _| ended))
    }
}

fn render_leader(style: &OutputStyle, leader: &Value) -> String {
    let holder = match field_text(leader, "holder") {
        holder if holder.is_empty() => "none".to_owned(),
        holder => holder,
    };
    style.fields(&[
        ("leader", holder),
        ("epoch", field_text(leader, "epoch")),
        ("lease until", style.instant(leader, "lease_until")),
        ("clock", style.instant(leader, "clock")),
    ])
}

fn render_terms(style: &OutputStyle, leader: &Value) -> String {
    let mut table = style.table(["EPOCH", "LEADER", "STARTED"]);
    for term in field_items(leader, "terms") {
        table.row([
            field_text(term, "epoch"),
            field_text(term, "holder"),
            style.instant(term, "began_at"),
        ]);
    }
    format!("{}\n{}", render_leader(style, leader), table.render_or("there has been no leader yet"))
}
