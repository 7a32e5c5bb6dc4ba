//! Due times of lanes: when the first run of each of several lanes is due. Workers that claim from several lanes read them
//! with one statement.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tasuki_core::RunId;

use crate::db::instant::{duration_to_micros, timestamp_from_micros};
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Params, params};
use crate::{Error, Store};

static LIST_LANE_DUE_TIMES: Sql = sql!("due/list_lane_due_times", ".sqlite", ".postgres", ".mysql");

/// A position in a lane; the search for the first run starts after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LanePosition<'a> {
    /// Name of the lane.
    pub lane: &'a str,
    /// Only runs that are due at this instant or later. MySQL and SQLite use only this value.
    pub due_at: Timestamp,
    /// Of the runs that are due at exactly `due_at`, only those with a higher id.
    pub run: RunId,
}

impl<'a> LanePosition<'a> {
    /// The position before the first run of a lane.
    pub fn start_of(lane: &'a str) -> Self {
        Self { lane, due_at: Timestamp::MIN, run: RunId(0) }
    }
}

/// When the first run of each lane is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneDueTimes {
    /// Current time of the database.
    pub clock: Timestamp,
    /// For each lane, in the order of the request, when its first run is due; `None` if no run waits there up to the
    /// horizon. The run may not be claimable: it may wait for a hold, or another transaction may be taking it.
    pub due_at: Vec<Option<Timestamp>>,
}

impl Store {
    /// Finds when the first run of each lane is due, up to `horizon` from now. This is one cheap statement for any
    /// number of lanes.
    pub async fn find_lane_due_times(
        &self,
        positions: &[LanePosition<'_>],
        horizon: Duration,
    ) -> Result<LaneDueTimes, Error> {
        let mut values = match self.dialect() {
            Dialect::Postgres => list_params(positions),
            Dialect::Sqlite | Dialect::MySql => {
                params! { positions: positions_json(positions).to_string() }
            }
        };
        values.push(("horizon", duration_to_micros(horizon).into()));
        let rows = self.db.query(&LIST_LANE_DUE_TIMES, values).await?;
        let mut due_times =
            LaneDueTimes { clock: Timestamp::UNIX_EPOCH, due_at: vec![None; positions.len()] };
        for row in &rows {
            due_times.clock = timestamp_from_micros(row.int("clock")?)?;
            let head = due_times.due_at.get_mut(row.int("lane_index")? as usize);
            let head = head.ok_or_else(|| {
                Error::broken("the database returned a lane that was not requested")
            })?;
            *head = row.opt_int("due_at")?.map(timestamp_from_micros).transpose()?;
        }
        Ok(due_times)
    }
}

/// Parameters for PostgreSQL: one list for each column.
fn list_params(positions: &[LanePosition<'_>]) -> Params<'static> {
    params! {
        lanes: positions.iter().map(|position| Some(position.lane.to_owned())).collect::<Vec<_>>(),
        after_ats: positions.iter().map(|position| position.due_at.as_microsecond()).collect::<Vec<_>>(),
        after_runs: positions.iter().map(|position| position.run.0).collect::<Vec<_>>(),
    }
}

/// Parameter for MySQL and SQLite: a JSON list of lanes and instants.
fn positions_json(positions: &[LanePosition<'_>]) -> Value {
    positions
        .iter()
        .map(|position| json!([position.lane, position.due_at.as_microsecond()]))
        .collect()
}
