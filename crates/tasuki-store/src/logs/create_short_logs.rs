//! Creates the logs of several attempts with one write. Most commands print only a few lines before they end, so their
//! whole log fits into one chunk.

use std::collections::HashSet;

use tasuki_core::RunId;

use crate::db::params;
use crate::db::sql::{Dialect, Sql, sql};
use crate::logs::{self, LogLine};
use crate::{Error, Store, validate};

static INSERT: Sql = sql!("log/insert", ".sqlite", ".postgres", ".mysql");
static INSERT_MANY: Sql = sql!("log/insert_many", ".postgres", ".postgres", ".postgres");

/// The first lines of an attempt's output. For most attempts these are the whole output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstOutputLines {
    /// The run.
    pub run: RunId,
    /// The number of the attempt, from 1.
    pub attempt_no: u32,
    /// The captured lines, from the first one on.
    pub lines: Vec<LogLine>,
}

impl FirstOutputLines {
    /// Whether the lines fit into one chunk, so that [`Store::create_short_logs`] accepts them. `max_log_bytes` is the
    /// maximum size of a log, in bytes.
    pub fn fits_one_chunk(&self, max_log_bytes: i64) -> bool {
        let bytes: usize = self.lines.iter().map(|line| line.text.len() + 1).sum();
        let max_bytes = logs::CHUNK_BYTES.min(usize::try_from(max_log_bytes).unwrap_or(0));
        !self.lines.is_empty() && self.lines.len() <= logs::CHUNK_LINES && bytes < max_bytes
    }

    /// Returns an upper bound for the size of the lines as JSON, in bytes.
    pub(crate) fn max_json_string_bytes(&self) -> usize {
        self.lines.iter().map(|line| 32 + validate::max_json_string_bytes(Some(&line.text))).sum()
    }

    /// Encodes the lines as one chunk. Returns the size of their text in bytes, and the chunk.
    pub(crate) fn encode_chunk(&self) -> (i64, String) {
        let (mut bytes, mut body) = (0, String::new());
        for line in &self.lines {
            let text = line.sanitized_text();
            bytes += text.len() as i64 + 1;
            line.append_to_chunk(&text, &mut body);
        }
        (bytes, body)
    }
}

impl Store {
    /// Creates the logs of several attempts. Each output must fit into one chunk. Returns for each whether its log
    /// was created. `false`: the attempt does not exist any more, or it already has a log; [`Store::append_log`]
    /// tells these cases apart.
    pub async fn create_short_logs(&self, logs: &[FirstOutputLines]) -> Result<Vec<bool>, Error> {
        match self.dialect() {
            Dialect::Postgres => self.create_logs_batch(logs).await,
            Dialect::Sqlite | Dialect::MySql => self.create_logs_one_by_one(logs).await,
        }
    }

    async fn create_logs_batch(&self, logs: &[FirstOutputLines]) -> Result<Vec<bool>, Error> {
        let (bytes, bodies): (Vec<i64>, Vec<String>) =
            logs.iter().map(FirstOutputLines::encode_chunk).unzip();
        let params = params! {
            run_ids: logs.iter().map(|log| log.run.0).collect::<Vec<_>>(),
            attempts: logs.iter().map(|log| i64::from(log.attempt_no)).collect::<Vec<_>>(),
            lines_counts: logs.iter().map(|log| log.lines.len() as i64).collect::<Vec<_>>(),
            bytes: bytes,
            bodies: bodies.into_iter().map(Some).collect::<Vec<_>>(),
        };
        let mut created = HashSet::new();
        for row in self.db.write_returning(&INSERT_MANY, params).await? {
            created.insert((row.int("run_id")?, row.int("attempt_no")?));
        }
        // If an attempt is in the list twice, only its first output was stored.
        let was_created =
            |log: &FirstOutputLines| created.remove(&(log.run.0, i64::from(log.attempt_no)));
        Ok(logs.iter().map(was_created).collect())
    }

    async fn create_logs_one_by_one(&self, logs: &[FirstOutputLines]) -> Result<Vec<bool>, Error> {
        let mut results = Vec::with_capacity(logs.len());
        let mut tx = self.db.begin().await?;
        for log in logs {
            let key = logs::attempt_key(log.run, log.attempt_no);
            // Checked first, because MySQL also counts an existing row as inserted.
            let is_created = !logs::lock_log_if_exists(&mut tx, key.clone()).await?
                && tx.execute(&INSERT, key.clone()).await? == 1;
            if is_created {
                let (bytes, body) = log.encode_chunk();
                logs::insert_first_log_chunk(&mut tx, key, log.lines.len() as i64, bytes, body)
                    .await?;
            }
            results.push(is_created);
        }
        tx.commit().await?;
        Ok(results)
    }
}
