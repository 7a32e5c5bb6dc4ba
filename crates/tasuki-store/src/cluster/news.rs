//! Word from one process to the others on a database that can carry it: PostgreSQL. It says whom to wake and
//! nothing else, may be lost, and nobody relies on it. Not told inside an enqueue: commits that notify wait for
//! one another.

use std::fmt;

use sqlx::postgres::{PgListener, PgPool, PgPoolOptions};

use crate::db::connect::Pools;
use crate::db::session::Session;
use crate::{Error, Store};

const CHANNEL: &str = "tasuki";

/// Whom to wake.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct News {
    /// Who tells: nobody has to hear from themselves.
    pub from: u64,
    /// Something is to be planned.
    pub leader: bool,
    /// Something can be claimed.
    pub claims: bool,
    /// Something about what is carried changed.
    pub leases: bool,
    /// Nobody leads any more.
    pub lead: bool,
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.from)?;
        let words = [
            (self.leader, " leader"),
            (self.claims, " claims"),
            (self.leases, " leases"),
            (self.lead, " lead"),
        ];
        words.iter().filter(|(told, _)| *told).try_for_each(|(_, word)| f.write_str(word))
    }
}

impl News {
    /// Reads what [`Display`](fmt::Display) wrote. What is not understood is left out: a newer tasuki may say more.
    pub fn read(text: &str) -> Self {
        let mut words = text.split(' ');
        let from = words.next().and_then(|from| u64::from_str_radix(from, 16).ok());
        let mut news = Self { from: from.unwrap_or_default(), ..Self::default() };
        for word in words {
            match word {
                "leader" => news.leader = true,
                "claims" => news.claims = true,
                "leases" => news.leases = true,
                "lead" => news.lead = true,
                _ => {}
            }
        }
        news
    }
}

/// Hears what others tell, on a connection of its own.
pub struct Listener {
    listener: PgListener,
    pool: PgPool,
}

impl Listener {
    /// The next news. `None`: the connection was lost, and what was told meanwhile with it; it is made anew.
    pub async fn heard(&mut self) -> Result<Option<News>, Error> {
        let heard = self.listener.try_recv().await?;
        Ok(heard.map(|told| News::read(told.payload())))
    }

    /// Gives its connection up.
    pub async fn close(self) {
        drop(self.listener);
        self.pool.close().await;
    }
}

impl Store {
    /// Tells the other processes on this database. Nothing where it cannot carry news.
    pub async fn tell(&self, news: News) -> Result<(), Error> {
        let Pools::Postgres(hand) = self.db.pools() else { return Ok(()) };
        let told = sqlx::query("select pg_notify($1, $2)").bind(CHANNEL).bind(news.to_string());
        let mut session = Session::take(hand).await?;
        let told = told.execute(session.ask()).await;
        session.heard(told).map(drop)
    }

    /// Begins to listen. `None`: this database carries no news.
    pub async fn listen(&self) -> Result<Option<Listener>, Error> {
        let Pools::Postgres(hand) = self.db.pools() else { return Ok(None) };
        let options = (*hand.pool().connect_options()).clone();
        let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(CHANNEL).await?;
        Ok(Some(Listener { listener, pool }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for bits in 0..16_u8 {
            let news = News {
                from: u64::MAX - u64::from(bits),
                leader: bits & 1 > 0,
                claims: bits & 2 > 0,
                leases: bits & 4 > 0,
                lead: bits & 8 > 0,
            };
            assert_eq!(News::read(&news.to_string()), news);
        }
        assert_eq!(News::read(""), News::default());
        let newer = News { from: 10, claims: true, ..News::default() };
        assert_eq!(News::read("a tea claims"), newer);
    }
}
