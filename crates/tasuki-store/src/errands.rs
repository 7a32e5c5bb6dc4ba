//! What SQLite is told in one go.
//!
//! There is one writer, a commit waits for the disk, and each exchange with SQLite's thread waits for its turn among all that
//! a program does. An errand is a whole transaction that needs no answer on its way: it is sent at once, together with all
//! others that wait for the writer, and one commit makes them durable. Nobody hears that it is done before it is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqlitePool;
use sqlx::{Executor as _, Sqlite};
use tokio::sync::oneshot;

use crate::Error;
use crate::bind::{Param, bind_sqlite};
use crate::row::Row;
use crate::sql::{Ready, Sql};

/// More errands than this do not share a commit.
const TOGETHER: usize = 4;

/// Statements that are sent together, and how many rows they answer with in all.
pub(crate) struct Errand {
    pub(crate) script: Sql,
    pub(crate) rows: usize,
}

/// Those who wait for the writer. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Errands {
    writer: SqlitePool,
    line: Arc<Mutex<Line>>,
}

#[derive(Default)]
struct Line {
    waiting: Vec<Waiting>,
    /// Somebody goes for those who wait.
    attended: bool,
}

/// An errand with its values.
pub(crate) struct Going {
    pub(crate) script: &'static Ready,
    pub(crate) rows: usize,
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
        let with_answer = |going| {
            let (answer, told) = oneshot::channel();
            (Waiting { going, answer }, told)
        };
        let (waiting, told): (Vec<_>, Vec<_>) = all.into_iter().map(with_answer).unzip();
        let attended = {
            let mut line = self.line();
            line.waiting.extend(waiting);
            std::mem::replace(&mut line.attended, true)
        };
        // By itself, to its end: whoever is first goes for others, too, and may not wait for long.
        if !attended {
            tokio::spawn(Attending { errands: self.clone(), done: false }.go());
        }
        let mut heard = Vec::with_capacity(told.len());
        for one in told {
            // What nobody answers is unheard, not undone.
            heard.push(one.await.unwrap_or_else(|_| Err(Error::timed_out())));
        }
        heard
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody waits; then nobody goes any more.
    fn is_done(&self) -> bool {
        let mut line = self.line();
        line.attended = !line.waiting.is_empty();
        !line.attended
    }

    /// Runs all that wait when the writer is there.
    async fn go(&self) {
        let writer = self.writer.acquire().await;
        let mut all = std::mem::take(&mut self.line().waiting);
        let mut session = match writer {
            Ok(session) => session,
            Err(error) => {
                let error = Arc::new(Error::from(error));
                for one in all {
                    let _ = one.answer.send(Err(Error::Shared(Arc::clone(&error))));
                }
                return;
            }
        };
        // Of one kind after the other, a few at a time: SQLite keeps what it has made of a text, and these are few texts.
        all.sort_by_key(|one| one.going.script.statement);
        while !all.is_empty() {
            let rest = all.split_off(all.len().min(TOGETHER));
            go_together(&mut session, std::mem::replace(&mut all, rest)).await;
        }
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
        Err(error) if all.len() == 1 || error.is_contention() => {
            let error = Arc::new(error);
            for one in all {
                let _ = one.answer.send(Err(Error::Shared(Arc::clone(&error))));
            }
        }
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

/// Whoever goes for those who wait.
struct Attending {
    errands: Errands,
    done: bool,
}

impl Attending {
    async fn go(mut self) {
        while !self.errands.is_done() {
            self.errands.go().await;
        }
        self.done = true;
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        // It ends with its runtime: those who wait hear that nobody comes, and who comes later is attended again.
        if !self.done {
            *self.errands.line() = Line::default();
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
