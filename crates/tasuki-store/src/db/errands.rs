//! What SQLite is told in one go.
//!
//! There is one writer, a commit waits for the disk, and each exchange with SQLite's thread waits for its turn among all that
//! a program does. An errand is a whole transaction that needs no answer on its way: it is sent at once, together with all
//! others that wait for the writer, and one commit makes them durable. Nobody hears that it is done before it is.

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
use crate::db::sql::{Ready, Sql};

/// More errands than this do not share a commit, nor do those that move more runs than this in all: SQLite takes longer for them
/// than for the commit, and who waits for one should not wait for the other.
const TOGETHER: usize = 4;
const RUNS_TOGETHER: usize = 512;
/// So often those who have come meanwhile are gone for with the same session, before others may have the writer.
const ROUNDS: usize = 4;

/// Statements that are sent together, and how many rows they answer with in all.
pub(crate) struct Errand {
    pub(crate) script: Sql,
    pub(crate) rows: usize,
}

/// Those who wait for the writer. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Errands {
    writer: SqlitePool,
    /// Where they wait, if somebody goes for them.
    line: Arc<Mutex<Option<Line>>>,
}

type Line = mpsc::UnboundedSender<Waiting>;

/// An errand, how many runs it is about at most, and its values.
pub(crate) struct Asked<'p> {
    pub(crate) errand: &'static Errand,
    pub(crate) runs: usize,
    pub(crate) params: Params<'p>,
}

/// The same as SQLite is told it.
pub(crate) struct Going {
    pub(crate) script: &'static Ready,
    pub(crate) rows: usize,
    pub(crate) runs: usize,
    pub(crate) values: Vec<Param>,
}

struct Waiting {
    going: Going,
    answer: oneshot::Sender<Result<Vec<Row>, Error>>,
}

impl Errands {
    pub(crate) fn new(writer: SqlitePool) -> Self {
        Self { writer, line: Arc::default() }
    }

    /// Returns when each of them is durable, or nothing of it has happened.
    pub(crate) async fn run(&self, all: Vec<Going>) -> Vec<Result<Vec<Row>, Error>> {
        let line = match self.line() {
            Ok(line) => line,
            Err(error) => {
                let error = Arc::new(Error::from(sqlx::Error::Io(error)));
                return all.iter().map(|_| Err(Error::Shared(Arc::clone(&error)))).collect();
            }
        };
        let told: Vec<_> = all
            .into_iter()
            .map(|going| {
                let (answer, told) = oneshot::channel();
                // Whom nobody goes for hears that nobody answers.
                let _ = line.send(Waiting { going, answer });
                told
            })
            .collect();
        let mut heard = Vec::with_capacity(told.len());
        for one in told {
            // What nobody answers is unheard, not undone.
            heard.push(one.await.unwrap_or_else(|_| Err(Error::timed_out())));
        }
        heard
    }

    /// The line that somebody attends: a thread by itself, that ends with the last who could come. In the program's own
    /// threads a thousand tasks that have just been launched would have their turn before each next errand, and SQLite
    /// nothing to do meanwhile.
    fn line(&self) -> io::Result<Line> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(attended) = line.as_ref().filter(|line| !line.is_closed()) {
            return Ok(attended.clone());
        }
        let (sender, waiting) = mpsc::unbounded_channel();
        let attend = attend(self.writer.clone(), waiting);
        let attend = || match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(attend),
            // Those who wait hear that nobody comes, and who comes later is attended again.
            Err(error) => tracing::warn!(%error, "nobody can go on errands"),
        };
        thread::Builder::new().name("errands".into()).spawn(attend)?;
        Ok(line.insert(sender).clone())
    }
}

/// Goes for those who wait, as long as anybody may come.
async fn attend(writer: SqlitePool, mut line: mpsc::UnboundedReceiver<Waiting>) {
    while let Some(first) = line.recv().await {
        let mut all = vec![first];
        match writer.acquire().await {
            Ok(mut session) => {
                for _ in 0..ROUNDS {
                    all.extend(std::iter::from_fn(|| line.try_recv().ok()));
                    if all.is_empty() {
                        break;
                    }
                    go(&mut session, std::mem::take(&mut all)).await;
                }
            }
            Err(error) => {
                all.extend(std::iter::from_fn(|| line.try_recv().ok()));
                refuse(all, error.into());
            }
        }
    }
}

/// Runs all of these, a few at a time.
async fn go(session: &mut PoolConnection<Sqlite>, mut all: Vec<Waiting>) {
    while !all.is_empty() {
        let mut runs = 0;
        let fits = |one: &Waiting| {
            runs += one.going.runs;
            runs <= RUNS_TOGETHER
        };
        let some = all.iter().take(TOGETHER).map(fits).take_while(|fits| *fits).count().max(1);
        let rest = all.split_off(some);
        let mut some = std::mem::replace(&mut all, rest);
        // Of one kind after the other: SQLite keeps what it has made of a text, and so these are few texts.
        some.sort_by_key(|one| one.going.script.statement);
        go_together(session, some).await;
    }
}

/// Tells all of these that it came to nothing.
fn refuse(all: Vec<Waiting>, error: Error) {
    let error = Arc::new(error);
    for one in all {
        let _ = one.answer.send(Err(Error::Shared(Arc::clone(&error))));
    }
}

/// Runs these with one commit; where one of them stands in the way of the others, each with its own.
async fn go_together(session: &mut PoolConnection<Sqlite>, mut all: Vec<Waiting>) {
    // Nobody waits for what they asked any more.
    all.retain(|one| !one.answer.is_closed());
    if all.is_empty() {
        return;
    }
    match attempt(session, all.iter().map(|one| &one.going)).await {
        Ok(rows) => {
            let mut rows = rows.into_iter();
            for one in all {
                let _ = one.answer.send(Ok(rows.by_ref().take(one.going.rows).collect()));
            }
        }
        Err(error) if all.len() == 1 || error.is_contention() => refuse(all, error),
        Err(_) => {
            for one in all {
                if !one.answer.is_closed() {
                    let told = attempt(session, std::iter::once(&one.going)).await;
                    let _ = one.answer.send(told);
                }
            }
        }
    }
}

/// All of them in one transaction, or none.
async fn attempt(
    session: &mut PoolConnection<Sqlite>,
    all: impl Iterator<Item = &Going>,
) -> Result<Vec<Row>, Error> {
    let mut text = String::from("begin immediate");
    let mut values = Vec::new();
    for one in all {
        text.push_str(";\n");
        shifted(&mut text, &one.script.text, values.len());
        values.extend(one.values.iter().cloned());
    }
    text.push_str(";\ncommit");
    let ready = Ready { statement: "errands", text, names: Vec::new() };
    let told = bind_sqlite(&ready, values).fetch_all(&mut **session).await;
    match told {
        Ok(rows) => Ok(rows.into_iter().map(Row::Sqlite).collect()),
        Err(error) => {
            // Where SQLite has undone it by itself there is nothing left to undo.
            let undone = session.execute(sqlx::raw_sql("rollback")).await;
            if undone.is_err_and(|error| !is_nothing_open(&error)) {
                session.close_on_drop();
            }
            Err(error.into())
        }
    }
}

fn is_nothing_open(error: &sqlx::Error) -> bool {
    let told = error.as_database_error();
    told.is_some_and(|told| told.message().contains("no transaction is active"))
}

/// Adds a script whose parameters come behind so many others. A path in JSON begins with the same sign, and never with a number.
fn shifted(text: &mut String, script: &str, others: usize) {
    let mut parts = script.split('$');
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(digits);
        text.push('$');
        if let Ok(number) = number.parse::<usize>() {
            text.push_str(&(number + others).to_string());
        }
        text.push_str(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_come_behind_those_of_others() {
        let mut text = String::new();
        shifted(&mut text, "select $1, '$[0]', $12 where $2", 3);
        assert_eq!(text, "select $4, '$[0]', $15 where $5");
    }
}
