//! Sessions kept at hand between two uses.
//!
//! A pool asks every session that is given back whether it is still there: a round trip after each statement, and
//! half of all that an idle node says. It also hands them out in turn, so that each of them has to parse and plan
//! every statement before any of them is quick. So a few that are given back in order stay here, what was used last is
//! used next, and the pool is asked only where there is none.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool};

/// How many stay here: as many as a node mostly uses at a time.
const MOST: usize = 4;
/// Of so many that are given back one goes to the pool all the same, which closes what has grown old.
const ROUND: u32 = 64;
/// A session that was used so lately need not be asked whether it is still there: to ask is a round trip.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

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
        let waiting = {
            let mut held = self.held();
            match held.sessions.pop() {
                Some((session, used)) if used.elapsed() < FRESH => return Ok(session),
                // The pool asks it, and those below it are older still.
                Some(_) => held.sessions.clear(),
                None => {}
            }
            held.waiting += 1;
            Waiting(self)
        };
        let taken = self.pool.acquire().await;
        drop(waiting);
        taken
    }

    /// Gives one back that was heard to its end and is in no transaction.
    pub(crate) fn give(&self, session: PoolConnection<D>) {
        let mut held = self.held();
        held.given = held.given.wrapping_add(1);
        let wanted_there = held.waiting > 0 || held.given % ROUND == 0 || self.pool.is_closed();
        if !wanted_there && held.sessions.len() < MOST {
            held.sessions.push((session, Instant::now()));
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

/// Somebody waits, until this is dropped.
struct Waiting<'a, D: Database>(&'a Hand<D>);

impl<D: Database> Drop for Waiting<'_, D> {
    fn drop(&mut self) {
        self.0.held().waiting -= 1;
    }
}

impl<D: Database> Drop for Held<D> {
    /// A pool that is dropped closes what it has; to give something back to it would need a runtime, which may be
    /// gone by now.
    fn drop(&mut self) {
        for (session, _) in self.sessions.drain(..) {
            drop(session.leak());
        }
    }
}
