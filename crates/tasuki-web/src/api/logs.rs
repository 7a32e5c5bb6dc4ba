//! Endpoints of captured output: read it in pages, or follow a run as a stream of events.

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
use tasuki_core::{InvalidInput, RunId};
use tasuki_store::{LogLine, OutputStream};
use utoipa::{IntoParams, ToSchema};

use super::format_instant;
use super::run_view::run_view;
use crate::input::{ActionHeaders, QueryParams, UnvalidatedPathParam, parse_number_param};
use crate::problem::Problem;
use crate::serve::ShutdownSignal;

/// Polling interval of a run that is followed.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of keepalive comments in a stream.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum number of lines in a page.
const MAX_LINES: u32 = 1_000;

/// A page of the output of an attempt.
#[derive(Serialize, ToSchema)]
pub(crate) struct LogPageView {
    attempt: u32,
    lines: Vec<LogLineView>,
    /// Value of `from` for the next page.
    #[schema(minimum = 0)]
    next: i64,
    /// Number of lines so far.
    #[schema(minimum = 0)]
    lines_count: i64,
    #[schema(minimum = 0)]
    bytes: i64,
    /// Whether the output was truncated because it reached a limit.
    truncated: bool,
    /// Location of the log, if it was archived.
    log_ref: Option<String>,
    /// Whether the attempt has ended, so that no lines will be added.
    ended: bool,
}

/// A line of output.
#[derive(Serialize, ToSchema)]
pub(crate) struct LogLineView {
    /// Number of the line, starting at 0.
    #[schema(minimum = 0)]
    n: i64,
    #[schema(pattern = "^(out|err)$")]
    stream: &'static str,
    #[schema(format = DateTime)]
    at: String,
    text: String,
}

/// Query parameters of reading output.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogQuery {
    /// Number of the attempt. Default: the last one.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000000)]
    attempt: Option<String>,
    /// Number of the first line.
    #[param(value_type = Option<i64>, minimum = 0, maximum = 1000000000000i64)]
    from: Option<String>,
    /// Maximum number of lines.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

fn line_view(n: i64, line: LogLine) -> LogLineView {
    let stream = match line.stream {
        OutputStream::Stdout => "out",
        OutputStream::Stderr => "err",
    };
    LogLineView { n, stream, at: format_instant(line.at), text: line.text }
}

/// Reads the output of an attempt.
#[utoipa::path(get, path = "/api/v1/runs/{id}/logs", tag = "runs",
    params(("id" = i64, Path, minimum = 1), LogQuery), responses(
    (status = 200, description = "a page of lines", body = LogPageView),
))]
pub(crate) async fn read_log(
    State(operator): State<Operator>,
    id: UnvalidatedPathParam,
    QueryParams(query): QueryParams<LogQuery>,
) -> Result<Json<LogPageView>, Problem> {
    let attempt = parse_number_param("attempt", query.attempt.as_deref(), 1, 1_000_000)?;
    let from =
        parse_number_param("from", query.from.as_deref(), 0, 1_000_000_000_000)?.unwrap_or(0);
    let limit =
        parse_number_param("limit", query.limit.as_deref(), 1, MAX_LINES)?.unwrap_or(MAX_LINES);
    // The run is read first: if it has ended, all of its output is there to be read afterwards.
    let run = operator.get_run(id.id("run")?).await?.run;
    let last = run.counters.attempt_no;
    if let Some(attempt) = attempt.filter(|attempt| *attempt > last) {
        let expected = format!("an existing attempt: 1 to {last}");
        let invalid = InvalidInput::with_described_value("", attempt.to_string(), expected);
        return Err(Problem::malformed("attempt", &invalid));
    }
    let attempt = attempt.unwrap_or(last);
    let ended = attempt < last || !run.state.is_leased();
    let page = operator.read_log(&run, Some(attempt), from, limit).await?;
    Ok(Json(match page {
        Some(page) => LogPageView {
            attempt,
            lines: page.lines.into_iter().zip(from..).map(|(line, n)| line_view(n, line)).collect(),
            next: page.next_line,
            lines_count: page.lines_count,
            bytes: page.bytes,
            truncated: page.truncated,
            log_ref: page.log_ref,
            ended,
        },
        None => LogPageView {
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

/// Follows a run: its output, its changes of state, and its end.
#[utoipa::path(get, path = "/api/v1/runs/{id}/follow", tag = "runs",
    params(("id" = i64, Path, minimum = 1), ("Last-Event-ID" = Option<String>, Header)), responses(
    (status = 200, description = "events `log`, `state` and `end`", content_type = "text/event-stream", body = String),
))]
pub(crate) async fn follow_run(
    State(operator): State<Operator>,
    stopping: Option<Extension<ShutdownSignal>>,
    id: UnvalidatedPathParam,
    headers: ActionHeaders,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let run: RunId = id.id("run")?;
    let now = operator.get_run(run).await?;
    let last_seen = headers.last_event_id().and_then(|text| {
        let (attempt, line) = text.split_once('.')?;
        Some((attempt.parse().ok()?, line.parse::<i64>().ok()?.checked_add(1)?))
    });
    let (attempt, line) = last_seen.unwrap_or((now.run.counters.attempt_no, 0));
    let stopping = stopping.map(|Extension(stopping)| stopping);
    let state = Event::default().event("state").json_data(run_view(&now)).ok();
    let follower = RunFollower {
        operator,
        run,
        attempt,
        line,
        version: state.is_some().then_some(now.run.version),
        queued: state.into_iter().collect(),
        ended: false,
        server_stopping: false,
        stopping,
    };
    let events = stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEPALIVE_INTERVAL)))
}

/// State of a stream that follows a run.
struct RunFollower {
    operator: Operator,
    run: RunId,
    attempt: u32,
    line: i64,
    /// Version of the run in the last `state` event.
    version: Option<i64>,
    queued: VecDeque<Event>,
    ended: bool,
    /// The server is stopping. What can be read now is still sent.
    server_stopping: bool,
    stopping: Option<ShutdownSignal>,
}

impl RunFollower {
    /// Returns the next event. `None`: the run has ended, the server is stopping, or the database is unavailable. In the last two
    /// cases the client connects again, with the id of the last event that it received.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.queued.pop_front() {
                return Some(event);
            }
            if self.ended || !self.poll().await? {
                return None;
            }
            if self.queued.is_empty() && self.server_stopping {
                return None;
            }
            if self.queued.is_empty() {
                tokio::select! {
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                    // A node lets its runs end before its server stops, so the end and the last output can still be read.
                    () = ShutdownSignal::wait(self.stopping.clone()) => self.server_stopping = true,
                }
            }
        }
    }

    /// Reads the run and its output once, and queues new events. The state is read before the output and queued after it, so the
    /// `end` event comes after all output.
    async fn poll(&mut self) -> Option<bool> {
        let now = self.operator.get_run(self.run).await.ok()?;
        let last = now.run.counters.attempt_no;
        loop {
            let page = self
                .operator
                .read_log(&now.run, Some(self.attempt), self.line, MAX_LINES)
                .await
                .ok()?;
            let lines = page.map(|page| page.lines).unwrap_or_default();
            let has_lines = !lines.is_empty();
            for line in lines {
                self.queued.push_back(self.log_event(line)?);
                self.line += 1;
            }
            match has_lines {
                // One page at a time, so that a long log does not accumulate in memory.
                true => return Some(true),
                false if self.attempt < last => (self.attempt, self.line) = (self.attempt + 1, 0),
                false => break,
            }
        }
        if self.version != Some(now.run.version) {
            self.version = Some(now.run.version);
            self.queued.push_back(Event::default().event("state").json_data(run_view(&now)).ok()?);
        }
        if now.run.state.is_ended() {
            self.ended = true;
            let end = json!({ "run": self.run.0, "state": now.run.state.as_str() });
            self.queued.push_back(Event::default().event("end").json_data(end).ok()?);
        }
        Some(true)
    }

    fn log_event(&self, line: LogLine) -> Option<Event> {
        let LogLineView { n, stream, at, text } = line_view(self.line, line);
        let data =
            json!({ "attempt": self.attempt, "n": n, "stream": stream, "at": at, "text": text });
        let event = Event::default().event("log").id(format!("{}.{n}", self.attempt));
        event.json_data(data).ok()
    }
}
