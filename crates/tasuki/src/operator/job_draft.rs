//! The input for a job, and its conversion to a definition with defaults from the settings.

use std::collections::BTreeSet;
use std::time::Duration;

use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::work_spec::{Dispatch, WorkKind, WorkSpec};
use tasuki_core::{InvalidInput, Settings, event_trigger_match};
use tasuki_store::{Job, JobDefinition, JobVersionSpec, Trigger};

use super::events::check_type_pattern;

/// Maximum number of retries, the same as in the settings.
const MAX_RETRIES: u32 = 1_000;

/// The input for creating or changing a job, without its name. `None` means the default of the settings or of the kind
/// of work.
#[derive(Debug, Clone, PartialEq)]
pub struct JobDraft {
    /// What creates the job's runs.
    pub trigger: Trigger,
    /// The work of the job.
    pub work: WorkSpec,
    /// Whether the job creates runs.
    pub enabled: bool,
    /// How runs get to a worker.
    pub dispatch: Option<Dispatch>,
    /// Whether runs of the job may overlap.
    pub concurrency: Option<ConcurrencyPolicy>,
    /// The labels that a worker must have.
    pub labels: BTreeSet<String>,
    /// The number of retries of a failed run, at most 1,000.
    pub max_retries: Option<u32>,
    /// The delay before the first retry.
    pub backoff: Option<Duration>,
    /// The maximum delay before a retry.
    pub backoff_cap: Option<Duration>,
    /// The share of each delay, in percent, by which a random number may shorten it.
    pub jitter_percent: Option<u8>,
    /// Whether a lost run is retried.
    pub retry_lost: Option<bool>,
}

impl JobDraft {
    /// A job that runs only on request, with default values for everything else.
    pub fn new(work: WorkSpec) -> Self {
        Self {
            trigger: Trigger::Task,
            work,
            enabled: true,
            dispatch: None,
            concurrency: None,
            labels: BTreeSet::new(),
            max_retries: None,
            backoff: None,
            backoff_cap: None,
            jitter_percent: None,
            retry_lost: None,
        }
    }

    /// The draft of a stored job, without defaults left open.
    pub fn from_job(job: &Job) -> Result<Self, InvalidInput> {
        let spec = &job.newest.spec;
        let trigger = match (job.parse_stored_schedule()?, job.trigger.as_str()) {
            (Some(schedule), _) => Trigger::Time { schedule, misfire: job.misfire },
            (None, "event") => {
                Trigger::Event { types: job.event_types.clone(), filter: job.event_filter.clone() }
            }
            (None, _) => Trigger::Task,
        };
        let dispatch = if spec.lane.is_empty() { Dispatch::Assign } else { Dispatch::Claim };
        Ok(Self {
            trigger,
            work: WorkSpec::from_json(&spec.spec)?,
            enabled: job.enabled,
            dispatch: Some(dispatch),
            concurrency: Some(spec.concurrency),
            labels: spec.labels.clone(),
            max_retries: Some(spec.max_attempts.saturating_sub(1)),
            backoff: Some(spec.backoff),
            backoff_cap: Some(spec.backoff_cap),
            jitter_percent: Some(spec.jitter_percent),
            retry_lost: Some(spec.retry_lost),
        })
    }

    /// Converts the draft to a definition, and checks everything that needs no database.
    pub fn to_definition(&self, settings: &Settings) -> Result<JobDefinition, InvalidInput> {
        self.work.validate()?;
        if let Trigger::Event { types, .. } = &self.trigger {
            types.iter().try_for_each(|wanted| check_type_pattern(wanted))?;
        }
        if let Trigger::Event { filter: Some(text), .. } = &self.trigger {
            let parsed = serde_json::from_str(text).map_err(|_| {
                InvalidInput::with_described_value("filter", "something else", "JSON")
            })?;
            event_trigger_match::check_filter(&parsed)?;
        }
        let kind = self.work.kind();
        let default_retries = match kind {
            WorkKind::Command | WorkKind::Django => settings.max_retries_command(),
            WorkKind::Function => settings.max_retries_function(),
        };
        let max_retries = self.max_retries.unwrap_or(default_retries);
        if max_retries > MAX_RETRIES {
            return Err(InvalidInput::with_described_value(
                "max_retries",
                max_retries.to_string(),
                "0 to 1000",
            ));
        }
        let backoff = self.backoff.unwrap_or(match self.backoff_cap {
            // A cap below the default first delay lowers the first delay. Likewise, a first delay above the default cap
            // raises the cap.
            Some(cap) => settings.retry_backoff().min(cap),
            None => settings.retry_backoff(),
        });
        let backoff_cap = self.backoff_cap.unwrap_or(settings.retry_backoff_cap().max(backoff));
        let default_concurrency = match self.trigger {
            Trigger::Time { .. } => ConcurrencyPolicy::Forbid,
            Trigger::Event { .. } | Trigger::Task => ConcurrencyPolicy::Allow,
        };
        let default_jitter = settings.retry_jitter_percent().min(100) as u8;
        // Only the leader considers labels. A claim is first come, first served.
        let dispatch = match (self.dispatch, self.labels.is_empty()) {
            (Some(Dispatch::Claim), false) => {
                let expected = "no labels for a job that workers claim, or dispatch assign";
                return Err(InvalidInput::with_described_value("labels", "labels", expected));
            }
            (Some(dispatch), _) => dispatch,
            (None, false) => Dispatch::Assign,
            (None, true) => kind.default_dispatch(),
        };
        self.work.check_lane(dispatch)?;
        let spec = JobVersionSpec {
            kind,
            spec: self.work.to_json().to_string(),
            lane: self.work.lane_for_dispatch(dispatch),
            concurrency: self.concurrency.unwrap_or(default_concurrency),
            max_attempts: max_retries + 1,
            max_releases: settings.max_releases(),
            backoff,
            backoff_cap,
            jitter_percent: self.jitter_percent.unwrap_or(default_jitter),
            retry_lost: self.retry_lost.unwrap_or(true),
            labels: self.labels.clone(),
        };
        Ok(JobDefinition { trigger: self.trigger.clone(), enabled: self.enabled, spec })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tasuki_core::Schedule;
    use tasuki_core::schedule::{DstRuleOverrides, ScheduleKind};
    use tasuki_core::work_spec::WorkAction;

    fn command() -> JobDraft {
        JobDraft::new(WorkSpec::new(WorkAction::Command(vec!["true".to_owned()])))
    }

    #[test]
    fn omitted_values_come_from_the_settings_and_the_kind_of_work() {
        let settings = Settings::default();
        let spec = command().to_definition(&settings).unwrap().spec;
        assert_eq!((spec.max_attempts, spec.lane.as_str(), spec.retry_lost), (1, "", true));
        assert_eq!(spec.concurrency, ConcurrencyPolicy::Allow);
        assert_eq!(
            (spec.backoff, spec.backoff_cap),
            (settings.retry_backoff(), settings.retry_backoff_cap())
        );

        let function = JobDraft::new(WorkSpec::new(WorkAction::Function("pay".to_owned())));
        let spec = function.to_definition(&settings).unwrap().spec;
        assert_eq!((spec.max_attempts, spec.lane.as_str()), (4, "function pay"));

        // Only the leader considers labels.
        let labels = ["gpu".to_owned()].into();
        let labelled = JobDraft { labels, ..function };
        assert_eq!(labelled.to_definition(&settings).unwrap().spec.lane, "");
        let claimed = JobDraft { dispatch: Some(Dispatch::Claim), ..labelled };
        assert_eq!(claimed.to_definition(&settings).unwrap_err().field, "labels");

        // The leader has no queues.
        let work = WorkSpec {
            queue: "slow".parse().unwrap(),
            ..WorkSpec::new(WorkAction::Function("pay".into()))
        };
        let queued = JobDraft::new(work);
        assert_eq!(queued.to_definition(&settings).unwrap().spec.lane, "normal slow/pay");
        let assigned = JobDraft { dispatch: Some(Dispatch::Assign), ..queued };
        assert_eq!(assigned.to_definition(&settings).unwrap_err().field, "queue");

        let schedule =
            Schedule::parse(ScheduleKind::Every, "5s", "UTC", DstRuleOverrides::default()).unwrap();
        let timed = JobDraft { trigger: Trigger::Time { schedule, misfire: None }, ..command() };
        assert_eq!(
            timed.to_definition(&settings).unwrap().spec.concurrency,
            ConcurrencyPolicy::Forbid
        );
    }

    #[test]
    fn a_given_first_delay_or_cap_adjusts_the_other() {
        let settings = Settings::default();
        let delays = |backoff: Option<u64>, cap: Option<u64>| {
            let seconds = |seconds: Option<u64>| seconds.map(Duration::from_secs);
            let draft =
                JobDraft { backoff: seconds(backoff), backoff_cap: seconds(cap), ..command() };
            let spec = draft.to_definition(&settings).unwrap().spec;
            (spec.backoff.as_secs(), spec.backoff_cap.as_secs())
        };
        assert_eq!(delays(None, None), (30, 900));
        assert_eq!(delays(None, Some(5)), (5, 5));
        assert_eq!(delays(Some(3_600), None), (3_600, 3_600));
        assert_eq!(delays(Some(7), Some(9)), (7, 9));
    }

    #[test]
    fn an_invalid_draft_is_an_error() {
        let wrong = JobDraft { max_retries: Some(1_001), ..command() };
        assert_eq!(wrong.to_definition(&Settings::default()).unwrap_err().field, "max_retries");
        let wrong = JobDraft::new(WorkSpec::new(WorkAction::Command(vec!["a\0b".to_owned()])));
        assert_eq!(wrong.to_definition(&Settings::default()).unwrap_err().field, "command");
        let filter = Some("[1]".to_owned());
        let trigger = Trigger::Event { types: ["a".to_owned()].into(), filter };
        let wrong = JobDraft { trigger, ..command() };
        assert_eq!(wrong.to_definition(&Settings::default()).unwrap_err().field, "filter");
    }
}
