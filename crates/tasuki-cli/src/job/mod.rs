//! `tasuki job`: the definitions, and everything one can do with them by name.

mod apply;
mod definition;
mod difference;
mod export;
mod file;
mod normal;
mod shape;
mod trigger;
mod view;
mod when;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::ask::Consent;
use crate::client::{Client, segment};
use crate::output::Failure;
use crate::pages;
use crate::server::Server;
use crate::typed::{self, From};
use crate::view::{Look, counted, items};
use definition::Definition;

/// What runs, when, and how.
#[derive(Args)]
pub(crate) struct Job {
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    List(List),
    Show(Name),
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
    /// Only those that run by: time, event, task
    #[arg(long, value_name = "TYPE")]
    trigger: Option<String>,
    /// Only those that are enabled (true) or disabled (false)
    #[arg(long, value_name = "BOOL")]
    enabled: Option<bool>,
    /// At most so many [default: all]
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<usize>,
}

/// Show one job, whole
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job show hello
  tasuki job show hello --json")]
struct Name {
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
    /// It does not fire until it is enabled
    #[arg(long)]
    disabled: bool,
    #[command(flatten)]
    definition: Definition,
}

/// Change a job. What is not mentioned stays as it is; the word `default` takes a choice back.
/// Refused if somebody else changed it meanwhile.
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
    definition: Definition,
    /// Drop an argument (repeatable)
    #[arg(long, value_name = "NAME", help_heading = "What it runs")]
    without_arg: Vec<String>,
    /// Drop a variable of its environment (repeatable)
    #[arg(long, value_name = "NAME", help_heading = "What it runs")]
    without_env: Vec<String>,
}

/// Let a job fire again
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki job enable hello")]
struct Enable {
    /// The job's name
    name: String,
}

/// Keep a job from firing until it is enabled; runs of it that wait are withdrawn
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki job disable hello")]
struct Disable {
    /// The job's name
    name: String,
}

/// Let a job rest, with a reason and an end if you like
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job pause report --reason 'the warehouse is being moved'
  tasuki job pause report --until 2h
  tasuki job pause report --until 2026-12-01T00:00:00Z --reason freeze")]
struct Pause {
    /// The job's name
    name: String,
    /// Why, for whoever wonders
    #[arg(long, default_value = "")]
    reason: String,
    /// When it goes on by itself: an instant, or a duration from now [default: when resumed]
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
}

/// Let a paused job go on
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki job resume report")]
struct Resume {
    /// The job's name
    name: String,
}

/// Delete a job; runs of it that wait are withdrawn, its history stays
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job delete hello
  tasuki job delete hello --yes")]
struct Delete {
    /// The job's name
    name: String,
    #[command(flatten)]
    consent: Consent,
}

/// Show when a job fires next
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job preview report
  tasuki job preview report -n 3 --from 2027-03-27T00:00:00Z

tasuki schedule preview shows a schedule that no job has yet.")]
struct Preview {
    /// The job's name
    name: String,
    /// How many fires to show
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    count: u16,
    /// Fires after this: an instant, or a duration from now [default: now]
    #[arg(long, value_name = "WHEN")]
    from: Option<String>,
}

impl Job {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        if let Verb::Create(create) = &self.verb {
            create.definition.check_whole(&create.name)?;
        }
        self.server.ask(now, async |client, look| self.verb.run(client, look, now).await)
    }
}

impl Verb {
    async fn run(&self, client: &Client, look: &Look, now: Timestamp) -> Result<String, Failure> {
        match self {
            Self::List(list) => list.run(client, look).await,
            Self::Show(Name { name }) => {
                let job = client.get(address(name)?).send().await?.body;
                Ok(look.answer(&job, view::one))
            }
            Self::Create(create) => create.run(client, look).await,
            Self::Update(update) => update.run(client, look).await,
            Self::Enable(Enable { name }) => change(client, look, name, "enable", None).await,
            Self::Disable(Disable { name }) => change(client, look, name, "disable", None).await,
            Self::Resume(Resume { name }) => change(client, look, name, "resume", None).await,
            Self::Pause(pause) => {
                let until = typed::instant_if("--until", pause.until.as_deref(), From::Ahead, now)?;
                let body = json!({ "reason": pause.reason, "until": until });
                change(client, look, &pause.name, "pause", Some(body)).await
            }
            Self::Delete(delete) => delete.run(client, look).await,
            Self::Trigger(trigger) => trigger.run(client, look, now).await,
            Self::Preview(preview) => preview.run(client, look, now).await,
            Self::Apply(apply) => apply.run(client, look).await,
            Self::Export(export) => export.run(client, look).await,
        }
    }
}

/// The path of one job.
fn address(name: &str) -> Result<String, Failure> {
    Ok(format!("/jobs/{}", segment(name)?))
}

/// All there are, as one page.
async fn all(client: &Client) -> Result<Value, Failure> {
    let call = |after: Option<String>, limit: usize| {
        client.get("/jobs").query_if("after", after).query("limit", &limit)
    };
    pages::collect(usize::MAX, call).await
}

/// Whatever the job is now, this is meant: enabling does not depend on what was read.
async fn change(
    client: &Client,
    look: &Look,
    name: &str,
    verb: &str,
    body: Option<Value>,
) -> Result<String, Failure> {
    let call = client.post(format!("{}/{verb}", address(name)?)).if_match("*");
    let call = match body {
        Some(body) => call.body(body),
        None => call,
    };
    Ok(look.answer(&call.send().await?.body, view::changed))
}

impl List {
    async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let call = |after: Option<String>, limit: usize| {
            client
                .get("/jobs")
                .query_if("trigger", self.trigger.as_ref())
                .query_if("enabled", self.enabled)
                .query_if("after", after)
                .query("limit", &limit)
        };
        let jobs = pages::collect(self.limit.unwrap_or(usize::MAX), call).await?;
        Ok(look.answer(&jobs, view::many))
    }
}

impl Create {
    async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let mut body = self.definition.over(&Value::Null)?;
        // A new job needs no word about what it does not have.
        body.retain(|_, value| !value.is_null());
        body.insert("name".to_owned(), json!(self.name));
        if self.disabled {
            body.insert("enabled".to_owned(), json!(false));
        }
        let job = client.post("/jobs").body(Value::Object(body)).send().await?.body;
        Ok(look.answer(&job, view::created))
    }
}

impl Update {
    async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let read = client.get(address(&self.name)?).send().await?;
        let before = &read.body;
        let mut fields = self.definition.over(before)?;
        for (field, dropped) in [("args", &self.without_arg), ("env", &self.without_env)] {
            if dropped.is_empty() {
                continue;
            }
            let kept = fields.entry(field).or_insert_with(|| before[field].clone());
            for name in dropped {
                if kept.as_object_mut().and_then(|map| map.remove(name)).is_none() {
                    let message = format!("{} has no {name} in its {field}", self.name);
                    return Err(Failure::bad_usage(message));
                }
            }
        }
        let mut after = before.clone();
        for (name, value) in fields {
            after[name] = value;
        }
        let patch = difference::patch(before, &after);
        if patch == json!({}) {
            let nothing = |_: &Look, _: &Value| format!("{}: nothing to change\n", self.name);
            return Ok(look.answer(&json!({ "job": before, "withdrawn": [] }), nothing));
        }
        let call = client.patch(address(&self.name)?).if_match(read.version());
        let answer = call.body(patch).send().await?.body;
        Ok(look.answer(&answer, |look, answer| {
            let changes = difference::changes(before, &after);
            format!("{}{}", view::changes(&changes), view::changed(look, answer))
        }))
    }
}

impl Delete {
    async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let read = client.get(address(&self.name)?).send().await?;
        let told = view::one_without_secrets(look, &read.body);
        self.consent.ask(&format!(
            "this job will be deleted, and runs of it that wait are withdrawn:\n\n{told}\n"
        ))?;
        let call = client.delete(address(&self.name)?).if_match(read.version());
        let answer = call.send().await?.body;
        Ok(look.answer(&answer, |_, answer| {
            let withdrawn = view::withdrawn(answer);
            format!("deleted {}{withdrawn}\n", self.name)
        }))
    }
}

impl Preview {
    async fn run(&self, client: &Client, look: &Look, now: Timestamp) -> Result<String, Failure> {
        let job = client.get(address(&self.name)?).send().await?.body;
        let schedule = &job["trigger"]["schedule"];
        if schedule.is_null() {
            let message = format!("{} has no schedule: {}", self.name, view::when(&job));
            return Err(Failure::refused(message));
        }
        let mut body = json!({ "schedule": schedule, "count": self.count });
        if let Some(from) = typed::instant_if("--from", self.from.as_deref(), From::Ahead, now)? {
            body["from"] = json!(from);
        }
        let answer = client.post("/schedules/preview").body(body).send().await?.body;
        Ok(look.answer(&answer, |look, answer| view::preview(look, &job, answer)))
    }
}

/// What became of runs that waited, if any did.
fn withdrawn_count(answer: &Value) -> Option<String> {
    match items(answer, "withdrawn").len() {
        0 => None,
        count => Some(format!("{} withdrawn", counted(count, "waiting run"))),
    }
}
