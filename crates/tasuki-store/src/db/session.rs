//! A session with a server, which is given back in order or not at all.
//!
//! A caller may go away in mid-answer. MySQL's driver does not find its way again in what the server goes on to say:
//! it might be taken for the answer to something else. Such a session is closed, and the server undoes what was not
//! committed. PostgreSQL's protocol says where an answer ends: what was begun is undone, and the pool hears the rest
//! out. (On SQLite there is nothing to hear.)

use std::time::Duration;

use sqlx::{AssertSqlSafe, Database, Executor as _, MySql, Postgres};
use tokio::runtime::Handle;

use crate::Error;
use crate::db::connection_cache::{ConnectionCache, Known, throw_away};
use crate::db::sql::Ready;

/// How long an undo may take whose caller has gone away.
const UNDO: Duration = Duration::from_secs(2);

/// A database that is a server.
pub(crate) trait Server: Database {
    /// Whether a session is of use after an answer that was not heard to its end.
    const FINDS_ITS_WAY: bool;

    /// Statements without parameters.
    fn say(
        session: &mut Self::Connection,
        text: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

impl Server for Postgres {
    const FINDS_ITS_WAY: bool = true;

    async fn say(session: &mut Self::Connection, text: &str) -> Result<(), sqlx::Error> {
        session.execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await.map(drop)
    }
}

impl Server for MySql {
    const FINDS_ITS_WAY: bool = false;

    async fn say(session: &mut Self::Connection, text: &str) -> Result<(), sqlx::Error> {
        session.execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await.map(drop)
    }
}

/// A session, perhaps with a transaction begun.
pub(crate) struct Session<D: Server> {
    /// Until it is given back.
    session: Option<Known<D>>,
    hand: ConnectionCache<D>,
    /// Something was asked whose answer was not heard to the end.
    asked: bool,
    /// Something was refused: perhaps the last thing that was said on it.
    refused: bool,
    /// It is in a transaction, or may be.
    begun: bool,
}

impl<D: Server> Session<D> {
    /// Any.
    pub(crate) async fn take(hand: &ConnectionCache<D>) -> Result<Self, Error> {
        Self::taken(hand, None).await
    }

    /// One to say this statement on.
    pub(crate) async fn to_say(statement: &Ready, hand: &ConnectionCache<D>) -> Result<Self, Error> {
        Self::taken(hand, Some(statement.mark())).await
    }

    async fn taken(hand: &ConnectionCache<D>, statement: Option<usize>) -> Result<Self, Error> {
        let session = Some(hand.take(statement).await?);
        Ok(Self { session, hand: hand.clone(), asked: false, refused: false, begun: false })
    }

    /// With a transaction begun like this.
    pub(crate) async fn begin(hand: &ConnectionCache<D>, begin: &'static str) -> Result<Self, Error> {
        let mut this = Self::take(hand).await?;
        this.begun = true;
        this.say(begin).await?;
        Ok(this)
    }

    /// To ask something on. Whoever does tells what was [`heard`](Self::heard).
    pub(crate) fn ask(&mut self) -> &mut D::Connection {
        self.asked = true;
        self.session.as_mut().expect("it is given back at its end")
    }

    /// The answer was heard to its end, also where it is a refusal.
    pub(crate) fn heard<T>(&mut self, told: Result<T, sqlx::Error>) -> Result<T, Error> {
        self.asked = !matches!(told, Ok(_) | Err(sqlx::Error::Database(_)));
        self.refused |= told.is_err();
        Ok(told?)
    }

    /// Statements without parameters.
    pub(crate) async fn say(&mut self, text: &str) -> Result<(), Error> {
        let told = D::say(self.ask(), text).await;
        self.heard(told)
    }

    /// Ends the transaction.
    pub(crate) async fn end(mut self, how: &'static str) -> Result<(), Error> {
        self.say(how).await?;
        self.begun = false;
        Ok(())
    }
}

impl<D: Server> Drop for Session<D> {
    fn drop(&mut self) {
        let Some(mut session) = self.session.take() else { return };
        let Ok(runtime) = Handle::try_current() else { return throw_away(session) };
        match (self.asked, self.begun) {
            (false, false) if !self.refused => self.hand.give(session),
            (true, _) if !D::FINDS_ITS_WAY => throw_away(session),
            // The pool hears the answer out, and asks whether it is still there.
            (_, false) => {}
            (_, true) => drop(runtime.spawn(async move {
                let undone = tokio::time::timeout(UNDO, D::say(&mut session, "rollback")).await;
                if !matches!(undone, Ok(Ok(()))) {
                    throw_away(session);
                }
            })),
        }
    }
}

/// Whose transaction it is.
pub(crate) enum Opened<'a, D: Server> {
    Ours(Session<D>),
    /// Whoever began it ends it.
    Theirs(&'a mut D::Connection),
}

impl<D: Server> Opened<'_, D> {
    pub(crate) fn ask(&mut self) -> &mut D::Connection {
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
