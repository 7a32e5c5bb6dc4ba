//! What runs print: read in pages, or followed while they run.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::{Extension, Json};
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tasuki::Operator;
use tasuki_core::{Invalid, RunId};
use tasuki_store::{LogLine, Stream as Printed};
use utoipa::{IntoParams, ToSchema};

use super::at;
use super::run_view::view;
use crate::input::{Asked, Headers, Named, number};
use crate::problem::Problem;
use crate::serve::Stopping;

/// How often a run that is followed is looked at.
const LOOK: Duration = Duration::from_millis(200);
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The longest page of lines.
const LINES: u32 = 1_000;

/// Some lines of what an attempt printed.
#[derive(Serialize, ToSchema)]
pub(crate) struct Log {
    attempt: u32,
    lines: Vec<Line>,
    /// Where to read on: `from` of the next request.
    #[schema(minimum = 0)]
    next: i64,
    /// How many lines there are by now.
    #[schema(minimum = 0)]
    lines_count: i64,
    #[schema(minimum = 0)]
    bytes: i64,
    /// Whether the log was cut after its last line.
    truncated: bool,
    /// Where the log is, if it has been moved.
    log_ref: Option<String>,
    /// Whether the attempt has ended: nothing more will come.
    ended: bool,
}

/// One line.
#[derive(Serialize, ToSchema)]
pub(crate) struct Line {
    /// Its number, from 0.
    #[schema(minimum = 0)]
    n: i64,
    #[schema(pattern = "^(out|err)$")]
    stream: &'static str,
    #[schema(format = DateTime)]
    at: String,
    text: String,
}

/// Which lines.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogAsked {
    /// Of this attempt; the last one, unless said.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000000)]
    attempt: Option<String>,
    /// From this line on.
    #[param(value_type = Option<i64>, minimum = 0, maximum = 1000000000000i64)]
    from: Option<String>,
    /// At most so many.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

fn line_view(n: i64, line: LogLine) -> Line {
    let stream = match line.stream {
        Printed::Out => "out",
        Printed::Err => "err",
    };
    Line { n, stream, at: at(line.at), text: line.text }
}

/// Reads what an attempt printed.
#[utoipa::path(get, path = "/api/v1/runs/{id}/logs", tag = "runs",
    params(("id" = i64, Path, minimum = 1), LogAsked), responses(
    (status = 200, description = "some lines", body = Log),
))]
pub(crate) async fn read_log(
    State(operator): State<Operator>,
    id: Named,
    Asked(asked): Asked<LogAsked>,
) -> Result<Json<Log>, Problem> {
    let attempt = number("attempt", asked.attempt.as_deref(), 1, 1_000_000)?;
    let from = number("from", asked.from.as_deref(), 0, 1_000_000_000_000)?.unwrap_or(0);
    let most = number("limit", asked.limit.as_deref(), 1, LINES)?.unwrap_or(LINES);
    // The run first: whatever it had printed when it ended is then there to be read.
    let run = operator.run(id.id("run")?).await?.run;
    let last = run.counters.attempt_no;
    if let Some(attempt) = attempt.filter(|attempt| *attempt > last) {
        let expected = format!("an attempt there has been: 1 to {last}");
        let invalid = Invalid::described("", attempt.to_string(), expected);
        return Err(Problem::malformed("attempt", &invalid));
    }
    let attempt = attempt.unwrap_or(last);
    let ended = attempt < last || !run.state.is_carried();
    let page = operator.log(&run, Some(attempt), from, most).await?;
    Ok(Json(match page {
        Some(page) => Log {
            attempt,
            lines: page.lines.into_iter().zip(from..).map(|(line, n)| line_view(n, line)).collect(),
            next: page.next_line,
            lines_count: page.lines_count,
            bytes: page.bytes,
            truncated: page.truncated,
            log_ref: page.log_ref,
            ended,
        },
        None => Log {
            attempt,
            lines: Vec::new(),
            next: from,
            lines_count: 0,
            bytes: 0,
            truncated: false,
            log_ref: None,
            ended,
        },
    }))
}

/// Follows a run: what it prints, where it stands, and its end.
#[utoipa::path(get, path = "/api/v1/runs/{id}/follow", tag = "runs",
    params(("id" = i64, Path, minimum = 1), ("Last-Event-ID" = Option<String>, Header)), responses(
    (status = 200, description = "events `log`, `state` and `end`", content_type = "text/event-stream", body = String),
))]
pub(crate) async fn follow_run(
    State(operator): State<Operator>,
    stopping: Option<Extension<Stopping>>,
    id: Named,
    headers: Headers,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let run: RunId = id.id("run")?;
    let now = operator.run(run).await?;
    let seen = headers.last_event_id().and_then(|text| {
        let (attempt, line) = text.split_once('.')?;
        Some((attempt.parse().ok()?, line.parse::<i64>().ok()?.checked_add(1)?))
    });
    let (attempt, line) = seen.unwrap_or((now.run.counters.attempt_no, 0));
    let stopping = stopping.map(|Extension(stopping)| stopping);
    let state = Event::default().event("state").json_data(view(&now)).ok();
    let follow = Follow {
        operator,
        run,
        attempt,
        line,
        version: state.is_some().then_some(now.run.version),
        ready: state.into_iter().collect(),
        over: false,
        stops: false,
        stopping,
    };
    let events = stream::unfold(follow, |mut follow| async move {
        let event = follow.next().await?;
        Some((Ok(event), follow))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// Where a follower stands.
struct Follow {
    operator: Operator,
    run: RunId,
    attempt: u32,
    line: i64,
    /// The version of the run that was told last.
    version: Option<i64>,
    ready: VecDeque<Event>,
    over: bool,
    /// The server stops: what there is now is still told.
    stops: bool,
    stopping: Option<Stopping>,
}

impl Follow {
    /// The next thing to tell; `None`: the run has ended, the server stops, or the database is away, in
    /// which case whoever follows comes again and says what it saw last.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.over || !self.look().await? {
                return None;
            }
            if self.ready.is_empty() && self.stops {
                return None;
            }
            if self.ready.is_empty() {
                tokio::select! {
                    () = tokio::time::sleep(LOOK) => {}
                    // A node lets its runs end before its server stops: the end, and what was printed
                    // just before it, are there to be read.
                    () = Stopping::told(self.stopping.clone()) => self.stops = true,
                }
            }
        }
    }

    /// Looks once and makes ready what is new. The state is read before the lines, and told after them:
    /// an end comes after everything that was printed before it.
    async fn look(&mut self) -> Option<bool> {
        let now = self.operator.run(self.run).await.ok()?;
        let last = now.run.counters.attempt_no;
        loop {
            let page =
                self.operator.log(&now.run, Some(self.attempt), self.line, LINES).await.ok()?;
            let lines = page.map(|page| page.lines).unwrap_or_default();
            let full = !lines.is_empty();
            for line in lines {
                self.ready.push_back(self.log_event(line)?);
                self.line += 1;
            }
            match full {
                // One page at a time, so that a long log does not gather here.
                true => return Some(true),
                false if self.attempt < last => (self.attempt, self.line) = (self.attempt + 1, 0),
                false => break,
            }
        }
        if self.version != Some(now.run.version) {
            self.version = Some(now.run.version);
            self.ready.push_back(Event::default().event("state").json_data(view(&now)).ok()?);
        }
        if now.run.state.is_ended() {
            self.over = true;
            let end = json!({ "run": self.run.0, "state": now.run.state.as_str() });
            self.ready.push_back(Event::default().event("end").json_data(end).ok()?);
        }
        Some(true)
    }

    fn log_event(&self, line: LogLine) -> Option<Event> {
        let Line { n, stream, at, text } = line_view(self.line, line);
        let data =
            json!({ "attempt": self.attempt, "n": n, "stream": stream, "at": at, "text": text });
        let event = Event::default().event("log").id(format!("{}.{n}", self.attempt));
        event.json_data(data).ok()
    }
}
