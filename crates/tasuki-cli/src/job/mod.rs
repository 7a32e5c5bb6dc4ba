//! `tasuki job`: creates, shows, changes, applies and exports job definitions, and triggers runs of a job.

mod apply;
mod export;
mod file;
mod job_changes;
mod job_definition_flags;
mod job_field_types;
mod normalize;
mod trigger;
mod trigger_flags;
mod view;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api_server_and_token_flags::ApiServerFlags;
use crate::client::{ApiClient, encode_path_segment};
use crate::confirmation_prompt::Confirmation;
use crate::failure::Failure;
use crate::fetch_all_pages;
use crate::flag_values::{self, PastOrFuture};
use crate::view::{OutputStyle, count_with_noun, field_items};
use job_definition_flags::JobDefinitionFlags;

/// Create, change, list, trigger, pause and delete jobs
#[derive(Args)]
pub(crate) struct JobCommand {
    #[command(flatten)]
    endpoint: ApiServerFlags,
    #[command(subcommand)]
    verb: RunVerb,
}

#[derive(Subcommand)]
enum RunVerb {
    List(List),
    Show(Show),
    Create(Create),
    Update(Update),
    Enable(Enable),
    Disable(Disable),
    Pause(Pause),
    Resume(Resume),
    Delete(Delete),
    Trigger(trigger::Trigger),
    Preview(Preview),
    Apply(apply::Apply),
    Export(export::Export),
}

/// List jobs
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job list
  tasuki job list --trigger event
  tasuki job list --json | jq -r '.items[].name'")]
struct List {
    /// Only jobs with this trigger type: time (has a schedule), event (has event types), task (has neither; runs only
    /// on request)
    #[arg(long, value_name = "TYPE")]
    trigger: Option<String>,
    /// Only enabled (true) or disabled (false) jobs
    #[arg(long, value_name = "BOOL")]
    enabled: Option<bool>,
    /// Maximum number of jobs [default: all]
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<usize>,
}

/// Show one job with all its fields
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job show hello
  tasuki job show hello --json")]
struct Show {
    /// The job's name
    name: String,
}

/// Create a job
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job create hello --every 5s -- echo hi
  tasuki job create report --weekdays-at 09:00 --zone Asia/Tokyo --arg to=all -- report {to}
  tasuki job create ship --on-event order.paid --filter '{\"country\": \"JP\"}' -- ship-order
  tasuki job create cleanup --daily-at 02:30 --django clearsessions
  tasuki job create resize --function resize_image --arg width=800")]
struct Create {
    /// The job's name
    name: String,
    /// Create the job disabled, so that it does not run until it is enabled
    #[arg(long)]
    disabled: bool,
    #[command(flatten)]
    job_args: JobDefinitionFlags,
}

/// Change a job. Fields without a flag keep their values; the value `default` resets a field. If another request changes the
/// job at the same time, this change is refused
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job update hello --every 10s
  tasuki job update report --zone Europe/Berlin --timeout 10m
  tasuki job update report --timeout default --without-env DEBUG
  tasuki job update hello -- echo hello again")]
struct Update {
    /// The job's name
    name: String,
    #[command(flatten)]
    job_args: JobDefinitionFlags,
    /// Argument to remove (repeatable)
    #[arg(long, value_name = "NAME", help_heading = "Action")]
    without_arg: Vec<String>,
    /// Environment variable to remove (repeatable)
    #[arg(long, value_name = "NAME", help_heading = "Action")]
    without_env: Vec<String>,
}

/// Enable a job, so that it runs again
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki job enable hello")]
struct Enable {
    /// The job's name
    name: String,
}

/// Disable a job until you enable it again. tasuki cancels its future scheduled runs. Runs that are already due
/// continue, and so do runs that an event or a request created before the job was disabled
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki job disable hello")]
struct Disable {
    /// The job's name
    name: String,
}

/// Pause a job: until the pause ends or you resume the job, tasuki creates no runs for its schedule or for events. tasuki
/// cancels its future scheduled runs
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job pause report --reason 'the warehouse is being moved'
  tasuki job pause report --reason migration --until 2h
  tasuki job pause report --until 2026-12-01T00:00:00Z --reason freeze")]
struct Pause {
    /// The job's name
    name: String,
    /// Reason, shown with the job (required)
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    /// End of the pause: an instant, or a duration from now [default: until resumed]
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
}

/// Resume a paused job
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki job resume report")]
struct Resume {
    /// The job's name
    name: String,
}

/// Delete a job. tasuki cancels its future scheduled runs and keeps its history
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job delete hello
  tasuki job delete hello --yes")]
struct Delete {
    /// The job's name
    name: String,
    #[command(flatten)]
    confirmation: Confirmation,
}

/// List the next fire times of a job
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job preview report
  tasuki job preview report -n 3 --from 2027-03-27T00:00:00Z

For a schedule that no job uses yet, run `tasuki schedule preview`.")]
struct Preview {
    /// The job's name
    name: String,
    /// Number of fire times to show
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    count: u16,
    /// Show only fire times after WHEN: an instant, or a duration from now [default: now]
    #[arg(long, value_name = "WHEN")]
    from: Option<String>,
}

impl JobCommand {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        if let RunVerb::Create(create) = &self.verb {
            create.job_args.check_has_action(&create.name)?;
        }
        self.endpoint
            .with_client(now, async |client, style| self.verb.run(client, style, now).await)
    }
}

impl RunVerb {
    async fn run(
        &self,
        client: &ApiClient,
        style: &OutputStyle,
        now: Timestamp,
    ) -> Result<String, Failure> {
        match self {
            Self::List(list) => list.run(client, style).await,
            Self::Show(Show { name }) => {
                let job = client.get(job_path(name)?).send().await?.body;
                Ok(style.render(&job, view::render_details))
            }
            Self::Create(create) => create.run(client, style).await,
            Self::Update(update) => update.run(client, style).await,
            Self::Enable(Enable { name }) => post_action(client, style, name, "enable", None).await,
            Self::Disable(Disable { name }) => {
                post_action(client, style, name, "disable", None).await
            }
            Self::Resume(Resume { name }) => post_action(client, style, name, "resume", None).await,
            Self::Pause(pause) => {
                let until = flag_values::instant_flag_to_api_text(
                    "--until",
                    pause.until.as_deref(),
                    PastOrFuture::Future,
                    now,
                )?;
                let body = json!({ "reason": pause.reason, "until": until });
                post_action(client, style, &pause.name, "pause", Some(body)).await
            }
            Self::Delete(delete) => delete.run(client, style).await,
            Self::Trigger(trigger) => trigger.run(client, style, now).await,
            Self::Preview(preview) => preview.run(client, style, now).await,
            Self::Apply(apply) => apply.run(client, style).await,
            Self::Export(export) => export.run(client, style).await,
        }
    }
}

/// Returns the API path of a job.
fn job_path(name: &str) -> Result<String, Failure> {
    Ok(format!("/jobs/{}", encode_path_segment(name)?))
}

/// Fetches all jobs as one page.
async fn fetch_all_jobs(client: &ApiClient) -> Result<Value, Failure> {
    let request = |after: Option<String>, limit: usize| {
        client.get("/jobs").query_if("after", after).query("limit", &limit)
    };
    fetch_all_pages::fetch_items(usize::MAX, request).await
}

/// Sends an action such as `enable`, for any version of the job: the action does not depend on its current fields.
async fn post_action(
    client: &ApiClient,
    style: &OutputStyle,
    name: &str,
    verb: &str,
    body: Option<Value>,
) -> Result<String, Failure> {
    let request = client.post(format!("{}/{verb}", job_path(name)?)).if_match("*");
    let request = match body {
        Some(body) => request.body(body),
        None => request,
    };
    Ok(style.render(&request.send().await?.body, view::render_changed))
}

impl List {
    async fn run(&self, client: &ApiClient, style: &OutputStyle) -> Result<String, Failure> {
        let request = |after: Option<String>, limit: usize| {
            client
                .get("/jobs")
                .query_if("trigger", self.trigger.as_ref())
                .query_if("enabled", self.enabled)
                .query_if("after", after)
                .query("limit", &limit)
        };
        let jobs = fetch_all_pages::fetch_items(self.limit.unwrap_or(usize::MAX), request).await?;
        Ok(style.render(&jobs, view::render_list))
    }
}

impl Create {
    async fn run(&self, client: &ApiClient, style: &OutputStyle) -> Result<String, Failure> {
        let mut body = self.job_args.build_job_fields(&Value::Null)?;
        // A new job has no previous values that a null would reset.
        body.retain(|_, value| !value.is_null());
        body.insert("name".to_owned(), json!(self.name));
        if self.disabled {
            body.insert("enabled".to_owned(), json!(false));
        }
        let job = client.post("/jobs").body(Value::Object(body)).send().await?.body;
        Ok(style.render(&job, view::render_created))
    }
}

impl Update {
    async fn run(&self, client: &ApiClient, style: &OutputStyle) -> Result<String, Failure> {
        let read = client.get(job_path(&self.name)?).send().await?;
        let before = &read.body;
        let mut fields = self.job_args.build_job_fields(before)?;
        for (field, dropped) in [("args", &self.without_arg), ("env", &self.without_env)] {
            if dropped.is_empty() {
                continue;
            }
            let kept = fields.entry(field).or_insert_with(|| before[field].clone());
            for name in dropped {
                if kept.as_object_mut().and_then(|map| map.remove(name)).is_none() {
                    let message = format!("job {} has no {name} in {field}", self.name);
                    return Err(Failure::bad_usage(message));
                }
            }
        }
        let mut after = before.clone();
        for (name, value) in fields {
            after[name] = value;
        }
        let patch = job_changes::compute_merge_patch(before, &after);
        if patch == json!({}) {
            let unchanged = |_: &OutputStyle, _: &Value| format!("{}: no changes\n", self.name);
            return Ok(style.render(&json!({ "job": before, "canceled_runs": [] }), unchanged));
        }
        let request = client.patch(job_path(&self.name)?).if_match(read.if_match_value());
        let response = request.body(patch).send().await?.body;
        Ok(style.render(&response, |style, response| {
            let changes = job_changes::list_changed_fields(before, &after);
            format!("{}{}", view::render_changes(&changes), view::render_changed(style, response))
        }))
    }
}

impl Delete {
    async fn run(&self, client: &ApiClient, style: &OutputStyle) -> Result<String, Failure> {
        let read = client.get(job_path(&self.name)?).send().await?;
        let details = view::render_details_without_secrets(style, &read.body);
        self.confirmation.require(&format!(
            "this job will be deleted, and its future scheduled runs will be canceled:\n\n\
             {details}\n"
        ))?;
        let request = client.delete(job_path(&self.name)?).if_match(read.if_match_value());
        let response = request.send().await?.body;
        Ok(style.render(&response, |_, response| {
            let canceled_runs = view::canceled_runs_suffix(response);
            format!("deleted {}{canceled_runs}\n", self.name)
        }))
    }
}

impl Preview {
    async fn run(
        &self,
        client: &ApiClient,
        style: &OutputStyle,
        now: Timestamp,
    ) -> Result<String, Failure> {
        let job = client.get(job_path(&self.name)?).send().await?.body;
        let schedule = &job["trigger"]["schedule"];
        if schedule.is_null() {
            let message = format!(
                "job {} has no schedule; it runs {}",
                self.name,
                view::describe_trigger(&job)
            );
            return Err(Failure::new(message));
        }
        let mut body = json!({ "schedule": schedule, "count": self.count });
        if let Some(from) = flag_values::instant_flag_to_api_text(
            "--from",
            self.from.as_deref(),
            PastOrFuture::Future,
            now,
        )? {
            body["from"] = json!(from);
        }
        let response = client.post("/schedules/preview").body(body).send().await?.body;
        Ok(style.render(&response, |style, response| view::render_preview(style, &job, response)))
    }
}

/// Describes the future scheduled runs that a change canceled, if there were any.
fn describe_canceled_runs(response: &Value) -> Option<String> {
    match field_items(response, "canceled_runs").len() {
        0 => None,
        count => Some(format!("{} canceled", count_with_noun(count, "future scheduled run"))),
    }
}
