//! Jobs declared in code, next to their handlers. When a node starts, it creates or updates the job from the
//! declaration. Whether the job is enabled or paused is left as users have set it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::plan_scheduled_runs::MisfirePolicy;
use tasuki_core::schedule::{DstRuleOverrides, ScheduleKind};
use tasuki_core::work_spec::{WorkAction, WorkSpec};
use tasuki_core::{AccessRole, InvalidInput, Priority, Schedule};
use tasuki_store::Trigger;

use crate::node::leader::job_scope_providers::ScopeProvider;
use crate::operator::{Actor, Error, JobDraft, JobWithNextFire, Operator};

/// Maximum number of tries to apply a declaration while other processes change the job.
const MAX_TRIES: u32 = 5;

/// The declaration of a job whose runs call a handler.
#[derive(Clone)]
pub struct JobDeclaration {
    name: String,
    draft: JobDraft,
    pub(crate) scopes: Option<Arc<dyn ScopeProvider>>,
}

impl JobDeclaration {
    /// Declares a job that runs when a task of it is submitted. The default handler has the name of the job.
    pub fn task(name: impl Into<String>) -> Self {
        let name = name.into();
        let work = WorkSpec::new(WorkAction::Function(name.clone()));
        Self { name, draft: JobDraft::new(work), scopes: None }
    }

    /// Declares a job that fires at an interval: `"10s"`, `"5m"`.
    pub fn every(name: impl Into<String>, interval: &str) -> Result<Self, InvalidInput> {
        Self::on_schedule(name, ScheduleKind::Every, interval, "UTC")
    }

    /// Declares a job that fires by a cron expression in a time zone: `"0 18 * * MON-FRI"`, `"Asia/Tokyo"`.
    pub fn cron(
        name: impl Into<String>,
        expression: &str,
        zone: &str,
    ) -> Result<Self, InvalidInput> {
        Self::on_schedule(name, ScheduleKind::Cron, expression, zone)
    }

    /// Declares a job that runs on events of these types: exact types, or `prefix.*`.
    pub fn triggered_by_events<'a>(
        name: impl Into<String>,
        types: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let types = types.into_iter().map(str::to_owned).collect();
        let mut job = Self::task(name);
        job.draft.trigger = Trigger::Event { types, filter: None };
        job
    }

    fn on_schedule(
        name: impl Into<String>,
        kind: ScheduleKind,
        value: &str,
        zone: &str,
    ) -> Result<Self, InvalidInput> {
        let schedule = Schedule::parse(kind, value, zone, DstRuleOverrides::default())?;
        let mut job = Self::task(name);
        job.draft.trigger = Trigger::Time { schedule, misfire: None };
        Ok(job)
    }

    /// Sets the name of the handler.
    pub fn handler(mut self, name: impl Into<String>) -> Self {
        self.draft.work.action = WorkAction::Function(name.into());
        self
    }

    /// Sets the description for users.
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.draft.work.description = Some(text.into());
        self
    }

    /// Sets the default arguments of runs. Arguments of a task or event override them key by key.
    pub fn args(mut self, args: &impl Serialize) -> Result<Self, InvalidInput> {
        match serde_json::to_value(args) {
            Ok(Value::Object(args)) => self.draft.work.args = args,
            _ => {
                return Err(InvalidInput::with_described_value(
                    "args",
                    "other JSON",
                    "a JSON object",
                ));
            }
        }
        Ok(self)
    }

    /// Sets the policy for planned times that were missed. It has no effect on a job without a schedule.
    pub fn misfire(mut self, misfire: MisfirePolicy) -> Self {
        if let Trigger::Time { misfire: policy, .. } = &mut self.draft.trigger {
            *policy = Some(misfire);
        }
        self
    }

    /// Fires once per scope instead of once for the global scope. The provider is called regularly: a new scope is
    /// planned from then on, a removed scope is not planned any more. Each scope gets each planned time once.
    pub fn fire_per_scope(mut self, provider: impl ScopeProvider + 'static) -> Self {
        self.draft.work.scoped = true;
        self.scopes = Some(Arc::new(provider));
        self
    }

    /// Sets the queue of its runs. They use the slots that nodes have for this queue: [`NodeBuilder::queue`]. A task
    /// can override it.
    ///
    /// [`NodeBuilder::queue`]: crate::node::NodeBuilder::queue
    pub fn queue(mut self, name: &str) -> Result<Self, InvalidInput> {
        self.draft.work.queue = name.parse()?;
        Ok(self)
    }

    /// Sets the priority of its runs. A task can override it.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.draft.work.priority = priority;
        self
    }

    /// Sets whether runs of the job may overlap. Runs of different scopes always may.
    pub fn concurrency(mut self, policy: ConcurrencyPolicy) -> Self {
        self.draft.concurrency = Some(policy);
        self
    }

    /// Sets the number of retries of a failed run.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.draft.max_retries = Some(retries);
        self
    }

    /// Sets the delay before the first retry. Each further delay is twice the previous one, up to the cap.
    pub fn backoff(mut self, first: Duration, cap: Duration) -> Self {
        (self.draft.backoff, self.draft.backoff_cap) = (Some(first), Some(cap));
        self
    }

    /// Sets the maximum run time of an attempt.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.draft.work.timeout = Some(timeout);
        self
    }

    /// Sets the maximum time of an attempt without a heartbeat.
    pub fn heartbeat_timeout(mut self, timeout: Duration) -> Self {
        self.draft.work.heartbeat_timeout = Some(timeout);
        self
    }

    /// Sets whether a run is retried after its worker was lost while the run was RUNNING. If not, the run ends as
    /// FAILED, and an operator must decide, because it is unknown how much of the work was done.
    pub fn allow_stale_reentry(mut self, allowed: bool) -> Self {
        self.draft.retry_lost = Some(allowed);
        self
    }

    /// The name of the job.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Creates the job, or changes it if its definition differs from this declaration.
    pub(crate) async fn apply(
        &self,
        operator: &Operator,
        node: &str,
    ) -> Result<JobWithNextFire, Error> {
        let name = format!("code on {node}");
        let by = Actor { name, address: None, role: AccessRole::Admin };
        for _ in 0..MAX_TRIES {
            let result = match operator.get_job(&self.name).await {
                Err(Error::NotFound { .. }) => {
                    operator.create_job(&by, &self.name, &self.draft).await
                }
                Err(error) => Err(error),
                Ok(now) => {
                    let draft = JobDraft { enabled: now.job.enabled, ..self.draft.clone() };
                    match operator.matches_draft(&now.job, &draft).await? {
                        true => Ok(now),
                        false => {
                            let edited =
                                operator.edit_job(&by, now.job.expected_version(), &draft).await;
                            edited.map(|(now, _)| now)
                        }
                    }
                }
            };
            match result {
                // Another process changed the job first, perhaps another replica of this program: try again.
                Err(Error::Lost { .. } | Error::NameTaken(_)) => {}
                result => return result,
            }
        }
        let expected = "a job that other processes do not change at the same time";
        Err(InvalidInput::with_value("job", &self.name, expected).into())
    }

    /// Creates the job if no job has its name. An existing job is not changed.
    pub(crate) async fn create_job_if_missing(
        &self,
        operator: &Operator,
        node: &str,
    ) -> Result<JobWithNextFire, Error> {
        match operator.get_job(&self.name).await {
            Err(Error::NotFound { .. }) => self.apply(operator, node).await,
            found => found,
        }
    }
}
