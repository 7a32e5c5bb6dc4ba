//! T15: a detached worker asks whether it may go on. All that it runs at once: what it is allowed to keep must not be lost
//! to the time that the others take.

use std::time::Duration;

use serde_json::{Value, json};
use tasuki_core::run::transition::Verb;
use tasuki_core::{LeaseToken, RunId};

use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Row, params};
use crate::run::micros;
use crate::run::note;
use crate::{Error, Store, uuid};

static ASKING: Sql = sql!("run/asking", ".sqlite", ".mysql", ".mysql");
static CONFIRM: Sql = sql!("run/confirm", ".sqlite", ".postgres", ".mysql");
static CONFIRMED: Sql = sql!("run/confirmed", ".sqlite", ".postgres", ".mysql");

/// Which way a run goes.
#[derive(Clone, Copy)]
enum Way {
    /// NONE -> CONFIRMING, and how long that may take.
    Asks(Duration),
    /// CONFIRMING -> NONE.
    GoesOn,
}

impl Way {
    fn sql(self) -> &'static Sql {
        match self {
            Self::Asks(_) => &CONFIRM,
            Self::GoesOn => &CONFIRMED,
        }
    }

    fn patience(self) -> i64 {
        match self {
            Self::Asks(patience) => micros(patience),
            Self::GoesOn => 0,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Asks(_) => "asks whether it may go on",
            Self::GoesOn => "may go on",
        }
    }

    /// Whether a run that was found running under its token goes this way.
    fn is_for(self, found: &Row) -> Result<bool, Error> {
        Ok(match self {
            Self::Asks(_) => found.int("unasked")? == 1 && found.opt_int("lease_until")?.is_some(),
            Self::GoesOn => found.int("in_time")? == 1,
        })
    }
}

impl Store {
    /// The worker begins to ask about these runs, each under its token: NONE -> CONFIRMING, with a deadline that never
    /// outlives the lease. Returns those that it was not asking about before, and that are still its own.
    pub async fn confirm(
        &self,
        runs: &[(RunId, LeaseToken)],
        patience: Duration,
    ) -> Result<Vec<RunId>, Error> {
        self.continuation(runs, Way::Asks(patience)).await
    }

    /// The worker was told to go on with these: CONFIRMING -> NONE, before the deadline. Returns those that it may go on
    /// with; asked again after a lost answer, the same.
    pub async fn confirmed(&self, runs: &[(RunId, LeaseToken)]) -> Result<Vec<RunId>, Error> {
        self.continuation(runs, Way::GoesOn).await
    }

    async fn continuation(
        &self,
        runs: &[(RunId, LeaseToken)],
        way: Way,
    ) -> Result<Vec<RunId>, Error> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        // In one order, whoever else moves the same runs.
        let mut runs = runs.to_vec();
        runs.sort_unstable();
        match self.dialect() {
            Dialect::Postgres => self.continue_in_one_trip(&runs, way).await,
            Dialect::Sqlite | Dialect::MySql => self.continue_as_a_set(&runs, way).await,
        }
    }

    async fn continue_in_one_trip(
        &self,
        runs: &[(RunId, LeaseToken)],
        way: Way,
    ) -> Result<Vec<RunId>, Error> {
        let asked = params! {
            ids: runs.iter().map(|(run, _)| run.0).collect::<Vec<_>>(),
            tokens: runs.iter().map(|(_, token)| uuid(token.as_bytes())).collect::<Vec<_>>(),
            hashes: runs.iter().map(|(_, token)| Some(note::hash(token))).collect::<Vec<_>>(),
            patience: way.patience(),
            reason: way.reason(),
        };
        let rows = self.db.write(way.sql(), asked).await?;
        rows.iter().map(|row| row.int("id").map(RunId)).collect()
    }

    /// A few statements for any number of runs. Which of them an update moved is not told: they are looked at, held still,
    /// before.
    async fn continue_as_a_set(
        &self,
        runs: &[(RunId, LeaseToken)],
        way: Way,
    ) -> Result<Vec<RunId>, Error> {
        let hex = |token: LeaseToken| uuid(token.as_bytes()).simple().to_string().to_uppercase();
        let all = runs.iter().map(|(run, token)| json!([run.0, hex(*token)])).collect();
        let mut tx = self.db.begin().await?;
        let found = tx.rows(&ASKING, params! { runs: Value::Array(all).to_string() }).await?;
        let (mut moved, mut marks, mut told) = (Vec::new(), Vec::new(), Vec::new());
        for row in &found {
            if !way.is_for(row)? {
                continue;
            }
            let run = row.int("id")?;
            let token = LeaseToken::from_bytes(row.uuid("lease_token")?.into_bytes());
            moved.push(RunId(run));
            marks.push(json!([run, hex(token), row.opt_int("lease_until")?]));
            told.push(json!([run, row.int("attempt_no")?, note::hash(&token)]));
        }
        if moved.is_empty() {
            tx.rollback().await?;
            return Ok(moved);
        }
        note::add_many(&mut tx, Verb::Confirm, "worker", way.reason(), told).await?;
        let marks = params! {
            runs: Value::Array(marks).to_string(),
            patience: way.patience(),
        };
        if tx.execute(way.sql(), marks).await? != moved.len() as u64 {
            return Err(Error::broken("a run that was held still has moved"));
        }
        tx.commit().await?;
        Ok(moved)
    }
}
