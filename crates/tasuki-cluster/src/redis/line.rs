//! The one connection to Redis, shared by all callers. It is given up with the first sign that it leads to no
//! primary, and made anew by whoever calls next.
//!
//! A Redis that is away must cost nobody time: after a failure every call is refused at once for a moment, and
//! then one caller tries while the others are still refused.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{
    Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, ScriptInvocation,
};
use tasuki::node::coordination::coordinate::Unreachable;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use super::config::RedisConfig;
use super::find;

/// How long it may take to find and reach the primary.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_millis(500);
/// How long it may take to answer.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_millis(500);
/// How long nobody tries after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// The way to Redis.
pub(super) struct Line {
    config: RedisConfig,
    state: Mutex<State>,
    /// Whose turn it is to connect.
    turn: Semaphore,
}

#[derive(Default)]
struct State {
    connection: Option<MultiplexedConnection>,
    /// Tells connections apart: a failure of an old one says nothing of the new one.
    number: u64,
    /// Since the last failure, until when nobody tries.
    paused_until: Option<Instant>,
}

struct Connected {
    connection: MultiplexedConnection,
    number: u64,
}

impl Line {
    pub(super) fn new(config: RedisConfig) -> Self {
        Self { config, state: Mutex::default(), turn: Semaphore::new(1) }
    }

    pub(super) fn config(&self) -> &RedisConfig {
        &self.config
    }

    /// Runs a script.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, Unreachable> {
        let mut connected = self.connected().await?;
        let answer = timeout(ANSWER_LIMIT, script.invoke_async(&mut connected.connection)).await;
        self.settle(connected.number, answer.unwrap_or_else(|_| Err(too_late())))
    }

    /// Sends one command.
    pub(super) async fn send<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Unreachable> {
        let mut connected = self.connected().await?;
        let answer = timeout(ANSWER_LIMIT, command.query_async(&mut connected.connection)).await;
        self.settle(connected.number, answer.unwrap_or_else(|_| Err(too_late())))
    }

    /// Sends many commands at once.
    pub(super) async fn send_all<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
    ) -> Result<T, Unreachable> {
        let mut connected = self.connected().await?;
        let answer = timeout(ANSWER_LIMIT, commands.query_async(&mut connected.connection)).await;
        self.settle(connected.number, answer.unwrap_or_else(|_| Err(too_late())))
    }

    /// Limits what takes more than one step, so that it takes no longer than one does.
    pub(super) async fn within<T>(
        &self,
        steps: impl Future<Output = Result<T, Unreachable>>,
    ) -> Result<T, Unreachable> {
        let limited = timeout(CONNECT_LIMIT + ANSWER_LIMIT, steps).await;
        limited.unwrap_or_else(|_| Err(self.told(&too_late())))
    }

    /// What an error says to those outside. No password is repeated, whoever may have put it there.
    pub(super) fn told(&self, error: &RedisError) -> Unreachable {
        let said = error.to_string();
        let is_safe = !self.config.secrets().any(|secret| said.contains(secret));
        let said = if is_safe { said.as_str() } else { error.category() };
        Unreachable(format!("redis: {said}"))
    }

    async fn connected(&self) -> Result<Connected, Unreachable> {
        let failed_before = {
            let state = self.state();
            if let Some(connected) = state.ready()? {
                return Ok(connected);
            }
            state.paused_until.is_some()
        };
        let deadline = Instant::now() + CONNECT_LIMIT;
        let turn = match failed_before {
            true => self.turn.try_acquire().ok(),
            // Nothing is known to be wrong: whoever comes together waits for the first.
            false => timeout_at(deadline, self.turn.acquire()).await.ok().and_then(Result::ok),
        };
        let Some(_turn) = turn else { return Err(away()) };
        if let Some(connected) = self.state().ready()? {
            return Ok(connected); // another was quicker
        }
        let answer = timeout_at(deadline, find::connect(&self.config)).await;
        match answer.unwrap_or_else(|_| Err(too_late())) {
            Ok(connection) => Ok(self.state().opened(connection)),
            Err(error) => {
                let told = self.told(&error);
                if self.state().failed() {
                    warn(&told);
                }
                Err(told)
            }
        }
    }

    fn settle<T>(&self, number: u64, answer: RedisResult<T>) -> Result<T, Unreachable> {
        let error = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let told = self.told(&error);
        if is_lost(&error) && self.state().lost(number) {
            warn(&told);
        }
        Err(told)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn ready(&self) -> Result<Option<Connected>, Unreachable> {
        if let Some(connection) = self.connection.clone() {
            return Ok(Some(Connected { connection, number: self.number }));
        }
        match self.paused_until {
            Some(until) if Instant::now() < until => Err(away()),
            _ => Ok(None),
        }
    }

    fn opened(&mut self, connection: MultiplexedConnection) -> Connected {
        if self.paused_until.take().is_some() {
            tracing::info!("redis is back");
        }
        self.number += 1;
        self.connection = Some(connection.clone());
        Connected { connection, number: self.number }
    }

    /// Nobody is to try for a moment. Whether that is news.
    fn failed(&mut self) -> bool {
        self.connection = None;
        self.paused_until.replace(Instant::now() + PAUSE).is_none()
    }

    /// Gives a connection up, unless it was already. Whether that is news.
    fn lost(&mut self, number: u64) -> bool {
        self.connection.is_some() && self.number == number && self.failed()
    }
}

/// Whether the connection leads to nobody, or to somebody who keeps our keys no longer. Other refusals come from
/// the right place, and a new connection would hear the same.
fn is_lost(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => match error.code() {
            Some("READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "MOVED" | "NOAUTH") => {
                true
            }
            // Before Redis 7 what a script ran into stands inside of what the script says.
            _ => error.detail().is_some_and(|detail| detail.contains("-READONLY")),
        },
        // A reply in another shape than ours came over a connection that works.
        ErrorKind::UnexpectedReturnType => false,
        _ => true,
    }
}

/// Said once for every time it goes away.
fn warn(told: &Unreachable) {
    tracing::warn!(error = %told, "redis is away; the database carries on");
}

fn too_late() -> RedisError {
    RedisError::from(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))
}

fn away() -> Unreachable {
    Unreachable("redis: it was away a moment ago".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(said: &str) -> RedisError {
        let value = ::redis::parse_redis_value(format!("-{said}\r\n").as_bytes()).unwrap();
        value.extract_error().unwrap_err()
    }

    #[test]
    fn what_costs_the_connection() {
        for said in [
            "READONLY You can't write against a read only replica.",
            "ERR Error running script (call to f_1): @user_script:9: -READONLY You can't write",
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down",
            "CLUSTERDOWN The cluster is down",
            "MOVED 3999 127.0.0.1:6381",
            "NOAUTH Authentication required.",
        ] {
            assert!(is_lost(&error(said)), "{said}");
        }
        for said in [
            "ERR syntax error",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "NOPERM this user has no permissions",
            "OOM command not allowed",
            "BUSY Redis is busy running a script",
            "ASK 3999 127.0.0.1:6381",
            "TRYAGAIN Multiple keys request during rehashing of slot",
        ] {
            assert!(!is_lost(&error(said)), "{said}");
        }
        assert!(is_lost(&too_late()));
    }

    #[test]
    fn a_password_is_not_repeated() {
        let config = "redis://:pass-word@127.0.0.1".parse().unwrap();
        let line = Line::new(config);
        let told = line.told(&error("ERR what is pass-word for"));
        assert_eq!(told.to_string(), "coordinator: redis: response error");
        let told = line.told(&error("ERR no such thing"));
        assert!(told.to_string().contains("no such thing"), "{told}");
        assert_eq!(line.told(&too_late()).to_string(), "coordinator: redis: no answer in time");
    }
}
