//! The report of the doctor: the checks, each with its findings.

use std::borrow::Cow;

/// Maximum number of rows that a finding lists as examples.
const MAX_EXAMPLES: usize = 10;

/// The result of all checks, in a fixed order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoctorReport {
    /// All checks, in the order in which they are shown.
    pub checks: Vec<DoctorCheck>,
}

/// One check: an invariant, and the ways in which the stored data violates it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoctorCheck {
    /// Short name: the number of an invariant of ARCHITECTURE.md, or a word such as `schema`.
    pub id: &'static str,
    /// The invariant as a sentence.
    pub promise: &'static str,
    /// Whether the check was executed. If the schema is wrong, the other checks are not.
    pub was_run: bool,
    /// The violations; empty if there is none.
    pub findings: Vec<Finding>,
}

/// One kind of violation, with the affected rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Severity of the violation.
    pub severity: Severity,
    /// Description of the problem.
    pub problem: Cow<'static, str>,
    /// The first affected rows, for example `run 7`; at most ten.
    pub examples: Vec<String>,
    /// Number of affected rows that were counted.
    pub count: u64,
    /// Whether `count` is only a minimum, because a statement returned its maximum number of rows.
    pub at_least: bool,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// An invariant is violated.
    Error,
    /// No invariant is violated yet, but an operator should examine it.
    Warning,
}

impl Severity {
    /// The name that is shown: `error` or `warning`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

const CHECKS: [(&str, &str); 18] = [
    ("schema", "the schema is complete and matches this version of tasuki"),
    ("triggers", "the triggers that refuse illegal changes exist and are enabled"),
    ("clock", "the clocks of the database and of this machine agree"),
    ("settings", "the settings are valid and consistent with each other"),
    ("I1", "an assigned or running run has a worker and a token, a waiting run has neither"),
    (
        "I2",
        "unique keys allow one run per planned time of a job and scope, one run per idempotency key, and one event per source and idempotency key",
    ),
    ("I3", "an ended run has an end time, does not wait and has no hold"),
    ("I4", "epochs only rise, and no row has a newer epoch than the current term"),
    ("I6", "every attempt is stored in exactly one place"),
    ("I7", "SUCCEEDED means exactly one succeeded attempt"),
    ("I8", "tries stay within the allowed number, and attempts are numbered without gaps"),
    ("I12", "SKIPPED means never started"),
    (
        "I13",
        "an assigned or running run of a job that allows one run at a time has the hold (the lock of the job and scope); no other run has it",
    ),
    ("I14", "nothing starts before its time, or before the previous attempt has ended"),
    ("I15", "the audit chain is intact"),
    ("I16", "no worker runs more than its slots allow"),
    ("I18", "an event that has runs is marked as processed, and records the number of its runs"),
    (
        "I19",
        "the due table contains all waiting runs and no other runs; all assigned or running runs have a lease, and no other runs have one",
    ),
];

impl DoctorReport {
    pub(super) fn new() -> Self {
        let check =
            |(id, promise)| DoctorCheck { id, promise, was_run: true, findings: Vec::new() };
        Self { checks: CHECKS.map(check).into() }
    }

    /// Whether there is no finding.
    pub fn is_clean(&self) -> bool {
        self.findings().next().is_none()
    }

    /// Whether all checks were executed.
    pub fn is_complete(&self) -> bool {
        self.checks.iter().all(|check| check.was_run)
    }

    /// Every finding, with the short name of its check.
    pub fn findings(&self) -> impl Iterator<Item = (&'static str, &Finding)> {
        self.checks.iter().flat_map(|check| check.findings.iter().map(|one| (check.id, one)))
    }

    /// Marks all checks except `schema` as not executed.
    pub(super) fn skip_all_but_schema(&mut self) {
        for check in &mut self.checks {
            check.was_run = check.id == "schema";
        }
    }

    /// Counts one more row with this problem, and keeps it as an example if there are few.
    pub(super) fn add_row(
        &mut self,
        check: &str,
        problem: impl Into<Cow<'static, str>>,
        row: String,
    ) {
        let finding = self.find_or_add(check, problem.into(), Severity::Error);
        finding.count += 1;
        if finding.examples.len() < MAX_EXAMPLES {
            finding.examples.push(row);
        }
    }

    /// Adds an error that concerns no particular row.
    pub(super) fn add_error(&mut self, check: &str, problem: impl Into<Cow<'static, str>>) {
        self.find_or_add(check, problem.into(), Severity::Error).count += 1;
    }

    /// Adds a warning.
    pub(super) fn add_warning(&mut self, check: &str, problem: impl Into<Cow<'static, str>>) {
        self.find_or_add(check, problem.into(), Severity::Warning).count += 1;
    }

    /// Marks the count of a finding as a minimum. Does nothing if there is no such finding.
    pub(super) fn mark_incomplete(&mut self, check: &str, problem: &str) {
        let findings = self.checks.iter_mut().filter(|one| one.id == check);
        for finding in
            findings.flat_map(|one| &mut one.findings).filter(|one| one.problem == problem)
        {
            finding.at_least = true;
        }
    }

    fn find_or_add(
        &mut self,
        check: &str,
        problem: Cow<'static, str>,
        severity: Severity,
    ) -> &mut Finding {
        let known = self.checks.iter_mut().find(|one| one.id == check);
        let findings = &mut known.expect("the id of a check is in CHECKS").findings;
        let index = findings.iter().position(|one| one.problem == problem).unwrap_or_else(|| {
            let examples = Vec::new();
            findings.push(Finding { severity, problem, examples, count: 0, at_least: false });
            findings.len() - 1
        });
        &mut findings[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_counts_all_rows_and_lists_the_first_ten() {
        let mut report = DoctorReport::new();
        assert!(report.is_clean() && report.is_complete());
        for run in 0..25 {
            report.add_row("I8", "a gap", format!("run {run}"));
        }
        report.mark_incomplete("I8", "a gap");
        report.mark_incomplete("I8", "something else");
        let findings: Vec<_> = report.findings().collect();
        let [("I8", finding)] = findings[..] else { panic!("{findings:?}") };
        assert_eq!(
            (finding.count, finding.at_least, finding.examples.len()),
            (25, true, MAX_EXAMPLES)
        );
    }
}
