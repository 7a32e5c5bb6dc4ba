//! `tasuki job apply`: shows the differences between a file and the jobs on the server, then changes the jobs to match
//! the file.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::file::{self, FileJob};
use super::job_changes::{self, FieldChange};
use super::{fetch_all_jobs, job_path, normalize, view};
use crate::client::{ApiClient, ApiResponse, format_etag};
use crate::confirmation_prompt::Confirmation;
use crate::failure::Failure;
use crate::flag_values;
use crate::view::{OutputStyle, count_with_noun, field_items, field_text};

/// Create and change jobs so that they match a file; with --prune, also delete all other jobs. Shows the changes field
/// by field and asks for a confirmation. If another user changes a job at the same time, this command leaves that job
/// unchanged and prints that the change was refused
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

The file uses the field names of `tasuki job show --json`. If the file does not contain a field of a
job, this command resets the field. Exceptions: enabled, dispatch, concurrency, retry and each field
inside retry keep their current values. `tasuki job export` writes such a file.")]
pub(super) struct Apply {
    /// TOML file with jobs; - is stdin
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Delete jobs that are not in the file
    #[arg(long)]
    prune: bool,
    /// Show the changes without applying them
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    confirmation: Confirmation,
}

/// A planned change of one job.
enum PlannedChange {
    Create { name: String, body: Value },
    Change { name: String, version: i64, patch: Value, changes: Vec<FieldChange>, desired: Value },
    Delete { name: String, version: i64 },
}

impl Apply {
    pub(super) async fn run(
        &self,
        client: &ApiClient,
        style: &OutputStyle,
    ) -> Result<String, Failure> {
        let text = flag_values::read_file_or_stdin(&self.file)?;
        let desired = file::parse(&self.file.display().to_string(), &text)?;
        let existing = fetch_all_jobs(client).await?;
        let (planned, unchanged) =
            plan_changes(&desired, field_items(&existing, "items"), self.prune);
        if planned.is_empty() {
            let report = ApplyReport { unchanged, ..ApplyReport::default() };
            return Ok(style.render(&report.json(), |_, _| "no changes\n".to_owned()));
        }
        let output = describe_plan(&planned, unchanged.len());
        if self.dry_run {
            return Ok(style.render(&plan_json(&planned, &unchanged), |_, _| output));
        }
        self.confirmation.require(&format!("{output}\n"))?;
        let mut report = ApplyReport { unchanged, ..ApplyReport::default() };
        for change in &planned {
            change.apply(client, &mut report).await?;
        }
        report.outcome(style)
    }
}

/// Plans the changes from the existing jobs to the jobs in the file. Also returns the names of unchanged jobs.
fn plan_changes(
    desired: &[FileJob],
    existing: &[Value],
    prune: bool,
) -> (Vec<PlannedChange>, Vec<String>) {
    let (mut planned, mut unchanged) = (Vec::new(), Vec::new());
    for job in desired {
        let name = job.name.clone();
        let Some(current) = existing.iter().find(|one| one["name"] == *name) else {
            planned.push(PlannedChange::Create { name, body: Value::Object(job.fields.clone()) });
            continue;
        };
        let before = normalize::normalize_job(current);
        let desired = normalize::desired_job(&job.fields, current);
        let changes = job_changes::list_changed_fields(&before, &desired);
        if changes.is_empty() {
            unchanged.push(name);
            continue;
        }
        let patch = job_changes::compute_merge_patch(&before, &desired);
        planned.push(PlannedChange::Change {
            name,
            version: version(current),
            patch,
            changes,
            desired,
        });
    }
    if prune {
        for job in existing {
            if !desired.iter().any(|one| job["name"] == *one.name) {
                planned.push(PlannedChange::Delete {
                    name: field_text(job, "name"),
                    version: version(job),
                });
            }
        }
    }
    (planned, unchanged)
}

fn version(job: &Value) -> i64 {
    job["version"].as_i64().unwrap_or_default()
}

fn describe_plan(planned: &[PlannedChange], unchanged: usize) -> String {
    let mut output = String::new();
    for change in planned {
        match change {
            PlannedChange::Create { name, body } => {
                writeln!(output, "create {name}").expect("writing to a string does not fail");
                let mut body = body.clone();
                body["name"] = Value::Null;
                output.push_str(&view::render_new_fields(&job_changes::list_changed_fields(
                    &json!({}),
                    &body,
                )));
            }
            PlannedChange::Change { name, changes, .. } => {
                writeln!(output, "change {name}").expect("writing to a string does not fail");
                output.push_str(&view::render_changes(changes));
            }
            PlannedChange::Delete { name, .. } => {
                writeln!(output, "delete {name}").expect("writing to a string does not fail");
            }
        }
    }
    let count = |desired: fn(&PlannedChange) -> bool| {
        planned.iter().filter(|change| desired(change)).count()
    };
    let created = count(|change| matches!(change, PlannedChange::Create { .. }));
    let changed = count(|change| matches!(change, PlannedChange::Change { .. }));
    let deleted = count(|change| matches!(change, PlannedChange::Delete { .. }));
    writeln!(
        output,
        "{}: {created} to create, {changed} to change, {deleted} to delete, {unchanged} unchanged",
        count_with_noun(planned.len() + unchanged, "job")
    )
    .expect("writing to a string does not fail");
    output
}

fn plan_json(planned: &[PlannedChange], unchanged: &[String]) -> Value {
    let mut plan = json!({ "create": [], "change": [], "delete": [], "unchanged": unchanged });
    for change in planned {
        let (list, entry) = match change {
            PlannedChange::Create { name, .. } => ("create", json!(name)),
            PlannedChange::Change { name, patch, .. } => {
                ("change", json!({ "name": name, "patch": patch }))
            }
            PlannedChange::Delete { name, .. } => ("delete", json!(name)),
        };
        if let Some(list) = plan[list].as_array_mut() {
            list.push(entry);
        }
    }
    plan
}

impl PlannedChange {
    /// Applies the change. A refusal by the server is recorded in the report, and the other changes go on. Any other
    /// failure, such as an unreachable server, ends the command with a report of the changes so far.
    async fn apply(&self, client: &ApiClient, report: &mut ApplyReport) -> Result<(), Failure> {
        let (name, request) = match self {
            Self::Create { name, body } => (name, client.post("/jobs").body(body.clone())),
            Self::Change { name, version, patch, .. } => {
                let request = client.patch(job_path(name)?).if_match(format_etag(*version));
                (name, request.body(patch.clone()))
            }
            Self::Delete { name, version } => {
                (name, client.delete(job_path(name)?).if_match(format_etag(*version)))
            }
        };
        match request.send().await {
            Ok(response) => self.record_success(name, &response, report),
            Err(failure) if failure.is_refused_by_server() => {
                report.refused.push((name.clone(), failure.message().to_owned()));
            }
            Err(failure) => return Err(failure.with_stdout(report.as_text())),
        }
        Ok(())
    }

    fn record_success(&self, name: &str, response: &ApiResponse, report: &mut ApplyReport) {
        match self {
            Self::Create { .. } => report.created.push(name.to_owned()),
            Self::Delete { .. } => report.deleted.push(name.to_owned()),
            Self::Change { desired, .. } => {
                report.changed.push(name.to_owned());
                // The server may store a field differently than the file has it (a merge patch cannot express every
                // change), so differences are reported.
                let notes = normalize::normalize_job(&response.body["job"]);
                for change in job_changes::list_changed_fields(desired, &notes) {
                    let (field, now) =
                        (&change.field, view::render_value(&change.field, &change.after));
                    report.notes.push(format!("{name}: {field} is now {now}"));
                }
            }
        }
    }
}

/// The result of all changes.
#[derive(Default)]
struct ApplyReport {
    created: Vec<String>,
    changed: Vec<String>,
    deleted: Vec<String>,
    unchanged: Vec<String>,
    refused: Vec<(String, String)>,
    notes: Vec<String>,
}

impl ApplyReport {
    fn as_text(&self) -> String {
        let mut output = String::new();
        for (verb, names) in
            [("created", &self.created), ("changed", &self.changed), ("deleted", &self.deleted)]
        {
            for name in names {
                writeln!(output, "{verb} {name}").expect("writing to a string does not fail");
            }
        }
        for (name, reason) in &self.refused {
            writeln!(output, "refused {name}: {reason}")
                .expect("writing to a string does not fail");
        }
        for notes in &self.notes {
            writeln!(output, "note: {notes}, which differs from the file")
                .expect("writing to a string does not fail");
        }
        output
    }

    fn json(&self) -> Value {
        let refused =
            self.refused.iter().map(|(name, reason)| json!({ "name": name, "detail": reason }));
        json!({
            "created": self.created,
            "changed": self.changed,
            "deleted": self.deleted,
            "unchanged": self.unchanged,
            "refused": refused.collect::<Vec<Value>>(),
            "notes": self.notes,
        })
    }

    fn outcome(&self, style: &OutputStyle) -> Result<String, Failure> {
        let output = style.render(&self.json(), |_, _| self.as_text());
        if self.refused.is_empty() {
            return Ok(output);
        }
        let count = count_with_noun(self.refused.len(), "job");
        let message = format!("the server refused the changes of {count}");
        Err(Failure::new(message).with_stdout(output).hint(
            "all other changes were applied; repeat the command with --dry-run to see the changes that are left",
        ))
    }
}
