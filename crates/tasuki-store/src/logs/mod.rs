//! Logs: what an attempt prints, kept in batches, read while it still runs.

pub(crate) mod first_lines;

use jiff::Timestamp;
use tasuki_core::{Invalid, RunId};

use crate::db::sql::{Sql, sql};
use crate::db::{Params, Row, Tx, params};
use crate::run::timestamp;
use crate::{Error, Store};

static OPEN: Sql = sql!("log/open", ".sqlite", ".postgres", ".mysql");
static LOCK: Sql = sql!("log/lock");
static SHOW: Sql = sql!("log/show");
static ADD: Sql = sql!("log/add");
static COUNT: Sql = sql!("log/count");
static READ: Sql = sql!("log/read");
static ARCHIVE: Sql = sql!("log/archive");
static DELETE_BODY: Sql = sql!("log/delete_body");

/// How much goes into one chunk, and how many chunks and lines into one page.
pub(crate) const CHUNK_LINES: usize = 500;
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
const PAGE_CHUNKS: u32 = 32;
const PAGE_LINES: u32 = 2_000;

/// Where a line was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// The standard output.
    Out,
    /// The standard error.
    Err,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Where it was printed.
    pub stream: Stream,
    /// When.
    pub at: Timestamp,
    /// What, without its line break.
    pub text: String,
}

/// What became of lines that were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged {
    /// The line to be sent next; lines are counted from 0.
    pub next_line: i64,
    /// Whether the log was cut here: nothing more is kept.
    pub truncated: bool,
}

/// Some lines of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPage {
    /// The lines from the one that was asked for.
    pub lines: Vec<LogLine>,
    /// Where to read on. The same as was asked for: there is nothing more yet.
    pub next_line: i64,
    /// How many lines there are by now.
    pub lines_count: i64,
    /// How many bytes they have.
    pub bytes: i64,
    /// Whether the log was cut after its last line.
    pub truncated: bool,
    /// Where the log is, if it has been moved.
    pub log_ref: Option<String>,
}

/// An attempt's counters.
struct Counters {
    bytes: i64,
    lines_count: i64,
    truncated: bool,
    archived: bool,
    log_ref: Option<String>,
}

impl Counters {
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
    /// Adds lines to the log of an attempt, of which `first_line` is the number of the first. What was
    /// sent before is not kept twice, and what is beyond `cap` bytes is cut. `None`: there is no such
    /// attempt any more, or its log has been moved.
    pub async fn append_log(
        &self,
        run: RunId,
        attempt_no: u32,
        first_line: i64,
        lines: &[LogLine],
        cap: i64,
    ) -> Result<Option<Logged>, Error> {
        let mut tx = self.db.begin().await?;
        let found = lock(&mut tx, run, attempt_no).await?;
        let Some(mut log) = found.filter(|log| !log.archived) else {
            tx.rollback().await?;
            return Ok(None);
        };
        if !log.truncated && first_line > log.lines_count {
            let expected = format!("at most {}", log.lines_count);
            return Err(Invalid::typed("first line", &first_line.to_string(), expected).into());
        }
        let known = usize::try_from(log.lines_count - first_line).unwrap_or(0);
        let news = lines.get(known..).unwrap_or_default();
        if !log.truncated && !news.is_empty() {
            add(&mut tx, key(run, attempt_no), &mut log, news, cap).await?;
        }
        tx.commit().await?;
        Ok(Some(Logged { next_line: log.lines_count, truncated: log.truncated }))
    }

    /// Reads a log from a line on, at most so many lines and perhaps fewer. `None`: nothing was ever
    /// printed.
    pub async fn read_log(
        &self,
        run: RunId,
        attempt_no: u32,
        from_line: i64,
        most: u32,
    ) -> Result<Option<LogPage>, Error> {
        let rows = self.db.rows(&SHOW, key(run, attempt_no)).await?;
        let Some(log) = rows.first().map(Counters::from_row).transpose()? else {
            return Ok(None);
        };
        let from_line = from_line.max(0);
        let page = params! { from_line: from_line, most: PAGE_CHUNKS };
        let chunks = self.db.rows(&READ, [key(run, attempt_no), page].concat()).await?;
        let mut lines = Vec::new();
        for chunk in &chunks {
            let passed = usize::try_from(from_line - chunk.int("first_line")?).unwrap_or(0);
            for line in chunk.text("body")?.split_terminator('\n').skip(passed) {
                lines.push(LogLine::decode(line)?);
            }
        }
        lines.truncate(most.clamp(1, PAGE_LINES) as usize);
        Ok(Some(LogPage {
            next_line: from_line + lines.len() as i64,
            lines,
            lines_count: log.lines_count,
            bytes: log.bytes,
            truncated: log.truncated,
            log_ref: log.log_ref,
        }))
    }

    /// Says that the whole log, of so many lines, is elsewhere too. `false`: it has grown since, or it
    /// was moved before.
    pub async fn archive_log(
        &self,
        run: RunId,
        attempt_no: u32,
        lines_count: i64,
        log_ref: &str,
        sha256: [u8; 32],
    ) -> Result<bool, Error> {
        let mut tx = self.db.begin().await?;
        let place = params! {
            lines_count: lines_count,
            log_ref: log_ref,
            sha256: sha256.to_vec(),
        };
        let moved = tx.execute(&ARCHIVE, [key(run, attempt_no), place].concat()).await?;
        tx.commit().await?;
        Ok(moved == 1)
    }

    /// Deletes the lines of a log that is elsewhere, and nothing of one that is not.
    pub async fn delete_log_body(&self, run: RunId, attempt_no: u32) -> Result<bool, Error> {
        let mut tx = self.db.begin().await?;
        let deleted = tx.execute(&DELETE_BODY, key(run, attempt_no)).await?;
        tx.commit().await?;
        Ok(deleted > 0)
    }
}

pub(crate) fn key(run: RunId, attempt_no: u32) -> Params<'static> {
    params! { run_id: run.0, attempt_no: attempt_no }
}

async fn lock(tx: &mut Tx<'_>, run: RunId, attempt_no: u32) -> Result<Option<Counters>, Error> {
    let mut rows = tx.rows(&LOCK, key(run, attempt_no)).await?;
    if rows.is_empty() {
        tx.execute(&OPEN, key(run, attempt_no)).await?;
        rows = tx.rows(&LOCK, key(run, attempt_no)).await?;
    }
    rows.first().map(Counters::from_row).transpose()
}

/// Whether an attempt has a log.
pub(crate) async fn is_open(tx: &mut Tx<'_>, key: Params<'static>) -> Result<bool, Error> {
    Ok(!tx.rows(&LOCK, key).await?.is_empty())
}

/// Writes the first lines of a log that was just opened.
pub(crate) async fn add_first(
    tx: &mut Tx<'_>,
    key: Params<'static>,
    lines_count: i64,
    bytes: i64,
    body: String,
) -> Result<(), Error> {
    let chunk = params! { first_line: 0_i64, last_line: lines_count - 1, body: body };
    tx.execute(&ADD, [key.clone(), chunk].concat()).await?;
    let counted = params! { lines_count: lines_count, bytes: bytes, truncated: 0_i64 };
    tx.execute(&COUNT, [key, counted].concat()).await.map(drop)
}

/// Writes what fits, in chunks, and counts it.
async fn add(
    tx: &mut Tx<'_>,
    key: Params<'static>,
    log: &mut Counters,
    lines: &[LogLine],
    cap: i64,
) -> Result<(), Error> {
    let (mut body, mut first_line) = (String::new(), log.lines_count);
    for (index, line) in lines.iter().enumerate() {
        let text = line.storable();
        let room = usize::try_from(cap - log.bytes).unwrap_or(0);
        let kept = match text.len() < room {
            true => text.as_str(),
            false => &text[..text.floor_char_boundary(room.saturating_sub(1))],
        };
        log.truncated = kept.len() < text.len() || room == 0;
        if !log.truncated || !kept.is_empty() {
            line.encode(kept, &mut body);
            log.bytes += kept.len() as i64 + 1;
            log.lines_count += 1;
        }
        let full = body.len() >= CHUNK_BYTES
            || (log.lines_count - first_line) as usize >= CHUNK_LINES
            || log.truncated
            || index + 1 == lines.len();
        if full && !body.is_empty() {
            let chunk = params! {
                first_line: first_line,
                last_line: log.lines_count - 1,
                body: std::mem::take(&mut body),
            };
            tx.execute(&ADD, [key.clone(), chunk].concat()).await?;
            first_line = log.lines_count;
        }
        if log.truncated {
            break;
        }
    }
    let counted = params! {
        lines_count: log.lines_count,
        bytes: log.bytes,
        truncated: i64::from(log.truncated),
    };
    tx.execute(&COUNT, [key, counted].concat()).await.map(drop)
}

impl LogLine {
    /// The text as every database can keep it: one line, and no NUL.
    pub(crate) fn storable(&self) -> String {
        self.text.replace(['\0', '\n'], "\u{fffd}")
    }

    /// `o 1763208000000000 text`, or `e` for an error.
    pub(crate) fn encode(&self, text: &str, body: &mut String) {
        let mark = match self.stream {
            Stream::Out => 'o',
            Stream::Err => 'e',
        };
        body.push_str(&format!("{mark} {} {text}\n", self.at.as_microsecond()));
    }

    fn decode(line: &str) -> Result<Self, Error> {
        let broken = || Error::broken("a line of a log is no line");
        let mut parts = line.splitn(3, ' ');
        let (mark, at, text) = (parts.next(), parts.next(), parts.next());
        let stream = match mark {
            Some("o") => Stream::Out,
            Some("e") => Stream::Err,
            _ => return Err(broken()),
        };
        let at = at.and_then(|at| at.parse().ok()).ok_or_else(broken)?;
        let text = text.ok_or_else(broken)?.to_owned();
        Ok(Self { stream, at: timestamp(at)?, text })
    }
}
