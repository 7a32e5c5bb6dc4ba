//! `tasuki doctor`

use std::fmt::Write as _;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};
use tasuki_store::{Check, Finding, Report};

use crate::database::DataOrDatabase;
use crate::output::Failure;

/// Look for everything in a database that cannot be: its schema, its rules, its clock, its settings,
/// and every run. Changes nothing; exit 1 if anything is found.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki doctor
  tasuki doctor --data /var/lib/tasuki
  tasuki doctor --json --database-url postgres://tasuki@localhost/tasuki")]
pub(crate) struct Doctor {
    #[command(flatten)]
    place: DataOrDatabase,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn run(&self, clock: impl Fn() -> Timestamp) -> Result<String, Failure> {
        let report = self.place.database().with(false, async |store| store.doctor(clock).await)?;
        let text = if self.json { as_json(&report) } else { in_words(&report) };
        match report.findings().count() {
            0 => Ok(text),
            1 => Err(sick("1 finding".to_owned(), &report, text)),
            many => Err(sick(format!("{many} findings"), &report, text)),
        }
    }
}

fn sick(message: String, report: &Report, text: String) -> Failure {
    let hint = match report.is_complete() {
        true => "docs/operating/doctor.md says what each means and what to do",
        false => "the rest can be looked at once the schema is right: tasuki migrate",
    };
    Failure::refused(message).after(text).hint(hint)
}

fn in_words(report: &Report) -> String {
    let mut text = String::new();
    for check in &report.checks {
        let word = match check {
            Check { done: false, .. } => "not done",
            Check { findings, .. } if findings.is_empty() => "ok",
            Check { .. } => "FOUND",
        };
        writeln!(text, "{word:8}  {:8}  {}", check.id, check.promise).expect("a string takes all");
        for finding in &check.findings {
            writeln!(text, "{:20}{}", "", finding_in_words(finding)).expect("a string takes all");
        }
    }
    text
}

fn finding_in_words(finding: &Finding) -> String {
    let mut text = format!("{}: {}", finding.severity.as_str(), finding.what);
    if !finding.examples.is_empty() {
        let more = if finding.count > finding.examples.len() as u64 { ", …" } else { "" };
        let least = if finding.at_least { "at least " } else { "" };
        let examples = finding.examples.join(", ");
        write!(text, " ({least}{}: {examples}{more})", finding.count).expect("a string takes all");
    }
    text
}

fn as_json(report: &Report) -> String {
    let finding = |one: &Finding| {
        json!({
            "severity": one.severity.as_str(),
            "what": one.what,
            "count": one.count,
            "at_least": one.at_least,
            "examples": one.examples,
        })
    };
    let check = |one: &Check| {
        let findings: Vec<Value> = one.findings.iter().map(finding).collect();
        json!({ "id": one.id, "promise": one.promise, "done": one.done, "findings": findings })
    };
    let checks: Vec<Value> = report.checks.iter().map(check).collect();
    let clean = report.is_clean();
    format!("{:#}\n", json!({ "clean": clean, "complete": report.is_complete(), "checks": checks }))
}
