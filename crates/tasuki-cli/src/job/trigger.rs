//! `tasuki job trigger`

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::address;
use crate::client::Client;
use crate::output::Failure;
use crate::run::Waiting;
use crate::typed::{self, Arguments, From};
use crate::view::Look;

/// Run a job now
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job trigger hello
  tasuki job trigger hello --follow
  tasuki job trigger report --arg day=2026-11-16 --wait --timeout 10m
  tasuki job trigger report --scope tenant/42 --key report-2026-11-16")]
pub(super) struct Trigger {
    /// The job's name
    name: String,
    #[command(flatten)]
    arguments: Arguments,
    /// The instant it is for: an instant, or a duration from now [default: now]
    #[arg(long, value_name = "WHEN")]
    at: Option<String>,
    /// What it runs for, such as tenant/42
    #[arg(long, value_name = "KIND/ID")]
    scope: Option<String>,
    /// The same key twice makes one run
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    waiting: Waiting,
}

impl Trigger {
    pub(super) async fn run(
        &self,
        client: &Client,
        look: &Look,
        now: Timestamp,
    ) -> Result<String, Failure> {
        self.waiting.check()?;
        let mut body = json!({});
        if let Some(args) = self.arguments.read()? {
            body["args"] = args;
        }
        if let Some(at) = typed::instant_if("--at", self.at.as_deref(), From::Ahead, now)? {
            body["scheduled_for"] = json!(at);
        }
        if let Some(scope) = &self.scope {
            body["scope"] = typed::scope(scope)?;
        }
        let call = client.post(format!("{}/trigger", address(&self.name)?)).body(body);
        let answer = call.idempotency_key(self.key.as_deref()).send().await?;
        self.waiting.after(client, look, answer).await
    }
}
