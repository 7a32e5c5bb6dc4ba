//! Follows a run: prints its output as it arrives, until the run ends.

use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::time::Duration;

use reqwest::header::HeaderName;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::sse::{SseEvent, SseParser};
use super::{is_ended, run_path};
use crate::client::{ApiClient, ServerUnavailable};
use crate::failure::Failure;

/// Time without data after which a connection counts as broken: three times the keep-alive interval of the server (15 s).
const SILENCE_TIMEOUT: Duration = Duration::from_secs(45);
/// Maximum time of reconnection attempts before the command fails.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Follows one run and prints its output.
pub(super) struct LogFollower<'a> {
    pub(super) client: &'a ApiClient,
    pub(super) id: i64,
    /// Print only the output of this attempt; `None`: all attempts.
    pub(super) attempt: Option<i64>,
    /// Print log lines as JSON instead of plain text.
    pub(super) json: bool,
}

/// Why following ended.
pub(super) enum FollowEnd {
    /// The run ended; the run as JSON.
    RunEnded(Value),
    /// The reader closed stdout or stderr.
    OutputClosed,
}

/// Why one connection ended.
enum ConnectionEnd {
    Finished(FollowEnd),
    Dropped,
}

impl LogFollower<'_> {
    /// Prints the output until the run ends. After a broken connection it reconnects and continues at the last event.
    pub(super) async fn follow(&self) -> Result<FollowEnd, Failure> {
        let mut progress = Progress::default();
        let mut disconnected_since: Option<Instant> = None;
        let mut pause = Duration::from_millis(200);
        loop {
            let failure = match self.read_connection(&mut progress).await {
                Ok(ConnectionEnd::Finished(ending)) => return Ok(ending),
                Ok(ConnectionEnd::Dropped) => {
                    (disconnected_since, pause) = (None, Duration::from_millis(200));
                    None
                }
                Err(FollowError::Refused(failure)) => return Err(failure),
                Err(FollowError::ServerUnavailable(failure)) => Some(failure),
            };
            let since = *disconnected_since.get_or_insert_with(Instant::now);
            match failure {
                // The first connection failed: the server was never reachable, so a retry is not useful.
                Some(failure)
                    if progress.never_connected || since.elapsed() > RECONNECT_TIMEOUT =>
                {
                    return Err(failure);
                }
                Some(_) | None => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    async fn read_connection(&self, progress: &mut Progress) -> Result<ConnectionEnd, FollowError> {
        let mut request = self.client.get(format!("{}/follow", run_path(self.id)));
        if let Some(last) = &progress.last_id {
            request = request.header(HeaderName::from_static("last-event-id"), last.clone());
        }
        let mut response = match request.open_stream().await {
            Ok(response) => response.map_err(FollowError::Refused)?,
            Err(ServerUnavailable(failure)) => return Err(FollowError::ServerUnavailable(failure)),
        };
        progress.never_connected = false;
        let mut parser = SseParser::default();
        loop {
            // An error within the body, its early end and a timeout all mean that the connection broke.
            let Ok(Ok(Some(chunk))) = timeout(SILENCE_TIMEOUT, response.chunk()).await else {
                return Ok(ConnectionEnd::Dropped);
            };
            for event in parser.feed(&chunk) {
                if let Some(ending) =
                    self.handle_event(&event, progress).await.map_err(FollowError::Refused)?
                {
                    return Ok(ConnectionEnd::Finished(ending));
                }
            }
        }
    }

    async fn handle_event(
        &self,
        event: &SseEvent,
        progress: &mut Progress,
    ) -> Result<Option<FollowEnd>, Failure> {
        if let Some(id) = &event.id {
            progress.last_id = Some(id.clone());
        }
        let data = || serde_json::from_str::<Value>(&event.data).unwrap_or_default();
        match event.name.as_str() {
            "log" => {
                let line = data();
                if !progress.is_new(&line) || self.attempt.is_some_and(|one| line["attempt"] != one)
                {
                    return Ok(None);
                }
                if self.print(&line, progress)? == OutputState::Closed {
                    return Ok(Some(FollowEnd::OutputClosed));
                }
            }
            "state" => progress.run = data(),
            "end" => {
                let run = match is_ended(&progress.run) {
                    true => progress.run.take(),
                    false => self.client.get(run_path(self.id)).send().await?.body,
                };
                return Ok(Some(FollowEnd::RunEnded(run)));
            }
            _ => {} // events that a newer server adds
        }
        Ok(None)
    }

    fn print(&self, line: &Value, progress: &mut Progress) -> Result<OutputState, Failure> {
        if self.json {
            return print_json(line);
        }
        if progress.printed_attempt.is_some_and(|before| line["attempt"] != before)
            && io::stderr().is_terminal()
        {
            eprintln!("-- attempt {}", line["attempt"]);
        }
        progress.printed_attempt = line["attempt"].as_i64();
        print_line(line)
    }
}

/// Whether stdout or stderr is still open at its reader.
#[derive(PartialEq)]
pub(super) enum OutputState {
    Open,
    Closed,
}

/// Prints a log line on the stream (stdout or stderr) to which the job wrote it.
pub(super) fn print_line(line: &Value) -> Result<OutputState, Failure> {
    let text = line["text"].as_str().unwrap_or_default();
    match line["stream"].as_str() {
        Some("err") => output_state(writeln!(io::stderr(), "{text}")),
        _ => output_state(writeln!(io::stdout(), "{text}")),
    }
}

/// Prints a log line as JSON.
pub(super) fn print_json(line: &Value) -> Result<OutputState, Failure> {
    output_state(writeln!(io::stdout(), "{line}"))
}

fn output_state(result: io::Result<()>) -> Result<OutputState, Failure> {
    match result {
        Ok(()) => Ok(OutputState::Open),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(OutputState::Closed),
        Err(error) => Err(Failure::new(format!("cannot write the output: {error}"))),
    }
}

enum FollowError {
    Refused(Failure),
    ServerUnavailable(Failure),
}

/// The progress of following over all connections.
struct Progress {
    never_connected: bool,
    last_id: Option<String>,
    last_line: (i64, i64),
    printed_attempt: Option<i64>,
    run: Value,
}

impl Default for Progress {
    fn default() -> Self {
        let last_line = (-1, -1);
        Self {
            never_connected: true,
            last_id: None,
            last_line,
            printed_attempt: None,
            run: Value::Null,
        }
    }
}

impl Progress {
    /// Whether the line was not printed yet: the server may repeat lines after a reconnect.
    fn is_new(&mut self, line: &Value) -> bool {
        let number = |field: &str| line[field].as_i64().unwrap_or(i64::MAX);
        let this = (number("attempt"), number("n"));
        let new = this > self.last_line;
        if new {
            self.last_line = this;
        }
        new
    }
}
