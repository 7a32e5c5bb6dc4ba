//! Sessions kept at hand between two uses.
//!
//! A pool asks every session that is given back whether it is still there: a round trip after each statement, and
//! half of all that an idle node says. It also hands them out in turn, so that each of them has to parse and plan
//! every statement before any of them is quick. So a few that are given back in order stay here: for a statement the
//! one that has said it before, else what was used last; of too many the one goes that has said least. The pool is
//! asked only where there is none.

use std::collections::HashSet;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, Database, Pool};
use tokio::runtime::Handle;

/// How many stay here: as many as a node mostly uses at a time.
const MOST: usize = 4;
/// After so long one goes to the pool all the same, which closes what has grown old.
const TERM: Duration = Duration::from_mins(5);
/// A session that was used so lately need not be asked whether it is still there: to ask is a round trip. Longer than
/// the second after which an idle node says the same again, and shorter than what MySQL keeps an idle session for.
pub(crate) const FRESH: Duration = Duration::from_millis(1_500);
/// How long one has to say that it is.
const ANSWER: Duration = Duration::from_secs(2);
/// One that nobody needed for so long is closed, here and in the pool.
pub(crate) const UNUSED: Duration = Duration::from_mins(1);

/// A pool, and what of it is at hand.
pub(crate) struct ConnectionCache<D: Database> {
    pool: Pool<D>,
    held: Arc<Mutex<Held<D>>>,
}

struct Held<D: Database> {
    /// With when it was last used; the last used is last.
    sessions: Vec<(Known<D>, Instant)>,
    /// How many wait for one of the pool: what they wait for must not lie here.
    waiting: usize,
}

/// A session of the pool, and what is known of it.
pub(crate) struct Known<D: Database> {
    session: PoolConnection<D>,
    /// When it came from the pool.
    since: Instant,
    /// What it has said since then by itself, by [`Ready::mark`](crate::db::sql::Ready::mark): that is mostly still parsed
    /// and planned.
    said: HashSet<usize>,
}

impl<D: Database> Known<D> {
    fn new(session: PoolConnection<D>) -> Self {
        Self { session, since: Instant::now(), said: HashSet::new() }
    }
}

impl<D: Database> Deref for Known<D> {
    type Target = D::Connection;

    fn deref(&self) -> &D::Connection {
        &self.session
    }
}

impl<D: Database> DerefMut for Known<D> {
    fn deref_mut(&mut self) -> &mut D::Connection {
        &mut self.session
    }
}

impl<D: Database> Clone for ConnectionCache<D> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), held: Arc::clone(&self.held) }
    }
}

impl<D: Database> ConnectionCache<D> {
    /// Nothing at hand yet.
    pub(crate) fn new(pool: Pool<D>) -> Self {
        let held = Held { sessions: Vec::new(), waiting: 0 };
        Self { pool, held: Arc::new(Mutex::new(held)) }
    }

    /// To be asked about, and for nothing else: sessions are taken here.
    pub(crate) fn pool(&self) -> &Pool<D> {
        &self.pool
    }

    /// One to say this statement on, if it is known which: one that is at hand, or else one of the pool. Whoever lets
    /// go of it without [`give`](Self::give) leaves it to the pool to find out what became of it.
    pub(crate) async fn take(&self, statement: Option<usize>) -> Result<Known<D>, sqlx::Error> {
        let mut known = self.any(statement).await?;
        known.said.extend(statement);
        Ok(known)
    }

    async fn any(&self, statement: Option<usize>) -> Result<Known<D>, sqlx::Error> {
        let waiting = loop {
            let (known, used) = {
                let mut held = self.held();
                let said = held.sessions.iter().map(|(known, _)| &known.said);
                let Some(best) = best(said, statement) else {
                    held.waiting += 1;
                    break Waiting(self);
                };
                held.sessions.remove(best)
            };
            if used.elapsed() < FRESH {
                return Ok(known);
            }
            if let Some(known) = still_there(known).await {
                return Ok(known);
            }
        };
        let taken = self.pool.acquire().await;
        drop(waiting);
        taken.map(Known::new)
    }

    /// Gives one back that was heard to its end and is in no transaction.
    pub(crate) fn give(&self, known: Known<D>) {
        let mut held = self.held();
        if held.sessions.first().is_some_and(|(_, used)| used.elapsed() > UNUSED) {
            throw_away(held.sessions.remove(0).0);
        }
        let wanted_there = self.is_short_of(held.waiting) || known.since.elapsed() > TERM;
        held.sessions.push((known, Instant::now()));
        let leaves = match wanted_there || self.pool.is_closed() {
            true => held.sessions.pop(),
            false => {
                let said = held.sessions.iter().map(|(known, _)| &known.said);
                surplus(said).map(|least| held.sessions.remove(least))
            }
        };
        drop(held);
        match leaves {
            // The pool would ask it whether it is still there, and wait for the answer for ever.
            Some((known, used)) if used.elapsed() >= FRESH => throw_away(known),
            leaves => drop(leaves),
        }
    }

    /// Whether the pool cannot give each of so many who wait a session: each is there, or may be opened, unless too many
    /// are taken. Those who wait for one to be opened count twice.
    fn is_short_of(&self, waiting: usize) -> bool {
        let most = self.pool.options().get_max_connections() as usize;
        let taken = (self.pool.size() as usize).saturating_sub(self.pool.num_idle());
        waiting > 0 && taken + waiting > most
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

/// Which session is the next for a statement, of those that have said these: the last used that has said it before,
/// else the last used.
fn best<'s>(
    mut said: impl DoubleEndedIterator<Item = &'s HashSet<usize>> + ExactSizeIterator,
    statement: Option<usize>,
) -> Option<usize> {
    let last = said.len().checked_sub(1);
    statement.and_then(|asked| said.rposition(|said| said.contains(&asked))).or(last)
}

/// Which session is one too many, of those that have said these: the one that has said least. When a node starts, all of
/// its loops ask at once, and what was planned for its first task must not go with the rush.
fn surplus<'s>(said: impl ExactSizeIterator<Item = &'s HashSet<usize>>) -> Option<usize> {
    let too_many = said.len() > MOST;
    let least = said.enumerate().min_by_key(|(_, said)| said.len());
    least.filter(|_| too_many).map(|(index, _)| index)
}

/// Asks a session whether it is still there. One that does not say so, or whom nobody waits for any more, is closed: what it
/// says later would be taken for something else.
async fn still_there<D: Database>(known: Known<D>) -> Option<Known<D>> {
    let mut asked = Asked(Some(known));
    let answer = tokio::time::timeout(ANSWER, asked.0.as_mut()?.ping()).await;
    asked.0.take_if(|_| matches!(answer, Ok(Ok(()))))
}

struct Asked<D: Database>(Option<Known<D>>);

impl<D: Database> Drop for Asked<D> {
    fn drop(&mut self) {
        if let Some(known) = self.0.take() {
            throw_away(known);
        }
    }
}

/// Closes a session. Where there is no runtime nobody can be told, and the line is just cut.
pub(crate) fn throw_away<D: Database>(known: Known<D>) {
    let mut session = known.session;
    match Handle::try_current() {
        Ok(_) => session.close_on_drop(),
        Err(_) => drop(session.detach()),
    }
}

/// Somebody waits, until this is dropped.
struct Waiting<'a, D: Database>(&'a ConnectionCache<D>);

impl<D: Database> Drop for Waiting<'_, D> {
    fn drop(&mut self) {
        self.0.held().waiting -= 1;
    }
}

impl<D: Database> Drop for Held<D> {
    /// To give them back would need a runtime, which may be gone by now.
    fn drop(&mut self) {
        self.sessions.drain(..).for_each(|(known, _)| drop(known.session.detach()));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_statement_goes_to_who_has_said_it() {
        let said = [&[1, 2][..], &[1], &[]].map(|said| said.iter().copied().collect());
        let next = |statement| best(said.iter(), statement);
        assert_eq!(next(Some(1)), Some(1), "the last used of two");
        assert_eq!(next(Some(2)), Some(0), "however long ago");
        assert_eq!(next(Some(3)), Some(2), "new to all of them: the last used");
        assert_eq!(next(None), Some(2), "nobody knows what is to be said");
        assert_eq!(best([].iter(), Some(1)), None);
    }

    #[test]
    fn of_too_many_the_one_goes_that_has_said_least() {
        let one_too_many = |counts: &[usize]| {
            let said: Vec<HashSet<usize>> =
                counts.iter().map(|count| (0..*count).collect()).collect();
            surplus(said.iter())
        };
        assert_eq!(one_too_many(&[3, 1, 2, 1, 2]), Some(1), "unused for longest of two");
        assert_eq!(one_too_many(&[3, 1, 2, 1, 0]), Some(4), "also the one just given back");
        assert_eq!(one_too_many(&[0; MOST]), None);
        assert_eq!(one_too_many(&[]), None);
    }

    /// The pool with so many sessions at most, nothing at hand.
    async fn hand(most: u32) -> ConnectionCache<sqlx::Postgres> {
        let url = std::env::var("TASUKI_TEST_PG")
            .expect("TASUKI_TEST_PG is not set: run ./test, which starts the server");
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(most);
        ConnectionCache::new(options.connect(&url).await.unwrap())
    }

    /// What the sessions at hand have said, the last used last.
    fn said(hand: &ConnectionCache<sqlx::Postgres>) -> Vec<HashSet<usize>> {
        hand.held().sessions.iter().map(|(known, _)| known.said.clone()).collect()
    }

    #[tokio::test]
    async fn who_opens_a_session_takes_none_that_has_planned() {
        let hand = hand(3).await;
        let planned = hand.take(Some(1)).await.unwrap();
        let mut opening = Box::pin(hand.take(Some(2)));
        assert!((&mut opening).now_or_never().is_none(), "it takes a while");
        hand.give(planned);
        assert_eq!(said(&hand), [[1].into()]);
        hand.give(opening.await.unwrap());
        assert_eq!(said(&hand), [[1].into(), [2].into()]);
        hand.close().await;
    }

    #[tokio::test]
    async fn who_waits_for_a_session_gets_what_is_given_back() {
        let hand = hand(2).await;
        let (one, other) = (hand.take(None).await.unwrap(), hand.take(None).await.unwrap());
        let mut waiting = Box::pin(hand.take(Some(1)));
        assert!((&mut waiting).now_or_never().is_none(), "all are taken");
        hand.give(one);
        let waited = waiting.await.unwrap();
        hand.give(waited);
        hand.give(other);
        assert_eq!(said(&hand), [[1].into(), [].into()]);
        hand.close().await;
    }
}
