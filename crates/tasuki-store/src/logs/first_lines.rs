//! The first lines of several attempts in one write. Most commands print little, and end: their whole
//! log is one such line or a few.

use std::collections::HashSet;

use tasuki_core::RunId;

use crate::db::params;
use crate::db::sql::{Dialect, Sql, sql};
use crate::logs::{self, LogLine};
use crate::{Error, Store, check};

static OPEN: Sql = sql!("log/open", ".sqlite", ".postgres", ".mysql");
static OPEN_MANY: Sql = sql!("log/open_many", ".postgres", ".postgres", ".postgres");

/// The first lines that an attempt printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstLines {
    /// Of which run.
    pub run: RunId,
    /// Which attempt.
    pub attempt_no: u32,
    /// What it printed.
    pub lines: Vec<LogLine>,
}

impl FirstLines {
    /// Whether they are so few that they may travel with others, where `cap` bytes are kept of a log.
    pub fn are_few(&self, cap: i64) -> bool {
        let bytes: usize = self.lines.iter().map(|line| line.text.len() + 1).sum();
        let most = logs::CHUNK_BYTES.min(usize::try_from(cap).unwrap_or(0));
        !self.lines.is_empty() && self.lines.len() <= logs::CHUNK_LINES && bytes < most
    }

    pub(crate) fn weight(&self) -> usize {
        self.lines.iter().map(|line| 32 + check::weight(Some(&line.text))).sum()
    }

    /// How many bytes of text, and the chunk they make.
    pub(crate) fn chunk(&self) -> (i64, String) {
        let (mut bytes, mut body) = (0, String::new());
        for line in &self.lines {
            let text = line.storable();
            bytes += text.len() as i64 + 1;
            line.encode(&text, &mut body);
        }
        (bytes, body)
    }
}

impl Store {
    /// Opens the logs of attempts with their first lines, which must be few. `false` where nothing was kept:
    /// there is no such attempt any more, or it has a log; [`Store::append_log`] knows which.
    pub async fn open_logs(&self, logs: &[FirstLines]) -> Result<Vec<bool>, Error> {
        match self.dialect() {
            Dialect::Postgres => self.open_logs_in_one_trip(logs).await,
            Dialect::Sqlite | Dialect::MySql => self.open_logs_one_by_one(logs).await,
        }
    }

    async fn open_logs_in_one_trip(&self, logs: &[FirstLines]) -> Result<Vec<bool>, Error> {
        let (bytes, bodies): (Vec<i64>, Vec<String>) = logs.iter().map(FirstLines::chunk).unzip();
        let told = params! {
            run_ids: logs.iter().map(|log| log.run.0).collect::<Vec<_>>(),
            attempts: logs.iter().map(|log| i64::from(log.attempt_no)).collect::<Vec<_>>(),
            lines_counts: logs.iter().map(|log| log.lines.len() as i64).collect::<Vec<_>>(),
            bytes: bytes,
            bodies: bodies.into_iter().map(Some).collect::<Vec<_>>(),
        };
        let mut opened = HashSet::new();
        for row in self.db.write(&OPEN_MANY, told).await? {
            opened.insert((row.int("run_id")?, row.int("attempt_no")?));
        }
        // The same attempt twice: the first has it.
        let kept = |log: &FirstLines| opened.remove(&(log.run.0, i64::from(log.attempt_no)));
        Ok(logs.iter().map(kept).collect())
    }

    async fn open_logs_one_by_one(&self, logs: &[FirstLines]) -> Result<Vec<bool>, Error> {
        let mut kept = Vec::with_capacity(logs.len());
        let mut tx = self.db.begin().await?;
        for log in logs {
            let key = logs::key(log.run, log.attempt_no);
            // Looked for first: MySQL counts a row that was there as one that it has made.
            let opened = !logs::is_open(&mut tx, key.clone()).await?
                && tx.execute(&OPEN, key.clone()).await? == 1;
            if opened {
                let (bytes, body) = log.chunk();
                logs::add_first(&mut tx, key, log.lines.len() as i64, bytes, body).await?;
            }
            kept.push(opened);
        }
        tx.commit().await?;
        Ok(kept)
    }
}
