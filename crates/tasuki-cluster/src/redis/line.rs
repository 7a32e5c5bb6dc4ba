//! The one connection to Redis, shared by all callers. It is given up with the first sign that it leads to no
//! primary, and made anew by whoever calls next.
//!
//! A Redis that is away must cost nobody time: after a failure every call is refused at once for a moment, and
//! then one caller tries while the others are still refused.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{
    Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, ScriptInvocation,
};
use tasuki::node::coordinate::Unreachable;
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
                self.state().failed();
                let told = self.told(&error);
                tracing::debug!(error = %told, "redis is not reached");
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
            tracing::warn!(error = %told, "redis is lost; the database carries on");
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

    fn failed(&mut self) {
        self.connection = None;
        self.paused_until = Some(Instant::now() + PAUSE);
    }

    /// Gives a connection up. Whether it still was the one in use.
    fn lost(&mut self, number: u64) -> bool {
        let is_ours = self.connection.is_some() && self.number == number;
        if is_ours {
            self.failed();
        }
        is_ours
    }
}

/// Whether the connection leads to nobody, or to somebody who keeps our keys no longer. Other refusals come from
/// the right place, and a new connection would hear the same.
fn is_lost(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => matches!(
            error.code(),
            Some("READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "MOVED" | "NOAUTH")
        ),
        // A reply in another shape than ours came over a connection that works.
        ErrorKind::UnexpectedReturnType => false,
        _ => true,
    }
}

fn too_late() -> RedisError {
    RedisError::from((ErrorKind::Io, "no answer in time"))
}

fn away() -> Unreachable {
    Unreachable("redis: it was away a moment ago".to_owned())
}
