//! Jobs declared in code, next to their handlers. What the code says is what holds when its node starts; whether
//! a job is enabled or paused stays what people made it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::misfire::Misfire;
use tasuki_core::schedule::{DstChoice, ScheduleKind};
use tasuki_core::job_spec::{What, Work};
use tasuki_core::{Invalid, Priority, Role, Schedule};
use tasuki_store::Trigger;

use crate::node::leader::scopes::ScopeProvider;
use crate::operator::{Actor, Error, JobDraft, JobNow, Operator};

/// How often a job that changes under our hands is looked at again.
const LOOKS: u32 = 5;

/// A job whose runs are calls of a handler.
#[derive(Clone)]
pub struct Job {
    name: String,
    draft: JobDraft,
    pub(crate) scopes: Option<Arc<dyn ScopeProvider>>,
}

impl Job {
    /// A job that runs when somebody submits a task of it. Its handler has the same name, unless said.
    pub fn task(name: impl Into<String>) -> Self {
        let name = name.into();
        let work = Work::new(What::Function(name.clone()));
        Self { name, draft: JobDraft::new(work), scopes: None }
    }

    /// A job that fires again and again after so long: `"10s"`, `"5m"`.
    pub fn every(name: impl Into<String>, interval: &str) -> Result<Self, Invalid> {
        Self::timed(name, ScheduleKind::Every, interval, "UTC")
    }

    /// A job that fires by a cron expression in a time zone: `"0 18 * * MON-FRI"`, `"Asia/Tokyo"`.
    pub fn cron(name: impl Into<String>, expression: &str, zone: &str) -> Result<Self, Invalid> {
        Self::timed(name, ScheduleKind::Cron, expression, zone)
    }

    /// A job that runs on events: of these types, exact or `prefix.*`.
    pub fn on_event<'a>(name: impl Into<String>, types: impl IntoIterator<Item = &'a str>) -> Self {
        let types = types.into_iter().map(str::to_owned).collect();
        let mut job = Self::task(name);
        job.draft.trigger = Trigger::Event { types, filter: None };
        job
    }

    fn timed(
        name: impl Into<String>,
        kind: ScheduleKind,
        value: &str,
        zone: &str,
    ) -> Result<Self, Invalid> {
        let schedule = Schedule::parse(kind, value, zone, DstChoice::default())?;
        let mut job = Self::task(name);
        job.draft.trigger = Trigger::Time { schedule, misfire: None };
        Ok(job)
    }

    /// Calls a handler of another name.
    pub fn handler(mut self, name: impl Into<String>) -> Self {
        self.draft.work.what = What::Function(name.into());
        self
    }

    /// What people are told about it.
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.draft.work.description = Some(text.into());
        self
    }

    /// What its runs are given, unless the task or event brings other values for it.
    pub fn args(mut self, args: &impl Serialize) -> Result<Self, Invalid> {
        match serde_json::to_value(args) {
            Ok(Value::Object(args)) => self.draft.work.args = args,
            _ => return Err(Invalid::described("args", "something else", "a JSON object")),
        }
        Ok(self)
    }

    /// What is done about slots that were missed; only for jobs that fire by time.
    pub fn catch_up(mut self, misfire: Misfire) -> Self {
        if let Trigger::Time { misfire: chosen, .. } = &mut self.draft.trigger {
            *chosen = Some(misfire);
        }
        self
    }

    /// Fires for each of these scopes, and not for everything. They are asked for again and again: a scope that
    /// appears is planned from then on, one that goes is planned no longer. Each scope has each slot once.
    pub fn scopes(mut self, provider: impl ScopeProvider + 'static) -> Self {
        self.draft.work.scoped = true;
        self.scopes = Some(Arc::new(provider));
        self
    }

    /// Its runs wait in this queue, and use the slots that nodes have for it: [`NodeBuilder::queue`]. A task may
    /// say another.
    ///
    /// [`NodeBuilder::queue`]: crate::node::NodeBuilder::queue
    pub fn queue(mut self, name: &str) -> Result<Self, Invalid> {
        self.draft.work.queue = name.parse()?;
        Ok(self)
    }

    /// How much of a head start its runs have before others that wait. A task may say another.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.draft.work.priority = priority;
        self
    }

    /// Whether runs of it may overlap; runs for different scopes always may.
    pub fn concurrency(mut self, policy: ConcurrencyPolicy) -> Self {
        self.draft.concurrency = Some(policy);
        self
    }

    /// How often a run that failed is tried again.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.draft.max_retries = Some(retries);
        self
    }

    /// How long the first wait between two tries is; each next one is twice as long, up to the cap.
    pub fn backoff(mut self, first: Duration, cap: Duration) -> Self {
        (self.draft.backoff, self.draft.backoff_cap) = (Some(first), Some(cap));
        self
    }

    /// How long an attempt may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.draft.work.timeout = Some(timeout);
        self
    }

    /// How long an attempt may show no sign of life.
    pub fn heartbeat_timeout(mut self, timeout: Duration) -> Self {
        self.draft.work.heartbeat_timeout = Some(timeout);
        self
    }

    /// Whether a run whose worker was lost in mid-run may be run again. If not, it ends FAILED and is shown:
    /// nobody knows how far it got.
    pub fn allow_stale_reentry(mut self, allowed: bool) -> Self {
        self.draft.retry_lost = Some(allowed);
        self
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes the job what this says: creates it, or changes it where it says something else.
    pub(crate) async fn declare(&self, operator: &Operator, node: &str) -> Result<JobNow, Error> {
        let name = format!("code on {node}");
        let by = Actor { name, address: None, role: Role::Admin };
        for _ in 0..LOOKS {
            let told = match operator.job(&self.name).await {
                Err(Error::NotFound { .. }) => {
                    operator.create_job(&by, &self.name, &self.draft).await
                }
                Err(error) => Err(error),
                Ok(now) => {
                    let draft = JobDraft { enabled: now.job.enabled, ..self.draft.clone() };
                    match operator.is_defined(&now.job, &draft).await? {
                        true => Ok(now),
                        false => {
                            let edited = operator.edit_job(&by, now.job.seen(), &draft).await;
                            edited.map(|(now, _)| now)
                        }
                    }
                }
            };
            match told {
                // Somebody else was first: perhaps another replica of this program.
                Err(Error::Lost { .. } | Error::NameTaken(_)) => {}
                told => return told,
            }
        }
        Err(Invalid::typed("job", &self.name, "one that does not keep changing").into())
    }

    /// Makes the job unless there is one of its name, whatever that says.
    pub(crate) async fn declare_if_missing(
        &self,
        operator: &Operator,
        node: &str,
    ) -> Result<JobNow, Error> {
        match operator.job(&self.name).await {
            Err(Error::NotFound { .. }) => self.declare(operator, node).await,
            found => found,
        }
    }
}
