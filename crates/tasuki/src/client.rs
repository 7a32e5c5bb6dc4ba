//! What an application asks of tasuki: tasks, by themselves or in its own transactions, and what became of
//! them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tasuki_core::{Invalid, Priority, Role, RunId, Scope};
use tasuki_store::{AppTransaction, Created, Execution, Store};

use crate::node::{Config, Node, NodeBuilder};
use crate::operator::{Actor, Error, EventDraft, RunNow, TaskDraft, Waited};
use crate::{Operator, Wake};

/// How many connections a client has, unless it is given a store.
const CONNECTIONS: u32 = 8;

/// Asks for runs and looks at them. Cheap to clone; clones share what they know and their connections.
///
/// ```no_run
/// # #[derive(serde::Serialize)] struct Mail { to: String }
/// # async fn example() -> Result<(), tasuki::Error> {
/// let client = tasuki::Client::connect("postgres://shop@localhost/shop").await?;
/// let run = client.submit("send_mail", &Mail { to: "ann@example.com".into() }).await?;
/// let ended = client.wait(run.run, std::time::Duration::from_secs(10)).await?;
/// println!("{}", ended.now.run.state);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    operator: Operator,
    store: Store,
    wake: Wake,
    actor: Actor,
}

impl Client {
    /// On a database, whose schema is brought up to date first: `sqlite:`, `postgres:` or `mysql:`.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let store = Store::open(url, CONNECTIONS).await?;
        store.migrate().await?;
        Ok(Self::new(store))
    }

    /// On a store, whose schema is up to date.
    pub fn new(store: Store) -> Self {
        let wake = Wake::default();
        let operator = Operator::new(store.clone(), wake.clone());
        let actor = Actor { name: "application".to_owned(), address: None, role: Role::Admin };
        Self { operator, store, wake, actor }
    }

    /// The same under another name: as that the audit tells what it does.
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { actor: Actor { name: name.into(), ..self.actor }, ..self }
    }

    /// A node in this process, which starts at once what this client submits.
    pub fn node(&self, name: &str) -> Result<NodeBuilder, Invalid> {
        Ok(Node::builder(Config::new(name.parse()?), self.store.clone()).wake(self.wake.clone()))
    }

    /// Everything else that can be asked or done.
    pub fn operator(&self) -> &Operator {
        &self.operator
    }

    /// The database.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Submits a task of a job, to be run now. When this returns it is durable.
    pub async fn submit(&self, job: &str, args: &impl Serialize) -> Result<Created, Error> {
        self.task(job, args)?.submit().await
    }

    /// A task of a job, to be said more of before it is submitted. Refused where `args` are no JSON object.
    pub fn task(&self, job: &str, args: &impl Serialize) -> Result<NewTask<'_>, Error> {
        let told = match serde_json::to_string(args) {
            // A number that no handler could be given as it is, perhaps.
            Ok(told) if has_long_number(&told) => serde_json::to_value(args).map(|_| told),
            told => told,
        };
        let args = match told {
            Ok(args) if args.trim() == "null" => None,
            Ok(args) if args.trim_start().starts_with('{') => Some(args),
            Ok(_) => return Err(no_object("other JSON").into()),
            Err(error) => return Err(no_object(&error.to_string()).into()),
        };
        let draft = TaskDraft { job: job.to_owned(), args, ..TaskDraft::default() };
        Ok(NewTask { client: self, draft })
    }

    /// Submits many tasks, all or none; answers in the same order.
    pub async fn submit_all(
        &self,
        tasks: impl IntoIterator<Item = NewTask<'_>>,
    ) -> Result<Vec<Created>, Error> {
        self.operator.submit_all(&drafts(tasks)).await
    }

    /// The same in a transaction of the application, as [`NewTask::submit_in`].
    pub async fn submit_all_in<'a>(
        &self,
        transaction: impl Into<AppTransaction<'a>>,
        tasks: impl IntoIterator<Item = NewTask<'_>>,
    ) -> Result<Vec<Created>, Error> {
        self.operator.submit_in(transaction, &drafts(tasks)).await
    }

    /// Something was submitted in a transaction that is committed now: who waits for work looks at once, in this
    /// process and, on PostgreSQL, in others. Without it they look a second later at most.
    pub fn committed(&self) {
        self.operator.committed();
    }

    /// Tells that something happened; the jobs that wait for it run.
    pub async fn emit(&self, event: &EventDraft) -> Result<tasuki_store::Emitted, Error> {
        self.operator.emit(event).await
    }

    /// One run as it is now.
    pub async fn run(&self, run: RunId) -> Result<RunNow, Error> {
        self.operator.run(run).await
    }

    /// Every attempt at a run, the first one first.
    pub async fn executions(&self, run: RunId) -> Result<Vec<Execution>, Error> {
        Ok(self.operator.run_detail(run).await?.executions)
    }

    /// Waits until a run has ended, at most so long.
    pub async fn wait(&self, run: RunId, timeout: Duration) -> Result<Waited, Error> {
        self.operator.wait(run, timeout).await
    }

    /// Withdraws a run, or asks it to stop.
    pub async fn cancel(&self, run: RunId, reason: Option<&str>) -> Result<RunNow, Error> {
        self.operator.cancel(&self.actor, run, reason).await.map(|(now, _)| now)
    }

    /// Gives a run that ended badly one more try.
    pub async fn retry(&self, run: RunId, reason: Option<&str>) -> Result<RunNow, Error> {
        self.operator.retry(&self.actor, run, reason).await
    }
}

/// Whether there may be a number in it of more than 64 bits.
fn has_long_number(json: &str) -> bool {
    const DIGITS: usize = 19;
    json.len() >= DIGITS
        && json.as_bytes().windows(DIGITS).any(|some| some.iter().all(u8::is_ascii_digit))
}

fn no_object(found: &str) -> Invalid {
    Invalid::described("args", found, "what serde makes a JSON object of, or nothing")
}

fn drafts<'c>(tasks: impl IntoIterator<Item = NewTask<'c>>) -> Vec<TaskDraft> {
    tasks.into_iter().map(|task| task.draft).collect()
}

/// A task that is about to be submitted.
#[must_use = "it is not submitted yet"]
pub struct NewTask<'c> {
    client: &'c Client,
    draft: TaskDraft,
}

impl NewTask<'_> {
    /// Not before this.
    pub fn at(mut self, instant: Timestamp) -> Self {
        self.draft.scheduled_for = Some(instant);
        self
    }

    /// Not before so long from now, by this machine's clock.
    pub fn after(self, delay: Duration) -> Self {
        let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
        self.at(Timestamp::now().saturating_add(delay).unwrap_or(Timestamp::MAX))
    }

    /// Given up if it has not started by then.
    pub fn expires_at(mut self, instant: Timestamp) -> Self {
        self.draft.expires_at = Some(instant);
        self
    }

    /// The same key twice is the same run: a task that is submitted again is found, not made.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.draft.idempotency_key = Some(key.into());
        self
    }

    /// Uses the slots of this queue, whatever its job says. Refused is what is no name; when it is submitted, also
    /// a job that calls no function.
    pub fn queue(mut self, name: &str) -> Result<Self, Invalid> {
        self.draft.queue = Some(name.parse()?);
        Ok(self)
    }

    /// With this head start before others, whatever its job says.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.draft.priority = Some(priority);
        self
    }

    /// For what; for everything, unless said.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.draft.scope = Some(scope);
        self
    }

    /// Submits it. When this returns it is durable.
    pub async fn submit(self) -> Result<Created, Error> {
        self.client.operator.enqueue(&self.draft).await
    }

    /// Submits it in a transaction of the application, on the database that tasuki's tables are in: if that
    /// commits, the run is there, and else it never was. See [`Client::committed`].
    pub async fn submit_in<'a>(
        self,
        transaction: impl Into<AppTransaction<'a>>,
    ) -> Result<Created, Error> {
        let made = self.client.operator.submit_in(transaction, &[self.draft]).await?;
        made.into_iter().next().ok_or_else(|| no_object("no task").into())
    }
}
