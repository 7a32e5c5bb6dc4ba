//! What a doctor has to say.

use std::borrow::Cow;

/// So many rows are named for each finding.
const EXAMPLES: usize = 10;

/// Everything that was looked at, in order, and what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// One for each promise.
    pub checks: Vec<Check>,
}

/// One promise, and whether it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Its short name: an invariant of ARCHITECTURE.md, or a word.
    pub id: &'static str,
    /// The promise.
    pub promise: &'static str,
    /// Whether it could be looked at: without the right schema nothing else is.
    pub done: bool,
    /// How it is broken.
    pub findings: Vec<Finding>,
}

/// One way in which a promise is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub what: Cow<'static, str>,
    /// The first few of what it concerns: `run 7`.
    pub examples: Vec<String>,
    /// How many were counted.
    pub count: u64,
    /// Whether there may be more: counting has an end.
    pub at_least: bool,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// A promise is broken.
    Error,
    /// Nothing is broken yet, but somebody should look.
    Warning,
}

impl Severity {
    /// As it is shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

const CHECKS: [(&str, &str); 18] = [
    ("schema", "the schema is the one this tasuki knows, complete"),
    ("triggers", "the triggers that refuse illegal changes are there and enabled"),
    ("clock", "the clocks of the database and of this machine agree"),
    ("settings", "the settings are valid and agree with one another"),
    ("I1", "a run has a live attempt exactly while it is assigned or running"),
    ("I2", "unique keys allow one run per slot and idempotency key, one event per dedupe key"),
    ("I3", "what has ended stays ended: it has an end, does not wait and holds nothing"),
    ("I4", "epochs only rise, and no write is ahead of the term"),
    ("I6", "every attempt stands in one place"),
    ("I7", "SUCCEEDED means exactly one succeeded attempt"),
    ("I8", "tries stay within what is allowed, attempts are numbered without gaps"),
    ("I12", "SKIPPED means never started"),
    (
        "I13",
        "a run of a job that allows one at a time has the hold while it is carried, nobody else has",
    ),
    ("I14", "nothing starts before its time, or before the attempt before it has ended"),
    ("I15", "the chain of the audit verifies"),
    ("I16", "no worker runs more than it has room for"),
    ("I18", "an event is processed exactly when its runs exist"),
    ("I19", "a run is in due exactly while it waits, under a lease exactly while it is carried"),
];

impl Report {
    pub(super) fn new() -> Self {
        let check = |(id, promise)| Check { id, promise, done: true, findings: Vec::new() };
        Self { checks: CHECKS.map(check).into() }
    }

    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings().next().is_none()
    }

    /// Whether everything was looked at.
    pub fn is_complete(&self) -> bool {
        self.checks.iter().all(|check| check.done)
    }

    /// Every finding, with the short name of its check.
    pub fn findings(&self) -> impl Iterator<Item = (&'static str, &Finding)> {
        self.checks.iter().flat_map(|check| check.findings.iter().map(|one| (check.id, one)))
    }

    /// Nothing but the schema could be looked at.
    pub(super) fn only_the_schema(&mut self) {
        for check in &mut self.checks {
            check.done = check.id == "schema";
        }
    }

    /// One more row that shows this.
    pub(super) fn found(&mut self, check: &str, what: impl Into<Cow<'static, str>>, row: String) {
        let finding = self.finding(check, what.into(), Severity::Error);
        finding.count += 1;
        if finding.examples.len() < EXAMPLES {
            finding.examples.push(row);
        }
    }

    /// Something that is wrong as a whole.
    pub(super) fn fault(&mut self, check: &str, what: impl Into<Cow<'static, str>>) {
        self.finding(check, what.into(), Severity::Error).count += 1;
    }

    /// Something that somebody should look at.
    pub(super) fn warn(&mut self, check: &str, what: impl Into<Cow<'static, str>>) {
        self.finding(check, what.into(), Severity::Warning).count += 1;
    }

    /// There may be more of this, if there is any.
    pub(super) fn more(&mut self, check: &str, what: &str) {
        let findings = self.checks.iter_mut().filter(|one| one.id == check);
        for finding in findings.flat_map(|one| &mut one.findings).filter(|one| one.what == what) {
            finding.at_least = true;
        }
    }

    fn finding(
        &mut self,
        check: &str,
        what: Cow<'static, str>,
        severity: Severity,
    ) -> &mut Finding {
        let known = self.checks.iter_mut().find(|one| one.id == check);
        let findings = &mut known.expect("every check is in the list").findings;
        let index = findings.iter().position(|one| one.what == what).unwrap_or_else(|| {
            let examples = Vec::new();
            findings.push(Finding { severity, what, examples, count: 0, at_least: false });
            findings.len() - 1
        });
        &mut findings[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_counted_and_the_first_few_are_named() {
        let mut report = Report::new();
        assert!(report.is_clean() && report.is_complete());
        for run in 0..25 {
            report.found("I8", "a gap", format!("run {run}"));
        }
        report.more("I8", "a gap");
        report.more("I8", "something else");
        let findings: Vec<_> = report.findings().collect();
        let [("I8", finding)] = findings[..] else { panic!("{findings:?}") };
        assert_eq!((finding.count, finding.at_least, finding.examples.len()), (25, true, EXAMPLES));
    }
}
