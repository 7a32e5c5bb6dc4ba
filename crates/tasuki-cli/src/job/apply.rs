//! `tasuki job apply`: makes the definitions match a file, and shows the difference first.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::difference::{self, Change};
use super::file::{self, FileJob};
use super::{address, all, normal, view};
use crate::ask::Consent;
use crate::client::{Answer, Client, quoted};
use crate::output::Failure;
use crate::typed;
use crate::view::{Look, counted, items, text};

/// Make the jobs match a file: shows what would change, field by field, asks, and does it. A job that
/// somebody else changes meanwhile is left alone and told
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job apply -f jobs.toml --dry-run
  tasuki job apply -f jobs.toml
  tasuki job apply -f jobs.toml --prune --yes

A file:
  [[job]]
  name = \"hello\"
  trigger = { type = \"time\", schedule = { type = \"every\", value = \"5s\" } }
  command = [\"echo\", \"hi\"]

  [[job]]
  name = \"ship\"
  trigger = { type = \"event\", events = [\"order.paid\"], filter = { country = \"JP\" } }
  command = [\"ship-order\", \"{order}\"]
  timeout = \"10m\"
  retry = { max_retries = 3, backoff = \"1m\" }

The fields are those of tasuki job show --json. What a job leaves out is nothing, or the default;
enabled, dispatch, concurrency and parts of retry that it leaves out stay as they are.
tasuki job export writes such a file.")]
pub(super) struct Apply {
    /// The file; - is stdin
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Delete the jobs that are not in the file
    #[arg(long)]
    prune: bool,
    /// Show what would change and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    consent: Consent,
}

/// What is to be done about one job.
enum Step {
    Create { name: String, body: Value },
    Change { name: String, version: i64, patch: Value, changes: Vec<Change>, wanted: Value },
    Delete { name: String, version: i64 },
}

impl Apply {
    pub(super) async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let text = typed::file(&self.file)?;
        let wanted = file::read(&self.file.display().to_string(), &text)?;
        let there = all(client).await?;
        let (steps, unchanged) = plan(&wanted, items(&there, "items"), self.prune);
        if steps.is_empty() {
            let report = Report { unchanged, ..Report::default() };
            return Ok(look.answer(&report.json(), |_, _| "nothing to do\n".to_owned()));
        }
        let told = difference_in_words(&steps, unchanged.len());
        if self.dry_run {
            return Ok(look.answer(&plan_json(&steps, &unchanged), |_, _| told));
        }
        self.consent.ask(&format!("{told}\n"))?;
        let mut report = Report { unchanged, ..Report::default() };
        for step in &steps {
            step.take(client, &mut report).await?;
        }
        report.told(look)
    }
}

/// What it takes to get from what is there to what the file says.
fn plan(wanted: &[FileJob], there: &[Value], prune: bool) -> (Vec<Step>, Vec<String>) {
    let (mut steps, mut unchanged) = (Vec::new(), Vec::new());
    for job in wanted {
        let name = job.name.clone();
        let Some(current) = there.iter().find(|one| one["name"] == *name) else {
            steps.push(Step::Create { name, body: Value::Object(job.fields.clone()) });
            continue;
        };
        let before = normal::normal(current);
        let wanted = normal::wanted(&job.fields, current);
        let changes = difference::changes(&before, &wanted);
        if changes.is_empty() {
            unchanged.push(name);
            continue;
        }
        let patch = difference::patch(&before, &wanted);
        steps.push(Step::Change { name, version: version(current), patch, changes, wanted });
    }
    if prune {
        for job in there {
            if !wanted.iter().any(|one| job["name"] == *one.name) {
                steps.push(Step::Delete { name: text(job, "name"), version: version(job) });
            }
        }
    }
    (steps, unchanged)
}

fn version(job: &Value) -> i64 {
    job["version"].as_i64().unwrap_or_default()
}

fn difference_in_words(steps: &[Step], unchanged: usize) -> String {
    let mut told = String::new();
    for step in steps {
        match step {
            Step::Create { name, body } => {
                writeln!(told, "create {name}").expect("a string takes all");
                let mut body = body.clone();
                body["name"] = Value::Null;
                told.push_str(&view::new_fields(&difference::changes(&json!({}), &body)));
            }
            Step::Change { name, changes, .. } => {
                writeln!(told, "change {name}").expect("a string takes all");
                told.push_str(&view::changes(changes));
            }
            Step::Delete { name, .. } => {
                writeln!(told, "delete {name}").expect("a string takes all");
            }
        }
    }
    let count = |wanted: fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count();
    let created = count(|step| matches!(step, Step::Create { .. }));
    let changed = count(|step| matches!(step, Step::Change { .. }));
    let deleted = count(|step| matches!(step, Step::Delete { .. }));
    writeln!(
        told,
        "{}: {created} to create, {changed} to change, {deleted} to delete, {unchanged} unchanged",
        counted(steps.len() + unchanged, "job")
    )
    .expect("a string takes all");
    told
}

fn plan_json(steps: &[Step], unchanged: &[String]) -> Value {
    let mut plan = json!({ "create": [], "change": [], "delete": [], "unchanged": unchanged });
    for step in steps {
        let (list, entry) = match step {
            Step::Create { name, .. } => ("create", json!(name)),
            Step::Change { name, patch, .. } => ("change", json!({ "name": name, "patch": patch })),
            Step::Delete { name, .. } => ("delete", json!(name)),
        };
        if let Some(list) = plan[list].as_array_mut() {
            list.push(entry);
        }
    }
    plan
}

impl Step {
    /// Does it. What the server refuses is noted, and the others are done nevertheless; a server
    /// that is gone ends it, with what was done until then.
    async fn take(&self, client: &Client, report: &mut Report) -> Result<(), Failure> {
        let (name, call) = match self {
            Self::Create { name, body } => (name, client.post("/jobs").body(body.clone())),
            Self::Change { name, version, patch, .. } => {
                let call = client.patch(address(name)?).if_match(quoted(*version));
                (name, call.body(patch.clone()))
            }
            Self::Delete { name, version } => {
                (name, client.delete(address(name)?).if_match(quoted(*version)))
            }
        };
        match call.send().await {
            Ok(answer) => self.done(name, &answer, report),
            Err(failure) if failure.is_refusal() => {
                report.refused.push((name.clone(), failure.message().to_owned()));
            }
            Err(failure) => return Err(failure.after(report.in_words())),
        }
        Ok(())
    }

    fn done(&self, name: &str, answer: &Answer, report: &mut Report) {
        match self {
            Self::Create { .. } => report.created.push(name.to_owned()),
            Self::Delete { .. } => report.deleted.push(name.to_owned()),
            Self::Change { wanted, .. } => {
                report.changed.push(name.to_owned());
                // A merge patch cannot say everything: what came out otherwise is not kept quiet.
                let kept = normal::normal(&answer.body["job"]);
                for change in difference::changes(wanted, &kept) {
                    let (field, now) = (&change.field, view::value(&change.field, &change.after));
                    report.kept.push(format!("{name}: {field} is {now} now"));
                }
            }
        }
    }
}

/// What became of everything.
#[derive(Default)]
struct Report {
    created: Vec<String>,
    changed: Vec<String>,
    deleted: Vec<String>,
    unchanged: Vec<String>,
    refused: Vec<(String, String)>,
    kept: Vec<String>,
}

impl Report {
    fn in_words(&self) -> String {
        let mut told = String::new();
        for (word, names) in
            [("created", &self.created), ("changed", &self.changed), ("deleted", &self.deleted)]
        {
            for name in names {
                writeln!(told, "{word} {name}").expect("a string takes all");
            }
        }
        for (name, why) in &self.refused {
            writeln!(told, "left alone {name}: {why}").expect("a string takes all");
        }
        for kept in &self.kept {
            writeln!(told, "note: {kept}, not as the file says").expect("a string takes all");
        }
        told
    }

    fn json(&self) -> Value {
        let refused = self.refused.iter().map(|(name, why)| json!({ "name": name, "detail": why }));
        json!({
            "created": self.created,
            "changed": self.changed,
            "deleted": self.deleted,
            "unchanged": self.unchanged,
            "refused": refused.collect::<Vec<Value>>(),
            "notes": self.kept,
        })
    }

    fn told(&self, look: &Look) -> Result<String, Failure> {
        let told = look.answer(&self.json(), |_, _| self.in_words());
        if self.refused.is_empty() {
            return Ok(told);
        }
        let message = format!("{} left alone", counted(self.refused.len(), "job"));
        Err(Failure::refused(message)
            .after(told)
            .hint("the others are done; tasuki job apply again shows what is left"))
    }
}
