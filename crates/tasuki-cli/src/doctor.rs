//! `tasuki doctor`: checks a database for inconsistencies, without changing it.

use std::fmt::Write as _;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};
use tasuki_store::{DoctorCheck, DoctorReport, Finding};

use crate::database_access::DatabaseOrDataDirOptions;
use crate::failure::Failure;

/// Check a database for inconsistencies: its schema, triggers, clock, settings and every run. Changes nothing; exits
/// with 1 if there is a finding
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki doctor
  tasuki doctor --data /var/lib/tasuki
  tasuki doctor --json --database-url postgres://tasuki@localhost/tasuki")]
pub(crate) struct DoctorCommand {
    #[command(flatten)]
    target: DatabaseOrDataDirOptions,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl DoctorCommand {
    pub(crate) fn run(&self, clock: impl Fn() -> Timestamp) -> Result<String, Failure> {
        let report = self
            .target
            .database()
            .with_store(false, async |store| store.check_invariants(clock).await)?;
        let text = if self.json { as_json(&report) } else { as_text(&report) };
        match report.findings().count() {
            0 => Ok(text),
            1 => Err(findings_failure("1 finding".to_owned(), &report, text)),
            many => Err(findings_failure(format!("{many} findings"), &report, text)),
        }
    }
}

fn findings_failure(message: String, report: &DoctorReport, text: String) -> Failure {
    let hint = match report.is_complete() {
        true => "docs/operating/doctor.md describes each finding and its repair",
        false => "the other checks need a correct schema; run `tasuki migrate` first",
    };
    Failure::new(message).with_stdout(text).hint(hint)
}

fn as_text(report: &DoctorReport) -> String {
    let mut text = String::new();
    for check in &report.checks {
        let status = match check {
            DoctorCheck { was_run: false, .. } => "not done",
            DoctorCheck { findings, .. } if findings.is_empty() => "ok",
            DoctorCheck { .. } => "FOUND",
        };
        // After FOUND, the promise without this word would read as what was found.
        let rule = if status == "FOUND" { "rule: " } else { "" };
        writeln!(text, "{status:8}  {:8}  {rule}{}", check.id, check.promise)
            .expect("writing to a string does not fail");
        for finding in &check.findings {
            writeln!(text, "{:20}{}", "", finding_as_text(finding))
                .expect("writing to a string does not fail");
        }
    }
    text
}

fn finding_as_text(finding: &Finding) -> String {
    let mut text = format!("{}: {}", finding.severity.as_str(), finding.problem);
    if !finding.examples.is_empty() {
        let more = if finding.count > finding.examples.len() as u64 { ", …" } else { "" };
        let qualifier = if finding.at_least { "at least " } else { "" };
        let examples = finding.examples.join(", ");
        write!(text, " ({qualifier}{}: {examples}{more})", finding.count)
            .expect("writing to a string does not fail");
    }
    text
}

fn as_json(report: &DoctorReport) -> String {
    let finding = |one: &Finding| {
        json!({
            "severity": one.severity.as_str(),
            "what": one.problem,
            "count": one.count,
            "at_least": one.at_least,
            "examples": one.examples,
        })
    };
    let check = |one: &DoctorCheck| {
        let findings: Vec<Value> = one.findings.iter().map(finding).collect();
        json!({ "id": one.id, "promise": one.promise, "done": one.was_run, "findings": findings })
    };
    let checks: Vec<Value> = report.checks.iter().map(check).collect();
    let clean = report.is_clean();
    format!("{:#}\n", json!({ "clean": clean, "complete": report.is_complete(), "checks": checks }))
}
