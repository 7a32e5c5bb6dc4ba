//! Wake-up notifications between processes through PostgreSQL LISTEN/NOTIFY. They are hints: a notification may be
//! lost, and nothing relies on it. The other databases have no notifications.
//!
//! Statements that submit tasks send no notification themselves, because PostgreSQL serializes commits that contain a
//! NOTIFY.

use std::fmt;

use sqlx::postgres::{PgListener, PgPool, PgPoolOptions};

use crate::db::connect::Pools;
use crate::db::connection_in_use::ServerConnection;
use crate::{Error, Store};

const CHANNEL: &str = "tasuki";

/// The content of a notification: which loops of the other processes should wake up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Notification {
    /// Random id of the sending process, which ignores its own notifications.
    pub sender: u64,
    /// The leader has something to plan or to assign.
    pub wake_planner: bool,
    /// Workers can claim runs.
    pub wake_claims: bool,
    /// Something about leased runs has changed, for example a cancel was requested: workers should renew their leases.
    pub wake_renew_loop: bool,
    /// There is no leader any more: candidates should try to take the leadership.
    pub wake_election: bool,
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.sender)?;
        let targets = [
            (self.wake_planner, " planner"),
            (self.wake_claims, " claims"),
            (self.wake_renew_loop, " leases"),
            (self.wake_election, " election"),
        ];
        targets.iter().filter(|(is_set, _)| *is_set).try_for_each(|(_, name)| f.write_str(name))
    }
}

impl Notification {
    /// Parses the output of [`Display`](fmt::Display). Ignores unknown names, because a newer tasuki may send more.
    pub fn parse(text: &str) -> Self {
        let mut parts = text.split(' ');
        let sender = parts.next().and_then(|sender| u64::from_str_radix(sender, 16).ok());
        let mut notification = Self { sender: sender.unwrap_or_default(), ..Self::default() };
        for name in parts {
            match name {
                "planner" => notification.wake_planner = true,
                "claims" => notification.wake_claims = true,
                "leases" => notification.wake_renew_loop = true,
                "election" => notification.wake_election = true,
                _ => {}
            }
        }
        notification
    }
}

/// Receives notifications, on a database connection of its own.
pub struct NotificationListener {
    listener: PgListener,
    pool: PgPool,
}

impl NotificationListener {
    /// Waits for the next notification. `None`: the connection was lost and has been opened again; notifications that
    /// were sent meanwhile are lost.
    pub async fn receive(&mut self) -> Result<Option<Notification>, Error> {
        let received = self.listener.try_recv().await?;
        Ok(received.map(|message| Notification::parse(message.payload())))
    }

    /// Closes the connection.
    pub async fn close(self) {
        drop(self.listener);
        self.pool.close().await;
    }
}

impl Store {
    /// Sends a notification to all processes that listen on this database. Does nothing on a database without
    /// notifications.
    pub async fn notify(&self, notification: Notification) -> Result<(), Error> {
        let Pools::Postgres(cache) = self.db.pools() else { return Ok(()) };
        let statement =
            sqlx::query("select pg_notify($1, $2)").bind(CHANNEL).bind(notification.to_string());
        let mut connection = ServerConnection::acquire(cache).await?;
        let result = statement.execute(connection.begin_exchange()).await;
        connection.finish_exchange(result).map(drop)
    }

    /// Starts to listen for notifications. `None`: this database has no notifications.
    pub async fn listen(&self) -> Result<Option<NotificationListener>, Error> {
        let Pools::Postgres(cache) = self.db.pools() else { return Ok(None) };
        let options = (*cache.pool_for_statistics().connect_options()).clone();
        let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(CHANNEL).await?;
        Ok(Some(NotificationListener { listener, pool }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_reverses_display() {
        for bits in 0..16_u8 {
            let notification = Notification {
                sender: u64::MAX - u64::from(bits),
                wake_planner: bits & 1 > 0,
                wake_claims: bits & 2 > 0,
                wake_renew_loop: bits & 4 > 0,
                wake_election: bits & 8 > 0,
            };
            assert_eq!(Notification::parse(&notification.to_string()), notification);
        }
        assert_eq!(Notification::parse(""), Notification::default());
        let of_newer_version =
            Notification { sender: 10, wake_claims: true, ..Notification::default() };
        assert_eq!(Notification::parse("a tea claims"), of_newer_version);
    }
}
