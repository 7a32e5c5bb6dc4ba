//! Retention: deletes old rows in bounded batches. The audit and the history of leader terms are never deleted.
//!
//! Each call reads a batch of rows from a position on and deletes those that ended long enough ago. Rows that cannot be
//! deleted yet are skipped, so that a few old runs that never end do not block the others.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{Epoch, WorkerId};

use crate::db::instant::duration_to_micros;
use crate::db::params;
use crate::db::sql::{Sql, sql};
use crate::run::due_table;
use crate::{Error, Store, Writer, to_uuid};

static RUN_LIST_PRUNABLE: Sql = sql!("run/list_prunable", ".sqlite", ".postgres", ".mysql");
static RUN_LOCK_PRUNABLE: Sql = sql!("run/lock_prunable", ".sqlite", ".postgres", ".mysql");
static RUN_RESET_EXTRA_RUNS: Sql =
    sql!("run/reset_extra_runs", ".postgres", ".postgres", ".postgres");
static RUN_DELETE: Sql = sql!("run/delete", ".sqlite", ".postgres", ".mysql");
static ATTEMPT_DELETE: Sql = sql!("attempt/delete", ".sqlite", ".postgres", ".mysql");
static TRANSITION_RECORD_DELETE: Sql =
    sql!("transition_record/delete", ".sqlite", ".postgres", ".mysql");
static LOG_DELETE: Sql = sql!("log/delete", ".sqlite", ".postgres", ".mysql");
static CHUNK_DELETE: Sql = sql!("log/delete_chunks", ".sqlite", ".postgres", ".mysql");
static EVENT_LIST_PRUNABLE: Sql = sql!("event/list_prunable");
static EVENT_DELETE: Sql = sql!("event/delete", ".sqlite", ".postgres", ".mysql");
static STAT_LIST_PRUNABLE: Sql = sql!("stat/list_prunable");
static STAT_DELETE_UNTIL: Sql = sql!("stat/delete_until");
static WORKER_MARK_SILENT_GONE: Sql = sql!("worker/mark_silent_gone");
static WORKER_DELETE_GONE: Sql = sql!("worker/delete_gone");

/// Maximum number of rows that one call reads.
const MAX_BATCH: u32 = 5_000;
/// One minute in microseconds.
const MINUTE_MICROS: i64 = 60_000_000;
/// Maximum time until a claim that was sent takes effect. After this time it has taken effect or never will.
const MAX_CLAIM_DELAY: Duration = Duration::from_secs(60);

/// Where the next batch of a sweep begins. A sweep starts at the default position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrunePosition {
    /// The planned instant of the last run that was read, in microseconds since 1970. Events do not use it.
    at: i64,
    /// The id of the last run or event that was read.
    id: i64,
}

impl PrunePosition {
    /// Returns the position before all runs that are planned for this instant or later.
    pub fn before_runs_scheduled_at(at: Timestamp) -> Self {
        Self { at: at.as_microsecond(), id: 0 }
    }
}

impl Default for PrunePosition {
    fn default() -> Self {
        Self { at: i64::MIN, id: 0 }
    }
}

/// The result of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneResult {
    /// How many runs or events were deleted.
    pub deleted: u64,
    /// Position of the next batch; `None`: the sweep is complete.
    pub next: Option<PrunePosition>,
}

/// The result of [`Store::prune_workers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrunedWorkers {
    /// How many workers were deleted.
    pub deleted: u64,
    /// Whether the batch was full, so that another call may find more workers immediately.
    pub has_more: bool,
}

impl Store {
    /// Deletes runs that ended longer ago than `older_than`, with their attempts, transition records and logs. Reads
    /// at most
    /// `max_rows` runs from the position on, in the order of their planned instants.
    pub async fn prune_runs(
        &self,
        older_than: Duration,
        from: PrunePosition,
        max_rows: u32,
    ) -> Result<PruneResult, Error> {
        let max_rows = max_rows.clamp(1, MAX_BATCH);
        let min_age = duration_to_micros(older_than);
        let batch = params! { min_age: min_age, at: from.at, id: from.id, limit: max_rows };
        let old = self.db.query(&RUN_LIST_PRUNABLE, batch).await?;
        let (mut next, mut id_ranges, mut ids) = (from, Vec::new(), Vec::new());
        for row in &old {
            // The runs of one id range are always in the same batch.
            let id_range = due_table::run_ids_of_due_row(row)?;
            next = PrunePosition { at: row.int("scheduled_for")?, id: *id_range.start() };
            ids.extend(id_range.clone());
            id_ranges.push(id_range);
            if ids.len() >= max_rows as usize {
                break;
            }
        }
        if ids.is_empty() {
            return Ok(PruneResult { deleted: 0, next: None });
        }
        let has_more = ids.len() >= max_rows as usize;

        let mut tx = self.db.begin().await?;
        let ended = tx.query(&RUN_LOCK_PRUNABLE, params! { ids: ids, min_age: min_age }).await?;
        let ids = ended.iter().map(|row| row.int("id")).collect::<Result<Vec<_>, _>>()?;
        let mut deleted = 0;
        if !ids.is_empty() {
            let remaining = list_remaining(&id_ranges, &ids);
            if !remaining.is_empty() {
                tx.execute(&RUN_RESET_EXTRA_RUNS, params! { ids: remaining }).await?;
            }
            for delete in [&CHUNK_DELETE, &LOG_DELETE, &TRANSITION_RECORD_DELETE, &ATTEMPT_DELETE] {
                tx.execute(delete, params! { ids: ids.clone() }).await?;
            }
            deleted = tx.execute(&RUN_DELETE, params! { ids: ids }).await?;
        }
        tx.commit().await?;
        Ok(PruneResult { deleted, next: has_more.then_some(next) })
    }

    /// Deletes events that were processed longer ago than `older_than`. Reads at most `max_rows` events from the
    /// position on, the oldest first. An event that was not processed is never deleted.
    pub async fn prune_events(
        &self,
        older_than: Duration,
        from: PrunePosition,
        max_rows: u32,
    ) -> Result<PruneResult, Error> {
        let max_rows = max_rows.clamp(1, MAX_BATCH);
        let min_age = duration_to_micros(older_than);
        let batch = params! { min_age: min_age, id: from.id, limit: max_rows };
        let rows = self.db.query(&EVENT_LIST_PRUNABLE, batch).await?;
        let mut ids = Vec::with_capacity(rows.len());
        for row in &rows {
            if row.int("created_at")? < row.int("cutoff")? {
                ids.push(row.int("id")?);
            }
        }
        let Some(&last) = ids.last() else { return Ok(PruneResult { deleted: 0, next: None }) };
        // The sweep is complete at the first event that is too young, or after the last event.
        let has_more = ids.len() == max_rows as usize;
        let mut tx = self.db.begin().await?;
        let deleted = tx.execute(&EVENT_DELETE, params! { ids: ids, min_age: min_age }).await?;
        tx.commit().await?;
        let next = PrunePosition { id: last, ..PrunePosition::default() };
        Ok(PruneResult { deleted, next: has_more.then_some(next) })
    }

    /// Deletes the statistics of minutes that ended longer ago than `older_than`: about `max_rows` rows, always whole
    /// minutes. Returns the number of deleted rows; 0: no row is that old.
    pub async fn prune_stats(&self, older_than: Duration, max_rows: u32) -> Result<u64, Error> {
        let batch = params! { min_age: duration_to_micros(older_than), limit: max_rows.clamp(1, MAX_BATCH) };
        let mut last = None;
        for row in self.db.query(&STAT_LIST_PRUNABLE, batch).await? {
            // The end of the minute decides, not its beginning.
            let minute = row.int("minute")?;
            if (minute + 1) * MINUTE_MICROS <= row.int("cutoff")? {
                last = Some(minute);
            }
        }
        let Some(last) = last else { return Ok(0) };
        let mut tx = self.db.begin().await?;
        let deleted = tx.execute(&STAT_DELETE_UNTIL, params! { minute: last }).await?;
        tx.commit().await?;
        Ok(deleted)
    }

    /// Deletes workers that have sent no heartbeat for longer than `older_than` and hold no lease: workers that
    /// stopped, died, were detached or disappeared. Only the leader with this epoch may do this.
    ///
    /// The first call marks such a worker as gone, so that it can claim no more runs; a later call deletes its row.
    /// If the worker is alive after all, the response to its next heartbeat makes it register again. Its runs keep
    /// its id. `caller`, the leader's own worker, is never deleted: after the whole machine was suspended, its own
    /// heartbeat looks old.
    pub async fn prune_workers(
        &self,
        epoch: Epoch,
        older_than: Duration,
        caller: WorkerId,
        max_rows: u32,
    ) -> Result<PrunedWorkers, Error> {
        let max_rows = max_rows.clamp(1, MAX_BATCH);
        let batch = params! {
            caller: to_uuid(caller.as_bytes()),
            min_age: duration_to_micros(older_than),
            min_gone: duration_to_micros(MAX_CLAIM_DELAY),
            limit: max_rows,
        };
        let mut tx = self.begin_for(Writer::Leader(epoch)).await?;
        let deleted = tx.execute(&WORKER_DELETE_GONE, batch.clone()).await?;
        let gone = tx.execute(&WORKER_MARK_SILENT_GONE, batch).await?;
        tx.commit().await?;
        Ok(PrunedWorkers { deleted, has_more: deleted.max(gone) == u64::from(max_rows) })
    }
}

/// Lists the runs that remain of the id ranges of which some runs, but not all, are deleted.
fn list_remaining(id_ranges: &[RangeInclusive<i64>], deleted: &[i64]) -> Vec<i64> {
    let deleted: HashSet<i64> = deleted.iter().copied().collect();
    let is_partly_deleted = |id_range: &&RangeInclusive<i64>| {
        let mut ids = (*id_range).clone();
        ids.clone().any(|id| deleted.contains(&id)) && ids.any(|id| !deleted.contains(&id))
    };
    let partly_deleted = id_ranges.iter().filter(is_partly_deleted);
    partly_deleted.flat_map(Clone::clone).filter(|id| !deleted.contains(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_rest_of_a_partly_deleted_id_range_remains() {
        let id_ranges = [1..=1, 2..=5, 6..=9, 10..=12];
        assert_eq!(list_remaining(&id_ranges, &[1, 3, 5, 6, 7, 8, 9]), [2, 4]);
        assert!(list_remaining(&id_ranges, &[]).is_empty());
    }
}
