//! A look at several lanes at once, for whoever claims from all of them.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tasuki_core::RunId;

use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Params, params};
use crate::run::{micros, timestamp};
use crate::{Error, Store};

static FIRSTS: Sql = sql!("due/firsts", ".sqlite", ".postgres", ".mysql");

/// A lane, and the place in it behind which one looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LanePlace<'a> {
    /// Which lane.
    pub lane: &'a str,
    /// Only what is due then or later; MySQL and SQLite go by this alone.
    pub at: Timestamp,
    /// Of what is due at that very instant only later runs.
    pub run: RunId,
}

impl<'a> LanePlace<'a> {
    /// Before everything in a lane.
    pub fn start_of(lane: &'a str) -> Self {
        Self { lane, at: Timestamp::MIN, run: RunId(0) }
    }
}

/// What a look at lanes found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firsts {
    /// The database's clock.
    pub clock: Timestamp,
    /// Of each lane, in the order they were asked for, when its first is due. Whether that one can be claimed is
    /// not said: it may wait for another run, or be in somebody's hands.
    pub due: Vec<Option<Timestamp>>,
}

impl Store {
    /// When the first of each lane is due, as far ahead as asked. One cheap statement for any number of lanes.
    pub async fn firsts(&self, lanes: &[LanePlace<'_>], ahead: Duration) -> Result<Firsts, Error> {
        let mut asked = match self.dialect() {
            Dialect::Postgres => lists(lanes),
            Dialect::Sqlite | Dialect::MySql => params! { places: places(lanes).to_string() },
        };
        asked.push(("ahead", micros(ahead).into()));
        let rows = self.db.rows(&FIRSTS, asked).await?;
        let mut firsts = Firsts { clock: Timestamp::UNIX_EPOCH, due: vec![None; lanes.len()] };
        for row in &rows {
            firsts.clock = timestamp(row.int("clock")?)?;
            let place = firsts.due.get_mut(row.int("place")? as usize);
            let place = place.ok_or_else(|| Error::broken("a lane that nobody asked for"))?;
            *place = row.opt_int("due_at")?.map(timestamp).transpose()?;
        }
        Ok(firsts)
    }
}

fn lists(lanes: &[LanePlace<'_>]) -> Params<'static> {
    params! {
        lanes: lanes.iter().map(|one| Some(one.lane.to_owned())).collect::<Vec<_>>(),
        after_ats: lanes.iter().map(|one| one.at.as_microsecond()).collect::<Vec<_>>(),
        after_runs: lanes.iter().map(|one| one.run.0).collect::<Vec<_>>(),
    }
}

fn places(lanes: &[LanePlace<'_>]) -> Value {
    lanes.iter().map(|one| json!([one.lane, one.at.as_microsecond()])).collect()
}
