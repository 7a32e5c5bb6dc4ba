//! Following a run while it happens: its output as it comes, until it ends.

use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::time::Duration;

use reqwest::header::HeaderName;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::sse::{Event, Parser};
use super::{address, is_ended};
use crate::client::{Client, Unreached};
use crate::output::Failure;

/// The server says something every 15 s; three times that is a connection that died silently.
const SILENCE: Duration = Duration::from_secs(45);
/// How long a server may be away before we stop believing that it comes back.
const AWAY: Duration = Duration::from_secs(60);

/// What of a run is shown, and how.
pub(super) struct Follow<'a> {
    pub(super) client: &'a Client,
    pub(super) id: i64,
    /// Only the output of this attempt.
    pub(super) attempt: Option<i64>,
    /// Events as lines of JSON instead of plain output.
    pub(super) json: bool,
}

/// How following ended.
pub(super) enum Ending {
    /// The run ended; this is how it stands.
    Ended(Value),
    /// Nobody reads our output any more.
    Unread,
}

/// How one connection ended.
enum Connection {
    Over(Ending),
    Dropped,
}

impl Follow<'_> {
    /// Shows the output until the run ends. A connection that drops is made again, and goes on
    /// where it was.
    pub(super) async fn to_the_end(&self) -> Result<Ending, Failure> {
        let mut seen = Seen::default();
        let mut away_since: Option<Instant> = None;
        let mut pause = Duration::from_millis(200);
        loop {
            let failure = match self.connect(&mut seen).await {
                Ok(Connection::Over(ending)) => return Ok(ending),
                Ok(Connection::Dropped) => {
                    (away_since, pause) = (None, Duration::from_millis(200));
                    None
                }
                Err(Trouble::Refused(failure)) => return Err(failure),
                Err(Trouble::Unreached(failure)) => Some(failure),
            };
            let since = *away_since.get_or_insert_with(Instant::now);
            match failure {
                // Nothing was ever seen: there is nothing to come back to.
                Some(failure) if seen.nothing || since.elapsed() > AWAY => return Err(failure),
                Some(_) | None => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    async fn connect(&self, seen: &mut Seen) -> Result<Connection, Trouble> {
        let mut call = self.client.get(format!("{}/follow", address(self.id)));
        if let Some(last) = &seen.last_id {
            call = call.header(HeaderName::from_static("last-event-id"), last.clone());
        }
        let mut response = match call.open().await {
            Ok(answer) => answer.map_err(Trouble::Refused)?,
            Err(Unreached(failure)) => return Err(Trouble::Unreached(failure)),
        };
        seen.nothing = false;
        let mut parser = Parser::default();
        loop {
            // An error in the middle of a body, its early end and silence are one: it dropped.
            let Ok(Ok(Some(piece))) = timeout(SILENCE, response.chunk()).await else {
                return Ok(Connection::Dropped);
            };
            for event in parser.feed(&piece) {
                if let Some(ending) = self.show(&event, seen).await.map_err(Trouble::Refused)? {
                    return Ok(Connection::Over(ending));
                }
            }
        }
    }

    async fn show(&self, event: &Event, seen: &mut Seen) -> Result<Option<Ending>, Failure> {
        if let Some(id) = &event.id {
            seen.last_id = Some(id.clone());
        }
        let data = || serde_json::from_str::<Value>(&event.data).unwrap_or_default();
        match event.name.as_str() {
            "log" => {
                let line = data();
                if !seen.is_new(&line) || self.attempt.is_some_and(|one| line["attempt"] != one) {
                    return Ok(None);
                }
                if self.print(&line, seen)? == Reader::Gone {
                    return Ok(Some(Ending::Unread));
                }
            }
            "state" => seen.run = data(),
            "end" => {
                let run = match is_ended(&seen.run) {
                    true => seen.run.take(),
                    false => self.client.get(address(self.id)).send().await?.body,
                };
                return Ok(Some(Ending::Ended(run)));
            }
            _ => {} // of a newer server
        }
        Ok(None)
    }

    fn print(&self, line: &Value, seen: &mut Seen) -> Result<Reader, Failure> {
        if self.json {
            return print_json(line);
        }
        if seen.announced.is_some_and(|before| line["attempt"] != before)
            && io::stderr().is_terminal()
        {
            eprintln!("-- attempt {}", line["attempt"]);
        }
        seen.announced = line["attempt"].as_i64();
        print_line(line)
    }
}

/// Whether somebody still reads what we print.
#[derive(PartialEq)]
pub(super) enum Reader {
    There,
    Gone,
}

/// A line of output goes where the job wrote it.
pub(super) fn print_line(line: &Value) -> Result<Reader, Failure> {
    let text = line["text"].as_str().unwrap_or_default();
    match line["stream"].as_str() {
        Some("err") => written(writeln!(io::stderr(), "{text}")),
        _ => written(writeln!(io::stdout(), "{text}")),
    }
}

/// A line as the server gave it.
pub(super) fn print_json(line: &Value) -> Result<Reader, Failure> {
    written(writeln!(io::stdout(), "{line}"))
}

fn written(result: io::Result<()>) -> Result<Reader, Failure> {
    match result {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::refused(format!("cannot write the output: {error}"))),
    }
}

enum Trouble {
    Refused(Failure),
    Unreached(Failure),
}

/// What was seen so far, over all connections.
struct Seen {
    nothing: bool,
    last_id: Option<String>,
    last_line: (i64, i64),
    announced: Option<i64>,
    run: Value,
}

impl Default for Seen {
    fn default() -> Self {
        let last_line = (-1, -1);
        Self { nothing: true, last_id: None, last_line, announced: None, run: Value::Null }
    }
}

impl Seen {
    /// A line that comes again after a new connection is shown once.
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
