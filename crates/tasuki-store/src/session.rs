//! A session of MySQL or MariaDB that is given back only if it was heard to the end.
//!
//! The driver does not find its way again in what a server says where a caller went away in mid-answer: what comes
//! next might be taken for the answer to something else. Such a session is closed, and the server undoes what was
//! not committed. PostgreSQL's protocol says where an answer ends, and SQLite has none.

use std::time::Duration;

use sqlx::mysql::MySqlConnection;
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Executor as _, MySql};

use crate::Error;
use crate::hand::Hand;

/// How long an undo may take whose caller has gone away.
const UNDO: Duration = Duration::from_secs(2);

/// A session, perhaps with a transaction begun.
pub(crate) struct Session {
    /// Until it is given back.
    session: Option<PoolConnection<MySql>>,
    hand: Hand<MySql>,
    /// Something was asked whose answer was not heard to the end.
    asked: bool,
    begun: bool,
}

impl Session {
    pub(crate) async fn take(hand: &Hand<MySql>) -> Result<Self, Error> {
        let session = Some(hand.take().await?);
        Ok(Self { session, hand: hand.clone(), asked: false, begun: false })
    }

    /// With a transaction begun like this.
    pub(crate) async fn begin(hand: &Hand<MySql>, begin: &'static str) -> Result<Self, Error> {
        let mut this = Self::take(hand).await?;
        this.say(begin).await?;
        this.begun = true;
        Ok(this)
    }

    /// To ask something on. Whoever does tells what was [`heard`](Self::heard).
    pub(crate) fn ask(&mut self) -> &mut MySqlConnection {
        self.asked = true;
        self.session.as_mut().expect("it is given back at its end")
    }

    /// The answer was heard to its end, also where it is a refusal.
    pub(crate) fn heard<T>(&mut self, told: Result<T, sqlx::Error>) -> Result<T, Error> {
        self.asked = !matches!(told, Ok(_) | Err(sqlx::Error::Database(_)));
        Ok(told?)
    }

    /// Statements without parameters.
    pub(crate) async fn say(&mut self, text: &str) -> Result<(), Error> {
        let text = sqlx::raw_sql(AssertSqlSafe(text.to_owned()));
        let told = self.ask().execute(text).await;
        self.heard(told).map(drop)
    }

    /// Ends the transaction.
    pub(crate) async fn end(mut self, how: &'static str) -> Result<(), Error> {
        self.say(how).await?;
        self.begun = false;
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(mut session) = self.session.take() else { return };
        if self.asked {
            session.close_on_drop();
        } else if self.begun {
            let Ok(runtime) = tokio::runtime::Handle::try_current() else {
                return session.close_on_drop();
            };
            runtime.spawn(async move {
                let undone = tokio::time::timeout(UNDO, session.execute("rollback")).await;
                if !matches!(undone, Ok(Ok(_))) {
                    session.close_on_drop();
                }
            });
        } else {
            self.hand.give(session);
        }
    }
}

/// Whose transaction it is.
pub(crate) enum OpenMySql<'a> {
    Ours(Session),
    /// Whoever began it ends it.
    Theirs(&'a mut MySqlConnection),
}

impl OpenMySql<'_> {
    pub(crate) fn ask(&mut self) -> &mut MySqlConnection {
        match self {
            Self::Ours(ours) => ours.ask(),
            Self::Theirs(theirs) => theirs,
        }
    }

    pub(crate) fn heard<T>(&mut self, told: Result<T, sqlx::Error>) -> Result<T, Error> {
        match self {
            Self::Ours(ours) => ours.heard(told),
            Self::Theirs(_) => Ok(told?),
        }
    }

    pub(crate) async fn end(self, how: &'static str) -> Result<(), Error> {
        match self {
            Self::Ours(ours) => ours.end(how).await,
            Self::Theirs(_) => Ok(()),
        }
    }
}
