//! Logs: the output of an attempt, stored in chunks of lines. A log can be read while the attempt is still running.

pub(crate) mod create_short_logs;

use jiff::Timestamp;
use tasuki_core::{InvalidInput, RunId};

use crate::db::instant::timestamp_from_micros;
use crate::db::sql::{Sql, sql};
use crate::db::{Params, Row, Tx, params};
use crate::{Error, Store};

static INSERT: Sql = sql!("log/insert", ".sqlite", ".postgres", ".mysql");
static LOCK: Sql = sql!("log/lock");
static FIND_HEADER: Sql = sql!("log/find");
static INSERT_CHUNK: Sql = sql!("log/insert_chunk");
static UPDATE_COUNTERS: Sql = sql!("log/update_counters");
static LIST_CHUNKS: Sql = sql!("log/list_chunks");
static MARK_ARCHIVED: Sql = sql!("log/mark_archived");
static DELETE_ARCHIVED_CHUNKS: Sql = sql!("log/delete_archived_chunks");

/// Maximum number of lines in one chunk.
pub(crate) const CHUNK_LINES: usize = 500;
/// Size in bytes at which a chunk is full.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// Maximum number of chunks that one page is read from.
const PAGE_CHUNKS: u32 = 32;
/// Maximum number of lines in one page.
const PAGE_LINES: u32 = 2_000;

/// The output stream of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// The stream to which it was printed.
    pub stream: OutputStream,
    /// When it was printed.
    pub at: Timestamp,
    /// The text, without the line break.
    pub text: String,
}

/// The result of [`Store::append_log`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogAppendResult {
    /// Number of the line to be sent next, from 0.
    pub next_line: i64,
    /// Whether the log has reached its maximum size. No more lines are stored.
    pub truncated: bool,
}

/// A page of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPage {
    /// The lines, from the requested one on.
    pub lines: Vec<LogLine>,
    /// Number of the first line of the next page. If it equals the requested line, there are no more lines yet.
    pub next_line: i64,
    /// How many lines the log has now.
    pub lines_count: i64,
    /// The size of the log, in bytes.
    pub bytes: i64,
    /// Whether the log was truncated after its last line, at its maximum size.
    pub truncated: bool,
    /// Where the log was archived; `None`: it was not archived.
    pub log_ref: Option<String>,
}

/// The row of a log, without its lines.
struct LogHeader {
    bytes: i64,
    lines_count: i64,
    truncated: bool,
    archived: bool,
    log_ref: Option<String>,
}

impl LogHeader {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            bytes: row.int("bytes")?,
            lines_count: row.int("lines_count")?,
            truncated: row.int("truncated")? != 0,
            archived: row.opt_int("archived_at")?.is_some(),
            log_ref: row.opt_text("log_ref")?,
        })
    }
}

impl Store {
    /// Appends lines to the log of an attempt. `first_line` is the number of the first of them, so that lines that
    /// were sent before are not stored twice. The log is truncated at `max_log_bytes` bytes. `None`: the attempt does
    /// not exist any more, or its log was archived.
    pub async fn append_log(
        &self,
        run: RunId,
        attempt_no: u32,
        first_line: i64,
        lines: &[LogLine],
        max_log_bytes: i64,
    ) -> Result<Option<LogAppendResult>, Error> {
        let mut tx = self.db.begin().await?;
        let found = lock_or_create(&mut tx, run, attempt_no).await?;
        let Some(mut log) = found.filter(|log| !log.archived) else {
            tx.rollback().await?;
            return Ok(None);
        };
        if !log.truncated && first_line > log.lines_count {
            let expected = format!("at most {}", log.lines_count);
            return Err(
                InvalidInput::with_value("first line", &first_line.to_string(), expected).into()
            );
        }
        let already_stored = usize::try_from(log.lines_count - first_line).unwrap_or(0);
        let new_lines = lines.get(already_stored..).unwrap_or_default();
        if !log.truncated && !new_lines.is_empty() {
            append_chunks(
                &mut tx,
                attempt_key(run, attempt_no),
                &mut log,
                new_lines,
                max_log_bytes,
            )
            .await?;
        }
        tx.commit().await?;
        Ok(Some(LogAppendResult { next_line: log.lines_count, truncated: log.truncated }))
    }

    /// Reads a page of a log from line `from_line` on, at most `max_lines` lines and perhaps fewer. `None`: the
    /// attempt has no log.
    pub async fn read_log(
        &self,
        run: RunId,
        attempt_no: u32,
        from_line: i64,
        max_lines: u32,
    ) -> Result<Option<LogPage>, Error> {
        let rows = self.db.query(&FIND_HEADER, attempt_key(run, attempt_no)).await?;
        let Some(log) = rows.first().map(LogHeader::from_row).transpose()? else {
            return Ok(None);
        };
        let from_line = from_line.max(0);
        let page = params! { from_line: from_line, limit: PAGE_CHUNKS };
        let chunks =
            self.db.query(&LIST_CHUNKS, [attempt_key(run, attempt_no), page].concat()).await?;
        let mut lines = Vec::new();
        for chunk in &chunks {
            let passed = usize::try_from(from_line - chunk.int("first_line")?).unwrap_or(0);
            for line in chunk.text("body")?.split_terminator('\n').skip(passed) {
                lines.push(LogLine::decode(line)?);
            }
        }
        lines.truncate(max_lines.clamp(1, PAGE_LINES) as usize);
        Ok(Some(LogPage {
            next_line: from_line + lines.len() as i64,
            lines,
            lines_count: log.lines_count,
            bytes: log.bytes,
            truncated: log.truncated,
            log_ref: log.log_ref,
        }))
    }

    /// Marks a log as archived: `log_ref` is where a complete copy of its `lines_count` lines is stored. `false`: the
    /// log has more lines by now, or it was archived before.
    pub async fn mark_log_archived(
        &self,
        run: RunId,
        attempt_no: u32,
        lines_count: i64,
        log_ref: &str,
        sha256: [u8; 32],
    ) -> Result<bool, Error> {
        let mut tx = self.db.begin().await?;
        let archive = params! {
            lines_count: lines_count,
            log_ref: log_ref,
            sha256: sha256.to_vec(),
        };
        let marked =
            tx.execute(&MARK_ARCHIVED, [attempt_key(run, attempt_no), archive].concat()).await?;
        tx.commit().await?;
        Ok(marked == 1)
    }

    /// Deletes the lines of an archived log. Deletes nothing if the log is not archived.
    pub async fn delete_lines_of_archived_log(
        &self,
        run: RunId,
        attempt_no: u32,
    ) -> Result<bool, Error> {
        let mut tx = self.db.begin().await?;
        let deleted = tx.execute(&DELETE_ARCHIVED_CHUNKS, attempt_key(run, attempt_no)).await?;
        tx.commit().await?;
        Ok(deleted > 0)
    }
}

pub(crate) fn attempt_key(run: RunId, attempt_no: u32) -> Params<'static> {
    params! { run_id: run.0, attempt_no: attempt_no }
}

/// Locks the row of a log, and creates the row if there is none. `None`: the attempt does not exist.
async fn lock_or_create(
    tx: &mut Tx<'_>,
    run: RunId,
    attempt_no: u32,
) -> Result<Option<LogHeader>, Error> {
    let mut rows = tx.query(&LOCK, attempt_key(run, attempt_no)).await?;
    if rows.is_empty() {
        tx.execute(&INSERT, attempt_key(run, attempt_no)).await?;
        rows = tx.query(&LOCK, attempt_key(run, attempt_no)).await?;
    }
    rows.first().map(LogHeader::from_row).transpose()
}

/// Whether an attempt has a log. Locks its row.
pub(crate) async fn lock_log_if_exists(
    tx: &mut Tx<'_>,
    key: Params<'static>,
) -> Result<bool, Error> {
    Ok(!tx.query(&LOCK, key).await?.is_empty())
}

/// Inserts the first chunk of a log that was just created.
pub(crate) async fn insert_first_log_chunk(
    tx: &mut Tx<'_>,
    key: Params<'static>,
    lines_count: i64,
    bytes: i64,
    body: String,
) -> Result<(), Error> {
    let chunk = params! { first_line: 0_i64, last_line: lines_count - 1, body: body };
    tx.execute(&INSERT_CHUNK, [key.clone(), chunk].concat()).await?;
    let totals = params! { lines_count: lines_count, bytes: bytes, truncated: 0_i64 };
    tx.execute(&UPDATE_COUNTERS, [key, totals].concat()).await.map(drop)
}

/// Inserts the lines in chunks up to `max_log_bytes` bytes of log size, and updates the totals of the log.
async fn append_chunks(
    tx: &mut Tx<'_>,
    key: Params<'static>,
    log: &mut LogHeader,
    lines: &[LogLine],
    max_log_bytes: i64,
) -> Result<(), Error> {
    let (mut body, mut first_line) = (String::new(), log.lines_count);
    for (index, line) in lines.iter().enumerate() {
        let text = line.sanitized_text();
        let free_bytes = usize::try_from(max_log_bytes - log.bytes).unwrap_or(0);
        let stored = match text.len() < free_bytes {
            true => text.as_str(),
            false => &text[..text.floor_char_boundary(free_bytes.saturating_sub(1))],
        };
        log.truncated = stored.len() < text.len() || free_bytes == 0;
        if !log.truncated || !stored.is_empty() {
            line.append_to_chunk(stored, &mut body);
            log.bytes += stored.len() as i64 + 1;
            log.lines_count += 1;
        }
        let chunk_ends = body.len() >= CHUNK_BYTES
            || (log.lines_count - first_line) as usize >= CHUNK_LINES
            || log.truncated
            || index + 1 == lines.len();
        if chunk_ends && !body.is_empty() {
            let chunk = params! {
                first_line: first_line,
                last_line: log.lines_count - 1,
                body: std::mem::take(&mut body),
            };
            tx.execute(&INSERT_CHUNK, [key.clone(), chunk].concat()).await?;
            first_line = log.lines_count;
        }
        if log.truncated {
            break;
        }
    }
    let totals = params! {
        lines_count: log.lines_count,
        bytes: log.bytes,
        truncated: i64::from(log.truncated),
    };
    tx.execute(&UPDATE_COUNTERS, [key, totals].concat()).await.map(drop)
}

impl LogLine {
    /// Returns the text with NUL characters and line breaks replaced, because not every database can store NUL and a
    /// line break would end the line.
    pub(crate) fn sanitized_text(&self) -> String {
        self.text.replace(['\0', '\n'], "\u{fffd}")
    }

    /// Appends the line to the body of a chunk: `o 1763208000000000 text`, with `e` instead of `o` for standard error.
    pub(crate) fn append_to_chunk(&self, text: &str, body: &mut String) {
        let stream = match self.stream {
            OutputStream::Stdout => 'o',
            OutputStream::Stderr => 'e',
        };
        body.push_str(&format!("{stream} {} {text}\n", self.at.as_microsecond()));
    }

    fn decode(line: &str) -> Result<Self, Error> {
        let broken = || Error::broken("a stored log line cannot be decoded");
        let mut parts = line.splitn(3, ' ');
        let (stream, at, text) = (parts.next(), parts.next(), parts.next());
        let stream = match stream {
            Some("o") => OutputStream::Stdout,
            Some("e") => OutputStream::Stderr,
            _ => return Err(broken()),
        };
        let at = at.and_then(|at| at.parse().ok()).ok_or_else(broken)?;
        let text = text.ok_or_else(broken)?.to_owned();
        Ok(Self { stream, at: timestamp_from_micros(at)?, text })
    }
}
