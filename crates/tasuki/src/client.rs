//! The client for applications: submits tasks, alone or in the application's own transactions, and reads their runs.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tasuki_core::{AccessRole, InvalidInput, Priority, RunId, RunScope};
use tasuki_store::{AppTransaction, CreatedRun, Execution, Store};

use crate::node::{Config, Node, NodeBuilder};
use crate::operator::{Actor, Error, EventDraft, RunOverview, TaskDraft, WaitResult};
use crate::{Operator, Wakeups};

/// Maximum number of database connections of a client that opens its own store.
const MAX_CONNECTIONS: u32 = 8;

/// Submits tasks and reads runs. Cheap to clone; clones share their caches and connections.
///
/// ```no_run
/// # #[derive(serde::Serialize)] struct Mail { to: String }
/// # async fn example() -> Result<(), tasuki::Error> {
/// let client = tasuki::Client::connect("postgres://shop@localhost/shop").await?;
/// let created = client.submit("send_mail", &Mail { to: "ann@example.com".into() }).await?;
/// let ended = client.wait_until_ended(created.run, std::time::Duration::from_secs(10)).await?;
/// println!("{}", ended.info.run.state);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    operator: Operator,
    store: Store,
    wake: Wakeups,
    actor: Actor,
}

impl Client {
    /// Connects to a database (`sqlite:`, `postgres:` or `mysql:` URL) and migrates its schema to the current version.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let store = Store::open(url, MAX_CONNECTIONS).await?;
        store.migrate().await?;
        Ok(Self::new(store))
    }

    /// Makes a client on a store whose schema is current.
    pub fn new(store: Store) -> Self {
        let wake = Wakeups::default();
        let operator = Operator::new(store.clone(), wake.clone());
        let actor =
            Actor { name: "application".to_owned(), address: None, role: AccessRole::Admin };
        Self { operator, store, wake, actor }
    }

    /// Sets the actor name of this client in the audit. The default is `application`.
    pub fn with_actor(self, name: impl Into<String>) -> Self {
        Self { actor: Actor { name: name.into(), ..self.actor }, ..self }
    }

    /// Builds a node in this process. Tasks that this client submits start on it without delay.
    pub fn node_builder(&self, name: &str) -> Result<NodeBuilder, InvalidInput> {
        Ok(Node::builder(Config::new(name.parse()?), self.store.clone()).wakeups(self.wake.clone()))
    }

    /// The operator, for all other queries and actions.
    pub fn operator(&self) -> &Operator {
        &self.operator
    }

    /// The store on the database.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Submits a task of a job, to run now. The task is durable when this returns.
    pub async fn submit(&self, job: &str, args: &impl Serialize) -> Result<CreatedRun, Error> {
        self.task(job, args)?.submit().await
    }

    /// Builds a task of a job. An error if `args` do not serialize to a JSON object or null.
    pub fn task(&self, job: &str, args: &impl Serialize) -> Result<NewTask<'_>, Error> {
        let json = match serde_json::to_string(args) {
            // Serializing to a `Value` detects integers of more than 64 bits, which no handler could receive unchanged.
            Ok(json) if has_long_number(&json) => serde_json::to_value(args).map(|_| json),
            json => json,
        };
        let args = match json {
            Ok(args) if args.trim() == "null" => None,
            Ok(args) if args.trim_start().starts_with('{') => Some(args),
            Ok(_) => return Err(invalid_args("other JSON").into()),
            Err(error) => return Err(invalid_args(&error.to_string()).into()),
        };
        let draft = TaskDraft { job: job.to_owned(), args, ..TaskDraft::default() };
        Ok(NewTask { client: self, draft })
    }

    /// Submits many tasks, all or none. The result has the same order.
    pub async fn submit_all(
        &self,
        tasks: impl IntoIterator<Item = NewTask<'_>>,
    ) -> Result<Vec<CreatedRun>, Error> {
        self.operator.submit_all(&drafts(tasks)).await
    }

    /// Submits many tasks in a transaction of the application. See [`NewTask::submit_in_transaction`].
    pub async fn submit_all_in_transaction<'a>(
        &self,
        transaction: impl Into<AppTransaction<'a>>,
        tasks: impl IntoIterator<Item = NewTask<'_>>,
    ) -> Result<Vec<CreatedRun>, Error> {
        self.operator.submit_all_in_transaction(transaction, &drafts(tasks)).await
    }

    /// Wakes the nodes after the application committed a transaction with submitted tasks: the node in this process
    /// and, on PostgreSQL, those in other processes. Without this call they find the tasks at most a second later.
    pub fn notify_committed(&self) {
        self.operator.notify_committed();
    }

    /// Emits an event. The jobs that match it run.
    pub async fn emit_event(&self, event: &EventDraft) -> Result<tasuki_store::EmitResult, Error> {
        self.operator.emit_event(event).await
    }

    /// The current state of one run. An error if it does not exist.
    pub async fn get_run(&self, run: RunId) -> Result<RunOverview, Error> {
        self.operator.get_run(run).await
    }

    /// All attempts of a run, in order.
    pub async fn list_executions(&self, run: RunId) -> Result<Vec<Execution>, Error> {
        Ok(self.operator.get_run_detail(run).await?.executions)
    }

    /// Waits until a run has ended, at most for `timeout`.
    pub async fn wait_until_ended(
        &self,
        run: RunId,
        timeout: Duration,
    ) -> Result<WaitResult, Error> {
        self.operator.wait_until_ended(run, timeout).await
    }

    /// Cancels a run: a waiting run ends immediately, a RUNNING run gets a cancel request.
    pub async fn cancel(&self, run: RunId, reason: Option<&str>) -> Result<RunOverview, Error> {
        self.operator.cancel(&self.actor, run, reason).await.map(|(now, _)| now)
    }

    /// Gives an ended run that did not succeed one more try.
    pub async fn retry(&self, run: RunId, reason: Option<&str>) -> Result<RunOverview, Error> {
        self.operator.retry(&self.actor, run, reason).await
    }
}

/// Whether the JSON may contain an integer of more than 64 bits (19 or more consecutive digits).
fn has_long_number(json: &str) -> bool {
    const DIGITS: usize = 19;
    json.len() >= DIGITS
        && json.as_bytes().windows(DIGITS).any(|digits| digits.iter().all(u8::is_ascii_digit))
}

fn invalid_args(found: &str) -> InvalidInput {
    InvalidInput::with_described_value(
        "args",
        found,
        "a value that serializes to a JSON object or null",
    )
}

fn drafts<'c>(tasks: impl IntoIterator<Item = NewTask<'c>>) -> Vec<TaskDraft> {
    tasks.into_iter().map(|task| task.draft).collect()
}

/// A task that is not submitted yet. Submit it with [`NewTask::submit`] or [`NewTask::submit_in_transaction`].
#[must_use = "the task is not submitted yet"]
pub struct NewTask<'c> {
    client: &'c Client,
    draft: TaskDraft,
}

impl NewTask<'_> {
    /// Starts the task at this instant at the earliest.
    pub fn start_at(mut self, instant: Timestamp) -> Self {
        self.draft.scheduled_for = Some(instant);
        self
    }

    /// Starts the task after this delay at the earliest, by this machine's clock.
    pub fn start_after(self, delay: Duration) -> Self {
        let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
        self.start_at(Timestamp::now().saturating_add(delay).unwrap_or(Timestamp::MAX))
    }

    /// Lets the run expire if it is still waiting at this instant.
    pub fn expires_at(mut self, instant: Timestamp) -> Self {
        self.draft.expires_at = Some(instant);
        self
    }

    /// Sets a key that identifies the run: a second submit with the same key returns the existing run.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.draft.idempotency_key = Some(key.into());
        self
    }

    /// Sets the queue instead of that of the job. An error if the name is invalid. Only for jobs of functions that
    /// workers claim; otherwise the submit is an error.
    pub fn queue(mut self, name: &str) -> Result<Self, InvalidInput> {
        self.draft.queue = Some(name.parse()?);
        Ok(self)
    }

    /// Sets the priority instead of that of the job.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.draft.priority = Some(priority);
        self
    }

    /// Sets the scope. The default is the global scope.
    pub fn scope(mut self, scope: RunScope) -> Self {
        self.draft.scope = Some(scope);
        self
    }

    /// Submits the task. It is durable when this returns.
    pub async fn submit(self) -> Result<CreatedRun, Error> {
        self.client.operator.submit(&self.draft).await
    }

    /// Submits the task in a transaction of the application on the database that contains tasuki's tables. The run
    /// exists if and only if the transaction commits. Call [`Client::notify_committed`] after the commit.
    pub async fn submit_in_transaction<'a>(
        self,
        transaction: impl Into<AppTransaction<'a>>,
    ) -> Result<CreatedRun, Error> {
        let created =
            self.client.operator.submit_all_in_transaction(transaction, &[self.draft]).await?;
        created.into_iter().next().ok_or_else(|| invalid_args("no task").into())
    }
}
