//! The definition of a job: its validation, its columns, and its form in the audit log.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tasuki_core::plan_scheduled_runs::MisfirePolicy;
use tasuki_core::retry::Backoff;
use tasuki_core::{InvalidInput, Schedule};

use super::{Job, JobVersion, JobVersionSpec};
use crate::Error;
use crate::db::instant::duration_to_micros;
use crate::db::{Params, Row, params};
use crate::validate::{self, MAX_JSON_BYTES, MAX_KEY_CHARS};

/// Upper bound of `max_attempts` and `max_releases`. A higher number would only hide a job that never succeeds.
const MAX_TRIES: u32 = 1_000_000;
/// Upper bound of `backoff_cap`. A job that waits longer than that needs a schedule instead of a retry.
const MAX_BACKOFF: Duration = Duration::from_secs(366 * 86_400);

/// What creates the runs of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Trigger {
    /// A schedule creates runs.
    Time {
        /// The schedule.
        schedule: Schedule,
        /// What to do with missed slots; `None`: as set in the settings.
        misfire: Option<MisfirePolicy>,
    },
    /// Events create runs.
    Event {
        /// Event types that create a run.
        types: BTreeSet<String>,
        /// Condition that an event must also meet, as JSON.
        filter: Option<String>,
    },
    /// Only requests (API or client) create runs.
    Task,
}

impl Trigger {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Time { .. } => "time",
            Self::Event { .. } => "event",
            Self::Task => "task",
        }
    }
}

/// Everything that a user defines when creating or editing a job, except its name, which never changes.
#[derive(Debug, Clone, PartialEq)]
pub struct JobDefinition {
    /// What creates its runs.
    pub trigger: Trigger,
    /// Whether the job creates runs at all.
    pub enabled: bool,
    /// What its runs execute, and with which limits.
    pub spec: JobVersionSpec,
}

impl JobDefinition {
    /// Refuses values that a database cannot store or that no run could comply with.
    pub(super) fn check(&self) -> Result<(), InvalidInput> {
        match &self.trigger {
            Trigger::Time { schedule, misfire } => {
                check_short_text("schedule value", schedule.value())?;
                misfire.map(MisfirePolicy::validate).transpose()?;
            }
            Trigger::Event { types, filter } => {
                if types.is_empty() {
                    return Err(InvalidInput::with_value("event types", "", "at least one type"));
                }
                types.iter().try_for_each(|name| check_key("event type", name))?;
                filter
                    .iter()
                    .try_for_each(|filter| check_json("event filter", filter).map(drop))?;
            }
            Trigger::Task => {}
        }
        self.spec.check()
    }

    /// Returns the job with this definition. The write increments its version.
    pub(super) fn apply_to(&self, job: &Job) -> Job {
        let (schedule, misfire) = match &self.trigger {
            Trigger::Time { schedule, misfire } => (Some(schedule), *misfire),
            Trigger::Event { .. } | Trigger::Task => (None, None),
        };
        let (event_types, event_filter) = match &self.trigger {
            Trigger::Event { types, filter } => (types.clone(), filter.clone()),
            Trigger::Time { .. } | Trigger::Task => (BTreeSet::new(), None),
        };
        let rule = schedule.and_then(Schedule::dst_rule);
        let newest = match job.newest.spec == self.spec {
            true => job.newest.clone(),
            false => {
                let version = job.version + 1;
                JobVersion { job: job.id, version, spec: self.spec.clone() }
            }
        };
        Job {
            enabled: self.enabled,
            trigger: self.trigger.as_str().to_owned(),
            schedule_type: schedule.map(|schedule| schedule.kind().to_string()),
            schedule_value: schedule.map(|schedule| schedule.value().to_owned()),
            zone: schedule.map(|schedule| schedule.zone().name().to_owned()),
            dst_gap: rule.map(|rule| rule.gap.to_string()),
            dst_fold: rule.map(|rule| rule.fold.to_string()),
            misfire,
            event_types,
            event_filter,
            newest,
            ..job.clone()
        }
    }
}

impl JobVersionSpec {
    fn check(&self) -> Result<(), InvalidInput> {
        if !check_json("spec", &self.spec)?.is_object() {
            return Err(InvalidInput::with_described_value("spec", "other JSON", "a JSON object"));
        }
        if !self.lane.is_empty() {
            check_key("lane", &self.lane)?;
        }
        self.labels.iter().try_for_each(|label| check_short_text("label", label))?;
        for (field, number) in
            [("max_attempts", self.max_attempts), ("max_releases", self.max_releases)]
        {
            if !(1..=MAX_TRIES).contains(&number) {
                return Err(InvalidInput::with_described_value(
                    field,
                    number.to_string(),
                    "1 to 1000000",
                ));
            }
        }
        if self.backoff_cap > MAX_BACKOFF {
            let found = format!("{:?}", self.backoff_cap);
            return Err(InvalidInput::with_described_value(
                "backoff cap",
                found,
                "at most 366 days",
            ));
        }
        Backoff::new(self.backoff, self.backoff_cap, self.jitter_percent).map(drop)
    }
}

/// Checks a text that is shown to users: not empty, without control characters, not too long.
fn check_short_text(field: &'static str, text: &str) -> Result<(), InvalidInput> {
    let is_visible = !text.trim().is_empty() && !text.chars().any(char::is_control);
    match is_visible && text.chars().count() <= MAX_KEY_CHARS {
        true => Ok(()),
        false => Err(InvalidInput::with_value(field, text, "1 to 191 visible characters")),
    }
}

fn check_key(field: &'static str, key: &str) -> Result<(), InvalidInput> {
    check_short_text(field, key)?;
    validate::check_key(field, key)
}

/// Parses a JSON text. The error does not quote the text, because it may contain a secret.
fn check_json(field: &'static str, text: &str) -> Result<Value, InvalidInput> {
    if text.len() > MAX_JSON_BYTES {
        return Err(InvalidInput::with_described_value(
            field,
            "a longer text",
            "at most 1048576 bytes",
        ));
    }
    serde_json::from_str(text)
        .map_err(|_| InvalidInput::with_described_value(field, "something else", "JSON"))
}

/// The columns of the table `tasuki_job` that contain the definition.
pub(super) fn definition_columns(job: &Job) -> Params<'static> {
    let instant = |at: Option<Timestamp>| at.map(Timestamp::as_microsecond);
    let (misfire, misfire_value) = misfire_columns(job.misfire).unzip();
    params! {
        name: job.name.clone(),
        enabled: i64::from(job.enabled),
        trigger_type: job.trigger.clone(),
        schedule_type: job.schedule_type.clone(),
        schedule_value: job.schedule_value.clone(),
        zone: job.zone.clone(),
        dst_gap: job.dst_gap.clone(),
        dst_fold: job.dst_fold.clone(),
        misfire: misfire.map(str::to_owned),
        misfire_value: misfire_value.flatten(),
        event_types: string_set_json(&job.event_types),
        event_filter: job.event_filter.clone(),
        paused_at: instant(job.paused_at),
        paused_until: instant(job.paused_until),
        paused_reason: job.paused_reason.clone(),
        deleted_at: instant(job.deleted_at),
        updated_at: job.updated_at.as_microsecond(),
    }
}

fn misfire_columns(misfire: Option<MisfirePolicy>) -> Option<(&'static str, Option<i64>)> {
    Some(match misfire? {
        MisfirePolicy::SkipLate(tolerance) => ("skip_late", Some(duration_to_micros(tolerance))),
        MisfirePolicy::LatestOnly => ("latest_only", None),
        MisfirePolicy::EveryWithin(window) => ("every_within", Some(duration_to_micros(window))),
        MisfirePolicy::AtMost(count) => ("at_most", Some(i64::from(count))),
    })
}

pub(super) fn read_misfire(row: &Row) -> Result<Option<MisfirePolicy>, Error> {
    let Some(policy) = row.opt_text("misfire")? else { return Ok(None) };
    let value = row.opt_int("misfire_value")?.unwrap_or_default();
    let duration = Duration::from_micros(value.max(0) as u64);
    match policy.as_str() {
        "skip_late" => Ok(Some(MisfirePolicy::SkipLate(duration))),
        "latest_only" => Ok(Some(MisfirePolicy::LatestOnly)),
        "every_within" => Ok(Some(MisfirePolicy::EveryWithin(duration))),
        "at_most" => Ok(Some(MisfirePolicy::AtMost(value as u32))),
        _ => Err(Error::broken(format!("the stored misfire policy {policy} is unknown"))),
    }
}

/// A set of strings as a JSON list; `None` if it is empty.
pub(super) fn string_set_json(strings: &BTreeSet<String>) -> Option<String> {
    (!strings.is_empty()).then(|| json!(strings).to_string())
}

/// Reads a column that contains a set of strings as a JSON list; null means an empty set.
pub(crate) fn read_string_set(row: &Row, name: &str) -> Result<BTreeSet<String>, Error> {
    let Some(text) = row.opt_text(name)? else { return Ok(BTreeSet::new()) };
    serde_json::from_str(&text)
        .map_err(|_| Error::broken(format!("the column {name} is not a JSON list of strings")))
}

/// The job as shown in an audit entry. The command may contain a secret, and audit entries are kept forever, so an
/// entry contains only the version, under which the command can be read, and a hash of the spec, which shows whether
/// it is unchanged.
pub(super) fn audit_json(job: &Job) -> Value {
    let JobVersion { version, spec, .. } = &job.newest;
    let digest = Sha256::digest(&spec.spec);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let (misfire, misfire_value) = misfire_columns(job.misfire).unzip();
    json!({
        "name": job.name,
        "version": job.version,
        "enabled": job.enabled,
        "deleted": job.deleted_at.is_some(),
        "trigger": job.trigger,
        "schedule_type": job.schedule_type,
        "schedule_value": job.schedule_value,
        "zone": job.zone,
        "dst_gap": job.dst_gap,
        "dst_fold": job.dst_fold,
        "misfire": misfire,
        "misfire_value": misfire_value.flatten(),
        "event_types": job.event_types,
        "event_filter": job.event_filter,
        "paused_at": job.paused_at.map(|at| at.to_string()),
        "paused_until": job.paused_until.map(|at| at.to_string()),
        "paused_reason": job.paused_reason,
        "spec": {
            "version": version,
            "sha256": digest,
            "kind": spec.kind.as_str(),
            "lane": spec.lane,
            "concurrency": spec.concurrency.as_str(),
            "max_attempts": spec.max_attempts,
            "max_releases": spec.max_releases,
            "backoff_ms": spec.backoff.as_millis() as u64,
            "backoff_cap_ms": spec.backoff_cap.as_millis() as u64,
            "jitter_percent": spec.jitter_percent,
            "retry_lost": spec.retry_lost,
            "labels": spec.labels,
        },
    })
}
