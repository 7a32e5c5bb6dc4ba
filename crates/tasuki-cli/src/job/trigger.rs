//! `tasuki job trigger`: creates a run of a job now or at an instant.

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::job_path;
use crate::client::ApiClient;
use crate::failure::Failure;
use crate::flag_values::{self, PastOrFuture, RunArguments};
use crate::run::WaitOptions;
use crate::view::OutputStyle;

/// Create a run of a job now
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
    arguments: RunArguments,
    /// Planned time of the run (the run does not start earlier): an instant, or a duration from now [default: now]
    #[arg(long, value_name = "WHEN")]
    at: Option<String>,
    /// Scope of the run, such as tenant/42
    #[arg(long, value_name = "KIND/ID")]
    scope: Option<String>,
    /// Idempotency key: requests with the same key create one run
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    wait_options: WaitOptions,
}

impl Trigger {
    pub(super) async fn run(
        &self,
        client: &ApiClient,
        style: &OutputStyle,
        now: Timestamp,
    ) -> Result<String, Failure> {
        self.wait_options.validate()?;
        let mut body = json!({});
        if let Some(args) = self.arguments.parse()? {
            body["args"] = args;
        }
        if let Some(at) = flag_values::instant_flag_to_api_text(
            "--at",
            self.at.as_deref(),
            PastOrFuture::Future,
            now,
        )? {
            body["scheduled_for"] = json!(at);
        }
        if let Some(scope) = &self.scope {
            body["scope"] = flag_values::parse_run_scope_flag(scope)?;
        }
        let request = client.post(format!("{}/trigger", job_path(&self.name)?)).body(body);
        let response = request.idempotency_key(self.key.as_deref()).send().await?;
        self.wait_options.show_or_wait(client, style, response).await
    }
}
