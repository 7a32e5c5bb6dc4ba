//! Sessions kept at hand between two uses.
//!
//! A pool asks every session that is given back whether it is still there: a round trip after each statement, and
//! half of all that an idle node says. It also hands them out in turn, so that each of them has to parse and plan
//! every statement before any of them is quick. So a few that are given back in order stay here, what was used last is
//! used next, and the pool is asked only where there is none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, Database, Pool};
use tokio::runtime::Handle;

/// How many stay here: as many as a node mostly uses at a time.
const MOST: usize = 4;
/// Of so many that are given back one goes to the pool all the same, which closes what has grown old.
const ROUND: u32 = 64;
/// A session that was used so lately need not be asked whether it is still there: to ask is a round trip.
pub(crate) const FRESH: Duration = Duration::from_secs(1);
/// How long one has to say that it is.
const ANSWER: Duration = Duration::from_secs(2);
/// One that nobody needed for so long is closed.
const UNUSED: Duration = Duration::from_mins(1);

/// A pool, and what of it is at hand.
pub(crate) struct Hand<D: Database> {
    pool: Pool<D>,
    held: Arc<Mutex<Held<D>>>,
}

struct Held<D: Database> {
    /// With when it was last used.
    sessions: Vec<(PoolConnection<D>, Instant)>,
    /// How many wait for one of the pool: what they wait for must not lie here.
    waiting: usize,
    /// How many were given back.
    given: u32,
}

impl<D: Database> Clone for Hand<D> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), held: Arc::clone(&self.held) }
    }
}

impl<D: Database> Hand<D> {
    /// Nothing at hand yet.
    pub(crate) fn new(pool: Pool<D>) -> Self {
        let held = Held { sessions: Vec::new(), waiting: 0, given: 0 };
        Self { pool, held: Arc::new(Mutex::new(held)) }
    }

    /// To be asked about, and for nothing else: sessions are taken here.
    pub(crate) fn pool(&self) -> &Pool<D> {
        &self.pool
    }

    /// One that is at hand, or else one of the pool. Whoever lets go of it without [`give`](Self::give) leaves it to
    /// the pool to find out what became of it.
    pub(crate) async fn take(&self) -> Result<PoolConnection<D>, sqlx::Error> {
        let waiting = loop {
            let (session, used) = {
                let mut held = self.held();
                let Some(last) = held.sessions.pop() else {
                    held.waiting += 1;
                    break Waiting(self);
                };
                last
            };
            if used.elapsed() < FRESH {
                return Ok(session);
            }
            if let Some(session) = still_there(session).await {
                return Ok(session);
            }
        };
        let taken = self.pool.acquire().await;
        drop(waiting);
        taken
    }

    /// Gives one back that was heard to its end and is in no transaction.
    pub(crate) fn give(&self, session: PoolConnection<D>) {
        let mut held = self.held();
        held.given = held.given.wrapping_add(1);
        let wanted_there =
            held.waiting > 0 || held.given.is_multiple_of(ROUND) || self.pool.is_closed();
        if !wanted_there && held.sessions.len() < MOST {
            held.sessions.push((session, Instant::now()));
        }
        if held.sessions.first().is_some_and(|(_, used)| used.elapsed() > UNUSED) {
            throw_away(held.sessions.remove(0).0);
        }
    }

    /// Closes them all.
    pub(crate) async fn close(&self) {
        // Whoever gives one back from now on gives it to the pool.
        let closing = self.pool.close();
        self.held().sessions.clear();
        closing.await;
    }

    fn held(&self) -> MutexGuard<'_, Held<D>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks a session whether it is still there. One that does not say so, or whom nobody waits for any more, is closed: what it
/// says later would be taken for something else.
async fn still_there<D: Database>(session: PoolConnection<D>) -> Option<PoolConnection<D>> {
    let mut asked = Asked(Some(session));
    let answer = tokio::time::timeout(ANSWER, asked.0.as_mut()?.ping()).await;
    asked.0.take_if(|_| matches!(answer, Ok(Ok(()))))
}

struct Asked<D: Database>(Option<PoolConnection<D>>);

impl<D: Database> Drop for Asked<D> {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            throw_away(session);
        }
    }
}

/// Closes a session. Where there is no runtime nobody can be told, and the line is just cut.
pub(crate) fn throw_away<D: Database>(mut session: PoolConnection<D>) {
    match Handle::try_current() {
        Ok(_) => session.close_on_drop(),
        Err(_) => drop(session.detach()),
    }
}

/// Somebody waits, until this is dropped.
struct Waiting<'a, D: Database>(&'a Hand<D>);

impl<D: Database> Drop for Waiting<'_, D> {
    fn drop(&mut self) {
        self.0.held().waiting -= 1;
    }
}

impl<D: Database> Drop for Held<D> {
    /// To give them back would need a runtime, which may be gone by now.
    fn drop(&mut self) {
        self.sessions.drain(..).for_each(|(session, _)| drop(session.detach()));
    }
}
