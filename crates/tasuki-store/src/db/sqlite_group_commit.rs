//! Group commit for SQLite: one writer thread executes queued scripts and commits them together.
//!
//! Why it exists: SQLite has one writer at a time, a commit waits for the disk, and each statement that is sent to the
//! driver's thread waits for its turn among all other tasks of the program. A script is a whole transaction that needs
//! no intermediate result, so it is sent immediately, together with the other scripts in the queue, and one commit
//! makes all of them durable.
//!
//! What it promises: a caller gets its result only after its script is durable. A failing script has no effect, and
//! the other scripts of its group are still executed. Only if the database is locked, the whole group fails.

use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqlitePool;
use sqlx::{Executor as _, Sqlite};
use tokio::runtime;
use tokio::sync::{mpsc, oneshot};

use crate::Error;
use crate::db::Params;
use crate::db::bind::{Param, bind_sqlite};
use crate::db::row::Row;
use crate::db::sql::{Sql, TranslatedStatement};

/// Maximum number of scripts that share one commit. Beyond this, and beyond [`MAX_RUNS_PER_COMMIT`], SQLite needs more
/// time for the scripts than for the commit, so sharing would only make each caller wait for the others.
const MAX_SCRIPTS_PER_COMMIT: usize = 4;
/// Maximum number of runs that the scripts of one commit change in total. A single larger script commits alone.
const MAX_RUNS_PER_COMMIT: usize = 512;
/// How many times the writer thread empties the queue before it returns the write connection, so that other writers
/// of this process get it.
const MAX_ROUNDS: usize = 4;

/// Statements that are sent together and form one transaction.
pub(crate) struct Script {
    /// The statements, without `begin` and `commit`.
    pub(crate) sql: Sql,
    /// Exact number of rows that all of its statements return together. The rows of a group are divided by it.
    pub(crate) row_count: usize,
}

/// The queue of scripts, with the writer thread that executes them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct GroupCommit {
    writer: SqlitePool,
    /// Sends to the writer thread; `None` until the first script starts that thread.
    queue: Arc<Mutex<Option<Queue>>>,
}

type Queue = mpsc::UnboundedSender<PendingScript>;

/// A request to execute a script.
pub(crate) struct ScriptCall<'p> {
    pub(crate) script: &'static Script,
    /// Maximum number of runs that the script changes.
    pub(crate) max_runs: usize,
    pub(crate) params: Params<'p>,
}

/// A script with the values of its parameters, ready to be executed.
pub(crate) struct BoundScript {
    pub(crate) statement: &'static TranslatedStatement,
    /// See [`Script::row_count`].
    pub(crate) row_count: usize,
    /// See [`ScriptCall::max_runs`].
    pub(crate) max_runs: usize,
    /// The parameter values, in the order of the statement's parameters.
    pub(crate) values: Vec<Param>,
}

/// A queued script, with the channel for its result.
struct PendingScript {
    script: BoundScript,
    result_sender: oneshot::Sender<Result<Vec<Row>, Error>>,
}

impl GroupCommit {
    pub(crate) fn new(writer: SqlitePool) -> Self {
        Self { writer, queue: Arc::default() }
    }

    /// Executes scripts and returns the result of each, in order. It returns when each script is durable or has failed
    /// without any effect.
    pub(crate) async fn execute(&self, scripts: Vec<BoundScript>) -> Vec<Result<Vec<Row>, Error>> {
        let queue = match self.running_queue() {
            Ok(queue) => queue,
            Err(error) => {
                let error = Arc::new(Error::from(sqlx::Error::Io(error)));
                return scripts.iter().map(|_| Err(Error::Shared(Arc::clone(&error)))).collect();
            }
        };
        let receivers: Vec<_> = scripts
            .into_iter()
            .map(|script| {
                let (result_sender, receiver) = oneshot::channel();
                // If the writer thread has ended, the sender is dropped here and the receiver reports that.
                let _ = queue.send(PendingScript { script, result_sender });
                receiver
            })
            .collect();
        let mut results = Vec::with_capacity(receivers.len());
        for receiver in receivers {
            // A missing result does not mean that the script had no effect.
            results.push(receiver.await.unwrap_or_else(|_| Err(Error::timeout())));
        }
        results
    }

    /// Returns the queue of a live writer thread, and starts the thread if there is none. The thread ends when all
    /// clones of this value are dropped.
    ///
    /// It is a thread with its own runtime: in the program's runtime a thousand newly spawned tasks would run before
    /// each next group of scripts, and SQLite would be idle meanwhile.
    fn running_queue(&self) -> io::Result<Queue> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = queue.as_ref().filter(|queue| !queue.is_closed()) {
            return Ok(running.clone());
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let writer_loop = run_writer_loop(self.writer.clone(), receiver);
        let thread_body = || match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(writer_loop),
            // The callers in the queue get an error, and the next call starts a new thread.
            Err(error) => tracing::warn!(%error, "cannot start the writer thread for SQLite"),
        };
        thread::Builder::new().name("sqlite-writer".into()).spawn(thread_body)?;
        Ok(queue.insert(sender).clone())
    }
}

/// Executes queued scripts until all senders of the queue are dropped.
async fn run_writer_loop(writer: SqlitePool, mut queue: mpsc::UnboundedReceiver<PendingScript>) {
    while let Some(first) = queue.recv().await {
        let mut pending = vec![first];
        match writer.acquire().await {
            Ok(mut connection) => {
                for _ in 0..MAX_ROUNDS {
                    pending.extend(std::iter::from_fn(|| queue.try_recv().ok()));
                    if pending.is_empty() {
                        break;
                    }
                    execute_in_groups(&mut connection, std::mem::take(&mut pending)).await;
                }
            }
            Err(error) => {
                pending.extend(std::iter::from_fn(|| queue.try_recv().ok()));
                fail_all(pending, error.into());
            }
        }
    }
}

/// Executes all scripts, in groups of at most [`MAX_SCRIPTS_PER_COMMIT`] scripts and [`MAX_RUNS_PER_COMMIT`] runs.
async fn execute_in_groups(
    connection: &mut PoolConnection<Sqlite>,
    mut pending: Vec<PendingScript>,
) {
    while !pending.is_empty() {
        let mut runs = 0;
        let fits = |next: &PendingScript| {
            runs += next.script.max_runs;
            runs <= MAX_RUNS_PER_COMMIT
        };
        let group_size = pending
            .iter()
            .take(MAX_SCRIPTS_PER_COMMIT)
            .map(fits)
            .take_while(|fits| *fits)
            .count()
            .max(1);
        let rest = pending.split_off(group_size);
        let mut group = std::mem::replace(&mut pending, rest);
        // Sorted by kind, so that the groups have few different texts: SQLite caches prepared statements by text.
        group.sort_by_key(|pending| pending.script.statement.name);
        execute_group(connection, group).await;
    }
}

/// Sends the same error to all callers.
fn fail_all(pending: Vec<PendingScript>, error: Error) {
    let error = Arc::new(error);
    for failed in pending {
        let _ = failed.result_sender.send(Err(Error::Shared(Arc::clone(&error))));
    }
}

/// Executes a group with one commit. If one script fails, it executes each script again with a commit of its own.
async fn execute_group(connection: &mut PoolConnection<Sqlite>, mut group: Vec<PendingScript>) {
    // Skip the scripts whose callers were canceled.
    group.retain(|pending| !pending.result_sender.is_closed());
    if group.is_empty() {
        return;
    }
    match execute_transaction(connection, group.iter().map(|pending| &pending.script)).await {
        Ok(rows) => {
            let mut rows = rows.into_iter();
            for done in group {
                let script_rows = rows.by_ref().take(done.script.row_count).collect();
                let _ = done.result_sender.send(Ok(script_rows));
            }
        }
        Err(error) if group.len() == 1 || error.is_contention() => fail_all(group, error),
        Err(_) => {
            for pending in group {
                if !pending.result_sender.is_closed() {
                    let alone = std::iter::once(&pending.script);
                    let result = execute_transaction(connection, alone).await;
                    let _ = pending.result_sender.send(result);
                }
            }
        }
    }
}

/// Executes scripts in one transaction. Either all of them take effect or none.
async fn execute_transaction(
    connection: &mut PoolConnection<Sqlite>,
    scripts: impl Iterator<Item = &BoundScript>,
) -> Result<Vec<Row>, Error> {
    let mut text = String::from("begin immediate");
    let mut values = Vec::new();
    for script in scripts {
        text.push_str(";\n");
        append_renumbered(&mut text, &script.statement.text, values.len());
        values.extend(script.values.iter().cloned());
    }
    text.push_str(";\ncommit");
    let statement = TranslatedStatement { name: "group_commit", text, param_names: Vec::new() };
    let result = bind_sqlite(&statement, values).fetch_all(&mut **connection).await;
    match result {
        Ok(rows) => Ok(rows.into_iter().map(Row::Sqlite).collect()),
        Err(error) => {
            // After some errors SQLite has already rolled back, and then there is no transaction left.
            let rollback = connection.execute(sqlx::raw_sql("rollback")).await;
            if rollback.is_err_and(|error| !is_no_active_transaction(&error)) {
                connection.close_on_drop();
            }
            Err(error.into())
        }
    }
}

fn is_no_active_transaction(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| error.message().contains("no transaction is active"))
}

/// Appends a script to `text` and raises its parameter numbers by `offset`, the number of parameters already in `text`.
/// A JSON path also begins with `$`, but no digit follows there.
fn append_renumbered(text: &mut String, script: &str, offset: usize) {
    let mut parts = script.split('$');
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(digits);
        text.push('$');
        if let Ok(number) = number.parse::<usize>() {
            text.push_str(&(number + offset).to_string());
        }
        text.push_str(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_numbers_are_raised_by_the_offset() {
        let mut text = String::new();
        append_renumbered(&mut text, "select $1, '$[0]', $12 where $2", 3);
        assert_eq!(text, "select $4, '$[0]', $15 where $5");
    }
}
