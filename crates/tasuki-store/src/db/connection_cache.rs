//! Cache of database connections for PostgreSQL and MySQL. It prefers the connection that has already prepared the
//! statement, and skips the pool's ping.
//!
//! Why it exists: sqlx's pool pings every connection that is returned to it. That is one round trip after each
//! statement, and half of the traffic of an idle node. The pool also gives its connections out in rotation, so every
//! connection has to parse and plan every statement before all of them are fast.
//!
//! What it promises: a few connections that were returned in a clean state stay in the cache. A request for a statement
//! gets the connection that has executed this statement before, or else the most recently used one. If too many are
//! cached, the connection with the fewest prepared statements is removed. The pool is used only if the cache is empty.

use std::collections::HashSet;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, Database, Pool};
use tokio::runtime::Handle;

/// Maximum number of cached connections: about as many as a node uses at the same time.
const MAX_CACHED: usize = 4;
/// A connection that left the pool longer ago than this is returned to it. The pool then closes old connections.
const MAX_AGE: Duration = Duration::from_mins(5);
/// A connection that was used this recently is not pinged before its next use, because a ping is a round trip. The
/// value is longer than the second after which an idle node repeats its queries, and shorter than the time for which
/// MySQL keeps an idle connection.
pub(crate) const SKIP_PING_WITHIN: Duration = Duration::from_millis(1_500);
/// Maximum time to wait for the response to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection that was not used for this long is closed, in this cache and in the pool.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_mins(1);

/// A connection pool with a small cache in front of it. Cheap to clone.
pub(crate) struct ConnectionCache<D: Database> {
    pool: Pool<D>,
    state: Arc<Mutex<CacheState<D>>>,
}

struct CacheState<D: Database> {
    /// The cached connections, each with the time of its last use. The most recently used one is last.
    connections: Vec<(CachedConnection<D>, Instant)>,
    /// How many callers wait for a connection of the pool. While they wait, this cache must not keep
    /// a connection that the pool needs.
    waiting: usize,
}

/// A connection of the pool, with the statements that it has prepared.
pub(crate) struct CachedConnection<D: Database> {
    connection: PoolConnection<D>,
    /// When it was acquired from the pool.
    acquired_at: Instant,
    /// The statements that were executed on it since then outside a transaction, by
    /// [`TranslatedStatement::id`](crate::db::sql::TranslatedStatement::id). Most of them are still parsed and planned.
    prepared: HashSet<usize>,
}

impl<D: Database> CachedConnection<D> {
    fn new(connection: PoolConnection<D>) -> Self {
        Self { connection, acquired_at: Instant::now(), prepared: HashSet::new() }
    }
}

impl<D: Database> Deref for CachedConnection<D> {
    type Target = D::Connection;

    fn deref(&self) -> &D::Connection {
        &self.connection
    }
}

impl<D: Database> DerefMut for CachedConnection<D> {
    fn deref_mut(&mut self) -> &mut D::Connection {
        &mut self.connection
    }
}

impl<D: Database> Clone for ConnectionCache<D> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), state: Arc::clone(&self.state) }
    }
}

impl<D: Database> ConnectionCache<D> {
    /// Creates an empty cache in front of a pool.
    pub(crate) fn new(pool: Pool<D>) -> Self {
        let state = CacheState { connections: Vec::new(), waiting: 0 };
        Self { pool, state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the pool, to read its statistics only. Connections are acquired through this cache.
    pub(crate) fn pool_for_statistics(&self) -> &Pool<D> {
        &self.pool
    }

    /// Acquires a connection: a cached one, or else one of the pool. `statement` is the id of the statement that the
    /// caller will execute, if it is known. A connection that is dropped without [`put_back`](Self::put_back) returns
    /// to the pool, which then checks its state.
    pub(crate) async fn acquire(
        &self,
        statement: Option<usize>,
    ) -> Result<CachedConnection<D>, sqlx::Error> {
        let mut connection = self.acquire_any(statement).await?;
        connection.prepared.extend(statement);
        Ok(connection)
    }

    async fn acquire_any(
        &self,
        statement: Option<usize>,
    ) -> Result<CachedConnection<D>, sqlx::Error> {
        let waiter = loop {
            let (connection, last_used) = {
                let mut state = self.lock_state();
                let prepared = state.connections.iter().map(|(connection, _)| &connection.prepared);
                let Some(best) = best_match(prepared, statement) else {
                    state.waiting += 1;
                    break WaiterGuard(self);
                };
                state.connections.remove(best)
            };
            if last_used.elapsed() < SKIP_PING_WITHIN {
                return Ok(connection);
            }
            if let Some(connection) = ping_or_close(connection).await {
                return Ok(connection);
            }
        };
        let acquired = self.pool.acquire().await;
        drop(waiter);
        acquired.map(CachedConnection::new)
    }

    /// Puts a connection into the cache. Its last response must be complete, and no transaction may be open on it.
    pub(crate) fn put_back(&self, connection: CachedConnection<D>) {
        let mut state = self.lock_state();
        if state
            .connections
            .first()
            .is_some_and(|(_, last_used)| last_used.elapsed() > IDLE_TIMEOUT)
        {
            close_connection(state.connections.remove(0).0);
        }
        let return_to_pool =
            self.pool_is_exhausted_for(state.waiting) || connection.acquired_at.elapsed() > MAX_AGE;
        state.connections.push((connection, Instant::now()));
        let removed = match return_to_pool || self.pool.is_closed() {
            true => state.connections.pop(),
            false => {
                let prepared = state.connections.iter().map(|(connection, _)| &connection.prepared);
                find_surplus(prepared).map(|index| state.connections.remove(index))
            }
        };
        drop(state);
        match removed {
            // The pool would ping this connection, and it has no timeout for the response.
            Some((connection, last_used)) if last_used.elapsed() >= SKIP_PING_WITHIN => {
                close_connection(connection);
            }
            removed => drop(removed),
        }
    }

    /// Whether the pool cannot serve this many waiting callers, neither with an idle connection nor with a new one.
    /// A caller for whom the pool opens a connection right now counts twice.
    fn pool_is_exhausted_for(&self, waiting: usize) -> bool {
        let max_connections = self.pool.options().get_max_connections() as usize;
        let in_use = (self.pool.size() as usize).saturating_sub(self.pool.num_idle());
        waiting > 0 && in_use + waiting > max_connections
    }

    /// Closes the pool and all cached connections.
    pub(crate) async fn close(&self) {
        // From this call on `put_back` returns every connection to the closed pool.
        let closing = self.pool.close();
        self.lock_state().connections.clear();
        closing.await;
    }

    fn lock_state(&self) -> MutexGuard<'_, CacheState<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Chooses a connection for a statement, given the prepared statements of each: the most recently used connection that
/// has prepared it, or else the most recently used one. Returns its index.
fn best_match<'s>(
    mut prepared: impl DoubleEndedIterator<Item = &'s HashSet<usize>> + ExactSizeIterator,
    statement: Option<usize>,
) -> Option<usize> {
    let last = prepared.len().checked_sub(1);
    statement
        .and_then(|statement| prepared.rposition(|prepared| prepared.contains(&statement)))
        .or(last)
}

/// Finds the connection to remove if more than [`MAX_CACHED`] are cached: the one with the fewest prepared statements.
/// When a node starts, all of its loops use connections at the same time; the connection that has planned the
/// statements of the first task must survive this burst.
fn find_surplus<'s>(prepared: impl ExactSizeIterator<Item = &'s HashSet<usize>>) -> Option<usize> {
    let too_many = prepared.len() > MAX_CACHED;
    let fewest = prepared.enumerate().min_by_key(|(_, prepared)| prepared.len());
    fewest.filter(|_| too_many).map(|(index, _)| index)
}

/// Pings a connection and returns it if it responds. Otherwise the connection is closed, also if the caller is canceled
/// during the ping: a late response would be read as the response to the next statement.
async fn ping_or_close<D: Database>(
    connection: CachedConnection<D>,
) -> Option<CachedConnection<D>> {
    let mut guard = DiscardGuard(Some(connection));
    let response = tokio::time::timeout(PING_TIMEOUT, guard.0.as_mut()?.ping()).await;
    guard.0.take_if(|_| matches!(response, Ok(Ok(()))))
}

/// Discards the connection when it is dropped, unless the connection was taken out before.
struct DiscardGuard<D: Database>(Option<CachedConnection<D>>);

impl<D: Database> Drop for DiscardGuard<D> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            close_connection(connection);
        }
    }
}

/// Closes a connection. Without a tokio runtime it cannot send a goodbye to the server, so it only closes the socket.
pub(crate) fn close_connection<D: Database>(connection: CachedConnection<D>) {
    let mut connection = connection.connection;
    match Handle::try_current() {
        Ok(_) => connection.close_on_drop(),
        Err(_) => drop(connection.detach()),
    }
}

/// Counts one waiting caller in [`CacheState::waiting`] until it is dropped.
struct WaiterGuard<'a, D: Database>(&'a ConnectionCache<D>);

impl<D: Database> Drop for WaiterGuard<'_, D> {
    fn drop(&mut self) {
        self.0.lock_state().waiting -= 1;
    }
}

impl<D: Database> Drop for CacheState<D> {
    /// Detaches the connections: returning them to the pool needs a tokio runtime, which may have stopped by now.
    fn drop(&mut self) {
        self.connections.drain(..).for_each(|(connection, _)| drop(connection.connection.detach()));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_statement_gets_the_connection_that_has_prepared_it() {
        let prepared = [&[1, 2][..], &[1], &[]].map(|ids| ids.iter().copied().collect());
        let best = |statement| best_match(prepared.iter(), statement);
        assert_eq!(best(Some(1)), Some(1), "two have prepared it: the most recently used one");
        assert_eq!(best(Some(2)), Some(0), "only the least recently used one has prepared it");
        assert_eq!(best(Some(3)), Some(2), "none has prepared it: the most recently used one");
        assert_eq!(best(None), Some(2), "the statement is unknown: the most recently used one");
        assert_eq!(best_match([].iter(), Some(1)), None);
    }

    #[test]
    fn the_connection_with_the_fewest_prepared_statements_is_removed() {
        let surplus = |counts: &[usize]| {
            let prepared: Vec<HashSet<usize>> =
                counts.iter().map(|count| (0..*count).collect()).collect();
            find_surplus(prepared.iter())
        };
        assert_eq!(surplus(&[3, 1, 2, 1, 2]), Some(1), "of two the least recently used one");
        assert_eq!(surplus(&[3, 1, 2, 1, 0]), Some(4), "also the one that was just put back");
        assert_eq!(surplus(&[0; MAX_CACHED]), None);
        assert_eq!(surplus(&[]), None);
    }

    /// An empty cache in front of a pool with this many connections at most.
    async fn empty_cache(max_connections: u32) -> ConnectionCache<sqlx::Postgres> {
        let url = std::env::var("TASUKI_TEST_PG")
            .expect("TASUKI_TEST_PG is not set: run ./test, which starts the server");
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(max_connections);
        ConnectionCache::new(options.connect(&url).await.unwrap())
    }

    /// The prepared statements of each cached connection, the most recently used one last.
    fn list_prepared(cache: &ConnectionCache<sqlx::Postgres>) -> Vec<HashSet<usize>> {
        let state = cache.lock_state();
        state.connections.iter().map(|(connection, _)| connection.prepared.clone()).collect()
    }

    #[tokio::test]
    async fn opening_a_connection_does_not_remove_a_prepared_one_from_the_cache() {
        let cache = empty_cache(3).await;
        let prepared = cache.acquire(Some(1)).await.unwrap();
        let mut opening = Box::pin(cache.acquire(Some(2)));
        assert!((&mut opening).now_or_never().is_none(), "opening a connection takes time");
        cache.put_back(prepared);
        assert_eq!(list_prepared(&cache), [[1].into()]);
        cache.put_back(opening.await.unwrap());
        assert_eq!(list_prepared(&cache), [[1].into(), [2].into()]);
        cache.close().await;
    }

    #[tokio::test]
    async fn a_waiting_caller_gets_the_connection_that_is_put_back() {
        let cache = empty_cache(2).await;
        let first = cache.acquire(None).await.unwrap();
        let second = cache.acquire(None).await.unwrap();
        let mut waiting = Box::pin(cache.acquire(Some(1)));
        assert!((&mut waiting).now_or_never().is_none(), "all connections are in use");
        cache.put_back(first);
        let acquired = waiting.await.unwrap();
        cache.put_back(acquired);
        cache.put_back(second);
        assert_eq!(list_prepared(&cache), [[1].into(), [].into()]);
        cache.close().await;
    }
}
