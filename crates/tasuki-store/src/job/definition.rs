//! What may be said of a job, how it is stored, and how the audit tells it.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tasuki_core::misfire::Misfire;
use tasuki_core::retry::Backoff;
use tasuki_core::{Invalid, Schedule};

use super::{Job, JobSpec, JobVersion};
use crate::Error;
use crate::check::{self, LONGEST_JSON, LONGEST_WORD};
use crate::db::{Params, Row, params};
use crate::run::micros;

/// More tries or rounds than anybody waits for.
const MOST_TRIES: u32 = 1_000_000;
/// A longer wait is a schedule.
const LONGEST_WAIT: Duration = Duration::from_secs(366 * 86_400);

/// What starts a job's runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Trigger {
    /// A schedule.
    Time {
        /// When.
        schedule: Schedule,
        /// What becomes of missed slots; `None`: what the settings say.
        misfire: Option<Misfire>,
    },
    /// Events.
    Event {
        /// Of these types.
        types: BTreeSet<String>,
        /// Those of which this is true, as JSON.
        filter: Option<String>,
    },
    /// Only requests.
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

/// Everything people say of a job when they make or edit it; its name apart, which it keeps.
#[derive(Debug, Clone, PartialEq)]
pub struct JobDefinition {
    /// What starts it.
    pub trigger: Trigger,
    /// Whether it makes runs at all.
    pub enabled: bool,
    /// What its runs are made of.
    pub spec: JobSpec,
}

impl JobDefinition {
    /// Refuses what no database would take, or no run could keep.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        match &self.trigger {
            Trigger::Time { schedule, misfire } => {
                check_word("schedule value", schedule.value())?;
                misfire.map(Misfire::checked).transpose()?;
            }
            Trigger::Event { types, filter } => {
                if types.is_empty() {
                    return Err(Invalid::typed("event types", "", "at least one type"));
                }
                types.iter().try_for_each(|word| check_key("event type", word))?;
                filter
                    .iter()
                    .try_for_each(|filter| check_json("event filter", filter).map(drop))?;
            }
            Trigger::Task => {}
        }
        self.spec.check()
    }

    /// The job as it is after this edit. Its number goes up with the write.
    pub(super) fn onto(&self, job: &Job) -> Job {
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

impl JobSpec {
    fn check(&self) -> Result<(), Invalid> {
        if !check_json("spec", &self.spec)?.is_object() {
            return Err(Invalid::described("spec", "other JSON", "a JSON object"));
        }
        if !self.lane.is_empty() {
            check_key("lane", &self.lane)?;
        }
        self.labels.iter().try_for_each(|word| check_word("label", word))?;
        for (field, number) in
            [("max_attempts", self.max_attempts), ("max_releases", self.max_releases)]
        {
            if !(1..=MOST_TRIES).contains(&number) {
                return Err(Invalid::described(field, number.to_string(), "1 to 1000000"));
            }
        }
        if self.backoff_cap > LONGEST_WAIT {
            let found = format!("{:?}", self.backoff_cap);
            return Err(Invalid::described("backoff cap", found, "at most 366 days"));
        }
        Backoff::new(self.backoff, self.backoff_cap, self.jitter_percent).map(drop)
    }
}

fn check_word(field: &'static str, word: &str) -> Result<(), Invalid> {
    let sound = !word.trim().is_empty() && !word.chars().any(char::is_control);
    match sound && word.chars().count() <= LONGEST_WORD {
        true => Ok(()),
        false => Err(Invalid::typed(field, word, "1 to 191 visible characters")),
    }
}

fn check_key(field: &'static str, word: &str) -> Result<(), Invalid> {
    check_word(field, word)?;
    check::key(field, word)
}

/// The words are not quoted in the refusal: there may be a secret among them.
fn check_json(field: &'static str, typed: &str) -> Result<Value, Invalid> {
    if typed.len() > LONGEST_JSON {
        return Err(Invalid::described(field, "a longer one", "at most 1048576 bytes"));
    }
    serde_json::from_str(typed).map_err(|_| Invalid::described(field, "something else", "JSON"))
}

/// The columns that hold a definition.
pub(super) fn columns(job: &Job) -> Params<'static> {
    let instant = |at: Option<Timestamp>| at.map(Timestamp::as_microsecond);
    let (misfire, misfire_value) = misfire_out(job.misfire).unzip();
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
        event_types: list_out(&job.event_types),
        event_filter: job.event_filter.clone(),
        paused_at: instant(job.paused_at),
        paused_until: instant(job.paused_until),
        paused_reason: job.paused_reason.clone(),
        deleted_at: instant(job.deleted_at),
        updated_at: job.updated_at.as_microsecond(),
    }
}

fn misfire_out(misfire: Option<Misfire>) -> Option<(&'static str, Option<i64>)> {
    Some(match misfire? {
        Misfire::SkipLate(tolerance) => ("skip_late", Some(micros(tolerance))),
        Misfire::LatestOnly => ("latest_only", None),
        Misfire::EveryWithin(window) => ("every_within", Some(micros(window))),
        Misfire::AtMost(count) => ("at_most", Some(i64::from(count))),
    })
}

pub(super) fn misfire_in(row: &Row) -> Result<Option<Misfire>, Error> {
    let Some(word) = row.opt_text("misfire")? else { return Ok(None) };
    let value = row.opt_int("misfire_value")?.unwrap_or_default();
    let duration = Duration::from_micros(value.max(0) as u64);
    match word.as_str() {
        "skip_late" => Ok(Some(Misfire::SkipLate(duration))),
        "latest_only" => Ok(Some(Misfire::LatestOnly)),
        "every_within" => Ok(Some(Misfire::EveryWithin(duration))),
        "at_most" => Ok(Some(Misfire::AtMost(value as u32))),
        _ => Err(Error::broken(format!("{word} is no misfire policy"))),
    }
}

/// A list of words as a JSON text; an empty one is none.
pub(super) fn list_out(words: &BTreeSet<String>) -> Option<String> {
    (!words.is_empty()).then(|| json!(words).to_string())
}

pub(crate) fn list_in(row: &Row, name: &str) -> Result<BTreeSet<String>, Error> {
    let Some(text) = row.opt_text(name)? else { return Ok(BTreeSet::new()) };
    serde_json::from_str(&text).map_err(|_| Error::broken(format!("{name} is no list")))
}

/// As the audit tells it. The command may hold a secret, and the audit is for ever: it tells which
/// version, where the command can be read, and a hash that shows whether it is still the same.
pub(super) fn told(job: &Job) -> Value {
    let JobVersion { version, spec, .. } = &job.newest;
    let digest = Sha256::digest(&spec.spec);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let (misfire, misfire_value) = misfire_out(job.misfire).unzip();
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
