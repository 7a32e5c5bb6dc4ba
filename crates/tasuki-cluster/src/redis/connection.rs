//! The connection to Redis, shared by all callers. It is closed at the first sign that it does not lead to the primary, and
//! opened again by the next caller.
//!
//! An unavailable Redis must not delay anyone: after a failure, all calls are refused immediately for a moment. Then one
//! caller tries to connect while the others are still refused.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{
    Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, ScriptInvocation,
};
use tasuki::node::coordination::coordinator_trait::CoordinatorUnreachable;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use super::config::RedisConfig;
use super::find_primary;

/// Timeout for finding the primary and connecting to it.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout of a response.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Time after a failed attempt to connect in which no caller tries again.
const RECONNECT_BACKOFF: Duration = Duration::from_millis(200);

/// Shared connection to Redis that reconnects on demand.
pub(super) struct RedisConnection {
    config: RedisConfig,
    state: Mutex<State>,
    /// Lets one caller connect at a time.
    connect_permit: Semaphore,
}

#[derive(Default)]
struct State {
    connection: Option<MultiplexedConnection>,
    /// Number of connections so far. A failure of an old connection must not close the current one.
    generation: u64,
    /// End of the backoff. Set from a failure until the next success.
    backoff_until: Option<Instant>,
}

struct OpenConnection {
    connection: MultiplexedConnection,
    generation: u64,
}

impl RedisConnection {
    pub(super) fn new(config: RedisConfig) -> Self {
        Self { config, state: Mutex::default(), connect_permit: Semaphore::new(1) }
    }

    pub(super) fn config(&self) -> &RedisConfig {
        &self.config
    }

    /// Executes a Lua script.
    pub(super) async fn execute_script<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, CoordinatorUnreachable> {
        let mut open = self.open().await?;
        let response = timeout(RESPONSE_TIMEOUT, script.invoke_async(&mut open.connection)).await;
        self.handle_response(open.generation, response.unwrap_or_else(|_| Err(timed_out())))
    }

    /// Sends one command.
    pub(super) async fn send<T: FromRedisValue>(
        &self,
        command: &Cmd,
    ) -> Result<T, CoordinatorUnreachable> {
        let mut open = self.open().await?;
        let response = timeout(RESPONSE_TIMEOUT, command.query_async(&mut open.connection)).await;
        self.handle_response(open.generation, response.unwrap_or_else(|_| Err(timed_out())))
    }

    /// Sends a pipeline of commands.
    pub(super) async fn send_all<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
    ) -> Result<T, CoordinatorUnreachable> {
        let mut open = self.open().await?;
        let response = timeout(RESPONSE_TIMEOUT, commands.query_async(&mut open.connection)).await;
        self.handle_response(open.generation, response.unwrap_or_else(|_| Err(timed_out())))
    }

    /// Runs several calls within the time of one call.
    pub(super) async fn with_timeout<T>(
        &self,
        calls: impl Future<Output = Result<T, CoordinatorUnreachable>>,
    ) -> Result<T, CoordinatorUnreachable> {
        let limited = timeout(CONNECT_TIMEOUT + RESPONSE_TIMEOUT, calls).await;
        limited.unwrap_or_else(|_| Err(self.public_error(&timed_out())))
    }

    /// Converts an error for callers and logs. A message that contains a password is replaced by the kind of the error.
    pub(super) fn public_error(&self, error: &RedisError) -> CoordinatorUnreachable {
        let message = error.to_string();
        let is_safe = !self.config.secrets().any(|secret| message.contains(secret));
        let message = if is_safe { message.as_str() } else { error.category() };
        CoordinatorUnreachable(format!("redis: {message}"))
    }

    /// Returns the open connection, or connects if the backoff has passed.
    async fn open(&self) -> Result<OpenConnection, CoordinatorUnreachable> {
        let failed_before = {
            let state = self.state();
            if let Some(open) = state.open_connection()? {
                return Ok(open);
            }
            state.backoff_until.is_some()
        };
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let permit = match failed_before {
            true => self.connect_permit.try_acquire().ok(),
            // No failure is known: the other callers wait for the first one.
            false => {
                timeout_at(deadline, self.connect_permit.acquire()).await.ok().and_then(Result::ok)
            }
        };
        let Some(_permit) = permit else { return Err(recently_unavailable()) };
        if let Some(open) = self.state().open_connection()? {
            return Ok(open); // another caller has connected in the meantime
        }
        let connected = timeout_at(deadline, find_primary::connect(&self.config)).await;
        match connected.unwrap_or_else(|_| Err(timed_out())) {
            Ok(connection) => Ok(self.state().record_connected(connection)),
            Err(error) => {
                let error = self.public_error(&error);
                if self.state().record_failure() {
                    log_unavailable(&error);
                }
                Err(error)
            }
        }
    }

    fn handle_response<T>(
        &self,
        generation: u64,
        response: RedisResult<T>,
    ) -> Result<T, CoordinatorUnreachable> {
        let error = match response {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let public_error = self.public_error(&error);
        if requires_reconnect(&error) && self.state().close(generation) {
            log_unavailable(&public_error);
        }
        Err(public_error)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn open_connection(&self) -> Result<Option<OpenConnection>, CoordinatorUnreachable> {
        if let Some(connection) = self.connection.clone() {
            return Ok(Some(OpenConnection { connection, generation: self.generation }));
        }
        match self.backoff_until {
            Some(until) if Instant::now() < until => Err(recently_unavailable()),
            _ => Ok(None),
        }
    }

    fn record_connected(&mut self, connection: MultiplexedConnection) -> OpenConnection {
        if self.backoff_until.take().is_some() {
            tracing::info!("redis is available again");
        }
        self.generation += 1;
        self.connection = Some(connection.clone());
        OpenConnection { connection, generation: self.generation }
    }

    /// Starts the backoff. Returns whether this is the first failure since the last success.
    fn record_failure(&mut self) -> bool {
        self.connection = None;
        self.backoff_until.replace(Instant::now() + RECONNECT_BACKOFF).is_none()
    }

    /// Closes a connection unless it is closed already. Returns whether this is the first failure since the last success.
    fn close(&mut self, generation: u64) -> bool {
        self.connection.is_some() && self.generation == generation && self.record_failure()
    }
}

/// Whether an error means that the connection is broken, or leads to a server that is no longer the primary of our keys.
/// Other errors come from the right server, and a new connection would receive the same.
fn requires_reconnect(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => match error.code() {
            Some("READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "MOVED" | "NOAUTH") => {
                true
            }
            // Before Redis 7, an error inside a script is only part of the script's error message.
            _ => error.detail().is_some_and(|detail| detail.contains("-READONLY")),
        },
        // The connection works; only the type of the response was not expected.
        ErrorKind::UnexpectedReturnType => false,
        _ => true,
    }
}

/// Logs an outage, once at its start.
fn log_unavailable(error: &CoordinatorUnreachable) {
    tracing::warn!(%error, "redis is unavailable; coordination continues through the database");
}

fn timed_out() -> RedisError {
    RedisError::from(io::Error::new(io::ErrorKind::TimedOut, "the response timed out"))
}

fn recently_unavailable() -> CoordinatorUnreachable {
    CoordinatorUnreachable("redis: it was unavailable a moment ago".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_error(message: &str) -> RedisError {
        let value = ::redis::parse_redis_value(format!("-{message}\r\n").as_bytes()).unwrap();
        value.extract_error().unwrap_err()
    }

    #[test]
    fn only_some_errors_require_a_new_connection() {
        for message in [
            "READONLY You can't write against a read only replica.",
            "ERR Error running script (call to f_1): @user_script:9: -READONLY You can't write",
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down",
            "CLUSTERDOWN The cluster is down",
            "MOVED 3999 127.0.0.1:6381",
            "NOAUTH Authentication required.",
        ] {
            assert!(requires_reconnect(&server_error(message)), "{message}");
        }
        for message in [
            "ERR syntax error",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "NOPERM this user has no permissions",
            "OOM command not allowed",
            "BUSY Redis is busy running a script",
            "ASK 3999 127.0.0.1:6381",
            "TRYAGAIN Multiple keys request during rehashing of slot",
        ] {
            assert!(!requires_reconnect(&server_error(message)), "{message}");
        }
        assert!(requires_reconnect(&timed_out()));
    }

    #[test]
    fn an_error_message_contains_no_password() {
        let config = "redis://:pass-word@127.0.0.1".parse().unwrap();
        let connection = RedisConnection::new(config);
        let error = connection.public_error(&server_error("ERR what is pass-word for"));
        assert_eq!(error.to_string(), "coordinator: redis: response error");
        let error = connection.public_error(&server_error("ERR no such thing"));
        assert!(error.to_string().contains("no such thing"), "{error}");
        let error = connection.public_error(&timed_out());
        assert_eq!(error.to_string(), "coordinator: redis: the response timed out");
    }
}
