//! Retention: what is old enough goes, a bounded batch at a time. The audit and the term history stay.
//!
//! Each call looks at so many rows from a place on and deletes those that have ended long enough ago;
//! what cannot go yet is passed over, so that a few old runs that never end do not stop the rest.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{Epoch, WorkerId};

use crate::db::params;
use crate::db::sql::{Sql, sql};
use crate::run::due;
use crate::run::micros;
use crate::{Writer, Error, Store, uuid};

static RUN_OLD: Sql = sql!("run/old", ".sqlite", ".postgres", ".mysql");
static RUN_LOCK: Sql = sql!("run/lock_old", ".sqlite", ".postgres", ".mysql");
static RUN_RELIST: Sql = sql!("run/relist", ".postgres", ".postgres", ".postgres");
static RUN_DELETE: Sql = sql!("run/delete", ".sqlite", ".postgres", ".mysql");
static ATTEMPT_DELETE: Sql = sql!("attempt/delete", ".sqlite", ".postgres", ".mysql");
static NOTE_DELETE: Sql = sql!("note/delete", ".sqlite", ".postgres", ".mysql");
static LOG_DELETE: Sql = sql!("log/delete", ".sqlite", ".postgres", ".mysql");
static LINES_DELETE: Sql = sql!("log/delete_lines", ".sqlite", ".postgres", ".mysql");
static EVENT_OLD: Sql = sql!("event/old");
static EVENT_DELETE: Sql = sql!("event/delete", ".sqlite", ".postgres", ".mysql");
static STAT_OLD: Sql = sql!("stat/old");
static STAT_DELETE: Sql = sql!("stat/delete");
static WORKER_FORGET: Sql = sql!("worker/forget");
static WORKER_DELETE: Sql = sql!("worker/delete");

/// The most rows one call looks at.
const MOST: u32 = 5_000;
const MINUTE: i64 = 60_000_000;
/// By then a claim that was under way has landed, or never will.
const LANDED: Duration = Duration::from_secs(60);

/// How far a sweep has come. It begins at the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrunePlace {
    at: i64,
    id: i64,
}

impl PrunePlace {
    /// Before everything that is planned for this instant or a later one.
    pub fn planned_from(at: Timestamp) -> Self {
        Self { at: at.as_microsecond(), id: 0 }
    }
}

impl Default for PrunePlace {
    fn default() -> Self {
        Self { at: i64::MIN, id: 0 }
    }
}

/// What one batch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruned {
    /// How many went.
    pub deleted: u64,
    /// Where to go on; `None`: the sweep is over.
    pub next: Option<PrunePlace>,
}

/// Which workers were forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgotten {
    /// How many rows went.
    pub deleted: u64,
    /// Whether there may be more at once.
    pub more: bool,
}

impl Store {
    /// Deletes runs that ended longer ago than this, with their attempts, notes and logs. Looks at `most`
    /// runs at a time, those planned first at first.
    pub async fn prune_runs(
        &self,
        older_than: Duration,
        from: PrunePlace,
        most: u32,
    ) -> Result<Pruned, Error> {
        let most = most.clamp(1, MOST);
        let age = micros(older_than);
        let stretch = params! { age: age, at: from.at, id: from.id, most: most };
        let old = self.db.rows(&RUN_OLD, stretch).await?;
        let (mut next, mut listed, mut ids) = (from, Vec::new(), Vec::new());
        for row in &old {
            // Those that are listed together are looked at together.
            let together = due::stretch(row)?;
            next = PrunePlace { at: row.int("scheduled_for")?, id: *together.start() };
            ids.extend(together.clone());
            listed.push(together);
            if ids.len() >= most as usize {
                break;
            }
        }
        if ids.is_empty() {
            return Ok(Pruned { deleted: 0, next: None });
        }
        let more = ids.len() >= most as usize;

        let mut tx = self.db.begin().await?;
        let ended = tx.rows(&RUN_LOCK, params! { ids: ids, age: age }).await?;
        let ids = ended.iter().map(|row| row.int("id")).collect::<Result<Vec<_>, _>>()?;
        let mut deleted = 0;
        if !ids.is_empty() {
            let left = left_alone(&listed, &ids);
            if !left.is_empty() {
                tx.execute(&RUN_RELIST, params! { ids: left }).await?;
            }
            for rest in [&LINES_DELETE, &LOG_DELETE, &NOTE_DELETE, &ATTEMPT_DELETE] {
                tx.execute(rest, params! { ids: ids.clone() }).await?;
            }
            deleted = tx.execute(&RUN_DELETE, params! { ids: ids }).await?;
        }
        tx.commit().await?;
        Ok(Pruned { deleted, next: more.then_some(next) })
    }

    /// Deletes events that were taken longer ago than this. Looks at `most` events at a time, the oldest
    /// first; one that nobody has taken stays, however old it is.
    pub async fn prune_events(
        &self,
        older_than: Duration,
        from: PrunePlace,
        most: u32,
    ) -> Result<Pruned, Error> {
        let most = most.clamp(1, MOST);
        let age = micros(older_than);
        let stretch = params! { age: age, id: from.id, most: most };
        let rows = self.db.rows(&EVENT_OLD, stretch).await?;
        let mut ids = Vec::with_capacity(rows.len());
        for row in &rows {
            if row.int("created_at")? < row.int("cutoff")? {
                ids.push(row.int("id")?);
            }
        }
        let Some(&last) = ids.last() else { return Ok(Pruned { deleted: 0, next: None }) };
        // Where young ones begin, or the events end, the sweep does.
        let more = ids.len() == most as usize;
        let mut tx = self.db.begin().await?;
        let deleted = tx.execute(&EVENT_DELETE, params! { ids: ids, age: age }).await?;
        tx.commit().await?;
        let next = PrunePlace { id: last, ..PrunePlace::default() };
        Ok(Pruned { deleted, next: more.then_some(next) })
    }

    /// Deletes the counts of minutes longer ago than this, about `most` rows: whole minutes at a time.
    /// Nothing deleted: nothing is that old.
    pub async fn prune_stats(&self, older_than: Duration, most: u32) -> Result<u64, Error> {
        let stretch = params! { age: micros(older_than), most: most.clamp(1, MOST) };
        let mut last = None;
        for row in self.db.rows(&STAT_OLD, stretch).await? {
            // A minute is old when its end is.
            let minute = row.int("minute")?;
            if (minute + 1) * MINUTE <= row.int("cutoff")? {
                last = Some(minute);
            }
        }
        let Some(last) = last else { return Ok(0) };
        let mut tx = self.db.begin().await?;
        let deleted = tx.execute(&STAT_DELETE, params! { minute: last }).await?;
        tx.commit().await?;
        Ok(deleted)
    }

    /// A leader forgets workers that nobody has heard of for longer than this and that carry nothing: those that left, died
    /// or were cut off, and those that vanished without a word. First such a one counts as gone, and claims nothing any
    /// more; its row goes with a later call. Should it live after all, its next heartbeat tells it to begin anew. What it
    /// ran keeps its id. Who asks is there, however long the whole machine may have slept.
    pub async fn forget_workers(
        &self,
        epoch: Epoch,
        older_than: Duration,
        asks: WorkerId,
        most: u32,
    ) -> Result<Forgotten, Error> {
        let most = most.clamp(1, MOST);
        let stretch = params! {
            asks: uuid(asks.as_bytes()),
            age: micros(older_than),
            pause: micros(LANDED),
            most: most,
        };
        let mut tx = self.begin_as(Writer::Leader(epoch)).await?;
        let deleted = tx.execute(&WORKER_DELETE, stretch.clone()).await?;
        let gone = tx.execute(&WORKER_FORGET, stretch).await?;
        tx.commit().await?;
        Ok(Forgotten { deleted, more: deleted.max(gone) == u64::from(most) })
    }
}

/// What stays of those that are listed together and of which some go.
fn left_alone(listed: &[RangeInclusive<i64>], gone: &[i64]) -> Vec<i64> {
    let gone: HashSet<i64> = gone.iter().copied().collect();
    let broken = |together: &&RangeInclusive<i64>| {
        let mut each = (*together).clone();
        each.clone().any(|id| gone.contains(&id)) && each.any(|id| !gone.contains(&id))
    };
    let broken = listed.iter().filter(broken);
    broken.flat_map(Clone::clone).filter(|id| !gone.contains(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_loses_its_company_is_left_alone() {
        let listed = [1..=1, 2..=5, 6..=9, 10..=12];
        assert_eq!(left_alone(&listed, &[1, 3, 5, 6, 7, 8, 9]), [2, 4]);
        assert!(left_alone(&listed, &[]).is_empty());
    }
}
