//! A job as people say it, and the definition it becomes: what they left out comes from the settings.

use std::collections::BTreeSet;
use std::time::Duration;

use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::job_spec::{Dispatch, Work, WorkKind};
use tasuki_core::{Invalid, Settings, filter};
use tasuki_store::{Job, JobDefinition, JobSpec, Trigger};

use super::events::check_wanted;

/// More tries than anybody waits for; the settings have the same limit.
const MOST_RETRIES: u32 = 1_000;

/// Everything people say of a job, but its name. `None` is what the settings or its kind say.
#[derive(Debug, Clone, PartialEq)]
pub struct JobDraft {
    /// What starts it.
    pub trigger: Trigger,
    /// What it does.
    pub work: Work,
    /// Whether it makes runs at all.
    pub enabled: bool,
    /// Who decides where a run goes.
    pub dispatch: Option<Dispatch>,
    /// One at a time?
    pub concurrency: Option<ConcurrencyPolicy>,
    /// What its worker must be good for.
    pub labels: BTreeSet<String>,
    /// How often a failed run is tried again.
    pub max_retries: Option<u32>,
    /// The first wait between two tries.
    pub backoff: Option<Duration>,
    /// The longest.
    pub backoff_cap: Option<Duration>,
    /// The share of each wait that dice may take away.
    pub jitter_percent: Option<u8>,
    /// Whether a lost run is tried again.
    pub retry_lost: Option<bool>,
}

impl JobDraft {
    /// A job that is started only by requests, and otherwise as the settings say.
    pub fn new(work: Work) -> Self {
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

    /// What a stored job says, with nothing left out.
    pub fn of(job: &Job) -> Result<Self, Invalid> {
        let spec = &job.newest.spec;
        let trigger = match (job.schedule()?, job.trigger.as_str()) {
            (Some(schedule), _) => Trigger::Time { schedule, misfire: job.misfire },
            (None, "event") => {
                Trigger::Event { types: job.event_types.clone(), filter: job.event_filter.clone() }
            }
            (None, _) => Trigger::Task,
        };
        let dispatch = if spec.lane.is_empty() { Dispatch::Assign } else { Dispatch::Claim };
        Ok(Self {
            trigger,
            work: Work::from_json(&spec.spec)?,
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

    /// The definition, checked as far as it can be without a database.
    pub fn define(&self, settings: &Settings) -> Result<JobDefinition, Invalid> {
        self.work.check()?;
        if let Trigger::Event { types, .. } = &self.trigger {
            types.iter().try_for_each(|wanted| check_wanted(wanted))?;
        }
        if let Trigger::Event { filter: Some(text), .. } = &self.trigger {
            let parsed = serde_json::from_str(text)
                .map_err(|_| Invalid::described("filter", "something else", "JSON"))?;
            filter::check(&parsed)?;
        }
        let kind = self.work.kind();
        let usual_retries = match kind {
            WorkKind::Command | WorkKind::Django => settings.max_retries_command(),
            WorkKind::Function => settings.max_retries_function(),
        };
        let max_retries = self.max_retries.unwrap_or(usual_retries);
        if max_retries > MOST_RETRIES {
            return Err(Invalid::described("max_retries", max_retries.to_string(), "0 to 1000"));
        }
        let backoff = self.backoff.unwrap_or(match self.backoff_cap {
            // A cap below the usual first wait lowers that wait, and the other way round.
            Some(cap) => settings.retry_backoff().min(cap),
            None => settings.retry_backoff(),
        });
        let backoff_cap = self.backoff_cap.unwrap_or(settings.retry_backoff_cap().max(backoff));
        let usual_concurrency = match self.trigger {
            Trigger::Time { .. } => ConcurrencyPolicy::Forbid,
            Trigger::Event { .. } | Trigger::Task => ConcurrencyPolicy::Allow,
        };
        let jitter = settings.retry_jitter_percent().min(100) as u8;
        // Who claims is whoever is first: only the leader looks at labels.
        let dispatch = match (self.dispatch, self.labels.is_empty()) {
            (Some(Dispatch::Claim), false) => {
                let expected = "none where any worker may claim, or dispatch assign";
                return Err(Invalid::described("labels", "labels", expected));
            }
            (Some(dispatch), _) => dispatch,
            (None, false) => Dispatch::Assign,
            (None, true) => kind.dispatch(),
        };
        self.work.check_lane(dispatch)?;
        let spec = JobSpec {
            kind,
            spec: self.work.to_json().to_string(),
            lane: self.work.lane(dispatch),
            concurrency: self.concurrency.unwrap_or(usual_concurrency),
            max_attempts: max_retries + 1,
            max_releases: settings.max_releases(),
            backoff,
            backoff_cap,
            jitter_percent: self.jitter_percent.unwrap_or(jitter),
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
    use tasuki_core::schedule::{DstChoice, ScheduleKind};
    use tasuki_core::job_spec::What;

    fn command() -> JobDraft {
        JobDraft::new(Work::new(What::Command(vec!["true".to_owned()])))
    }

    #[test]
    fn what_is_left_out_comes_from_the_settings_and_the_kind() {
        let settings = Settings::default();
        let spec = command().define(&settings).unwrap().spec;
        assert_eq!((spec.max_attempts, spec.lane.as_str(), spec.retry_lost), (1, "", true));
        assert_eq!(spec.concurrency, ConcurrencyPolicy::Allow);
        assert_eq!(
            (spec.backoff, spec.backoff_cap),
            (settings.retry_backoff(), settings.retry_backoff_cap())
        );

        let function = JobDraft::new(Work::new(What::Function("pay".to_owned())));
        let spec = function.define(&settings).unwrap().spec;
        assert_eq!((spec.max_attempts, spec.lane.as_str()), (4, "function pay"));

        // Only the leader looks at labels.
        let labels = ["gpu".to_owned()].into();
        let labelled = JobDraft { labels, ..function };
        assert_eq!(labelled.define(&settings).unwrap().spec.lane, "");
        let claimed = JobDraft { dispatch: Some(Dispatch::Claim), ..labelled };
        assert_eq!(claimed.define(&settings).unwrap_err().field, "labels");

        // And it has no queues.
        let work =
            Work { queue: "slow".parse().unwrap(), ..Work::new(What::Function("pay".into())) };
        let queued = JobDraft::new(work);
        assert_eq!(queued.define(&settings).unwrap().spec.lane, "normal slow/pay");
        let assigned = JobDraft { dispatch: Some(Dispatch::Assign), ..queued };
        assert_eq!(assigned.define(&settings).unwrap_err().field, "queue");

        let schedule =
            Schedule::parse(ScheduleKind::Every, "5s", "UTC", DstChoice::default()).unwrap();
        let timed = JobDraft { trigger: Trigger::Time { schedule, misfire: None }, ..command() };
        assert_eq!(timed.define(&settings).unwrap().spec.concurrency, ConcurrencyPolicy::Forbid);
    }

    #[test]
    fn one_limit_of_the_waits_moves_the_other() {
        let settings = Settings::default();
        let waits = |backoff: Option<u64>, cap: Option<u64>| {
            let seconds = |seconds: Option<u64>| seconds.map(Duration::from_secs);
            let draft =
                JobDraft { backoff: seconds(backoff), backoff_cap: seconds(cap), ..command() };
            let spec = draft.define(&settings).unwrap().spec;
            (spec.backoff.as_secs(), spec.backoff_cap.as_secs())
        };
        assert_eq!(waits(None, None), (30, 900));
        assert_eq!(waits(None, Some(5)), (5, 5));
        assert_eq!(waits(Some(3_600), None), (3_600, 3_600));
        assert_eq!(waits(Some(7), Some(9)), (7, 9));
    }

    #[test]
    fn what_no_worker_could_run_is_refused() {
        let wrong = JobDraft { max_retries: Some(1_001), ..command() };
        assert_eq!(wrong.define(&Settings::default()).unwrap_err().field, "max_retries");
        let wrong = JobDraft::new(Work::new(What::Command(vec!["a\0b".to_owned()])));
        assert_eq!(wrong.define(&Settings::default()).unwrap_err().field, "command");
        let filter = Some("[1]".to_owned());
        let trigger = Trigger::Event { types: ["a".to_owned()].into(), filter };
        let wrong = JobDraft { trigger, ..command() };
        assert_eq!(wrong.define(&Settings::default()).unwrap_err().field, "filter");
    }
}
