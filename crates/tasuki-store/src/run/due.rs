//! Where runs wait: one row for each, or one for a *stretch* of tasks that were submitted together, whose ids follow one
//! another. What most tasks are never writes a row of its own there.

use jiff::Timestamp;
use tasuki_core::RunId;

use crate::db::sql::{Sql, sql};
use crate::db::{Params, Row, Tx, params};
use crate::run::timestamp;
use crate::{ClaimBatch, Error, Store, DueRun};

static PLACE: Sql = sql!("due/place");
static TAKE: Sql = sql!("due/take");
static TAKE_STRETCH: Sql = sql!("due/take_stretch");
static PUT_STRETCH: Sql = sql!("due/put_stretch");
static FIND_STRETCH: Sql = sql!("due/stretch");
static LOCK: Sql = sql!("due/lock", ".mysql", ".mysql", ".mysql");
/// The same without locks.
static LOOK: Sql =
    sql!("due/lock", ".mysql", ".mysql", ".mysql").without("\n   for update skip locked");
static LIST: Sql = sql!("due/list");
static NEXT: Sql = sql!("due/next");

/// The most runs that one row stands for: few enough that a claim is of several rows, and that claimers seldom meet in one.
pub(crate) const STRETCH: i64 = 64;
/// How often a run is looked for whose row is another each time.
const LOOKS: usize = 16;

/// The places in a stretch.
pub(crate) fn places() -> Params<'static> {
    params! { places: (0..STRETCH).collect::<Vec<i64>>() }
}

/// A row, and how many of its runs are taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) due_at: i64,
    pub(crate) run: i64,
    pub(crate) taken: i64,
    /// Whether others go on waiting there.
    pub(crate) cut: bool,
}

impl Place {
    /// At most so many of those that a row stands for.
    pub(crate) fn up_to(most: i64, row: &Row) -> Result<Self, Error> {
        let (due_at, run, there) = (row.int("due_at")?, row.int("run_id")?, row.int("more")? + 1);
        Ok(Self { due_at, run, taken: there.min(most), cut: there > most })
    }

    /// Those that are taken.
    pub(crate) fn ids(self) -> std::ops::Range<i64> {
        self.run..self.run + self.taken
    }
}

/// What a row stands for.
pub(crate) fn stretch(row: &Row) -> Result<std::ops::RangeInclusive<i64>, Error> {
    let first = row.int("run_id")?;
    Ok(first..=first + row.int("more")?)
}

impl Store {
    /// What waits in a lane and is due until an instant, soonest first.
    pub async fn due(&self, lane: &str, until: Timestamp, most: u32) -> Result<Vec<DueRun>, Error> {
        let page = params! { lane: lane, until: until.as_microsecond(), most: most };
        let mut wanted = Vec::new();
        for row in &self.db.rows(&LIST, page).await? {
            // Of those that wait together none has been tried.
            let (attempt_no, exclusive) =
                (row.int("attempt_no")? as u32, row.int("exclusive")? != 0);
            let due_at = timestamp(row.int("due_at")?)?;
            let one = |id| DueRun { run: RunId(id), due_at, attempt_no, exclusive };
            wanted.extend(stretch(row)?.map(one));
        }
        wanted.truncate(most as usize);
        Ok(wanted)
    }

    /// When the next run of a lane is due, after one instant and until another.
    pub async fn next_due(
        &self,
        lane: &str,
        after: Timestamp,
        until: Timestamp,
    ) -> Result<Option<Timestamp>, Error> {
        let stretch =
            params! { lane: lane, after: after.as_microsecond(), until: until.as_microsecond() };
        let rows = self.db.rows(&NEXT, stretch).await?;
        rows.first().map(|row| timestamp(row.int("due_at")?)).transpose()
    }
}

/// Rows of what can be claimed, held still, for so many runs if they are there. `None`: they are in others' hands, who may leave
/// some of a stretch; a run by itself is taken.
pub(crate) async fn lock(
    tx: &mut Tx<'_>,
    batch: &ClaimBatch<'_>,
    after: &Params<'static>,
) -> Result<Option<Vec<Row>>, Error> {
    let page = |most: i64| [params! { lane: batch.lane, most: most }, after.clone()].concat();
    // Looked at before, so that no more rows are locked than so many runs are in.
    let (mut runs, mut needed) = (0, 0);
    for row in tx.rows(&LOOK, page(i64::from(batch.most))).await? {
        if runs < i64::from(batch.most) {
            runs += row.int("more")? + 1;
            needed += 1;
        }
    }
    let rows = match needed {
        0 => Vec::new(),
        rows => tx.rows(&LOCK, page(rows)).await?,
    };
    let may_be_left = runs > needed;
    Ok((!rows.is_empty() || !may_be_left).then_some(rows))
}

/// Deletes the due row of a run, or takes the run out of the stretch it waits in. `false`: it does not wait, or somebody
/// else has it.
pub(crate) async fn take(tx: &mut Tx<'_>, run: RunId) -> Result<bool, Error> {
    for _ in 0..LOOKS {
        let rows = tx.rows(&PLACE, params! { run_id: run.0 }).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let (lane, due_at) = (row.text("lane")?, row.int("due_at")?);
        let at = |run: i64| params! { lane: lane.as_str(), due_at: due_at, run_id: run };
        if tx.execute(&TAKE, at(run.0)).await? == 1 {
            return Ok(true);
        }
        // Only what is claimed waits together. And a row that was in somebody's hand while we waited for it was the run's own:
        // what does not wait has none.
        if row.int("waits")? == 0 || lane.is_empty() {
            return Ok(false);
        }
        let near = [at(run.0), params! { earliest: run.0 - STRETCH + 1 }].concat();
        if let Some(found) = tx.rows(&FIND_STRETCH, near).await?.first() {
            let (first, more) = (found.int("run_id")?, found.int("more")?);
            let whole = [at(first), params! { more: more }].concat();
            if tx.execute(&TAKE_STRETCH, whole).await? == 1 {
                for (first, last) in [(first, run.0 - 1), (run.0 + 1, first + more)] {
                    if first <= last {
                        let rest = [at(first), params! { more: last - first }].concat();
                        tx.execute(&PUT_STRETCH, rest).await?;
                    }
                }
                return Ok(true);
            }
        }
        // Somebody else had the row: the run is theirs, or waits in another by now.
    }
    Err(Error::InUse(run))
}
