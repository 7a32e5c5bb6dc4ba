//! Notes: the rare moves of a run, told in the transaction that makes them.

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tasuki_core::run::transition::Verb;
use tasuki_core::{Epoch, LeaseToken, RunId};

use crate::db::sql::{Sql, sql};
use crate::db::{Tx, params};
use crate::run::timestamp;
use crate::{Error, Store};

static ADD: Sql = sql!("note/add");
static ADD_MANY: Sql = sql!("note/add_many", ".sqlite", ".mysql", ".mysql");
static OF_RUN: Sql = sql!("note/of_run");

/// A rare move of a run, as it was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunNote {
    /// In which attempt; 0 before the first.
    pub attempt_no: u32,
    /// What was done.
    pub verb: Verb,
    /// By whom.
    pub actor: String,
    /// Why.
    pub reason: Option<String>,
    /// In which term, if a leader did it.
    pub epoch: Option<Epoch>,
    /// Under which lease: notes of one lease have the same.
    pub token_hash: Option<String>,
    /// When.
    pub at: Timestamp,
}

impl Store {
    /// The rare moves of a run, in order.
    pub async fn notes(&self, run: RunId) -> Result<Vec<RunNote>, Error> {
        let rows = self.db.rows(&OF_RUN, params! { run_id: run.0 }).await?;
        rows.iter()
            .map(|row| {
                Ok(RunNote {
                    attempt_no: row.int("attempt_no")? as u32,
                    verb: row.text("verb")?.parse()?,
                    actor: row.text("actor")?,
                    reason: row.opt_text("reason")?,
                    epoch: row.opt_int("epoch")?.map(Epoch),
                    token_hash: row.opt_text("token_hash")?,
                    at: timestamp(row.int("at")?)?,
                })
            })
            .collect()
    }
}

pub(crate) struct Note<'a> {
    pub(crate) run: RunId,
    pub(crate) attempt_no: u32,
    pub(crate) verb: Verb,
    pub(crate) actor: &'a str,
    pub(crate) reason: Option<&'a str>,
    pub(crate) epoch: Option<Epoch>,
    pub(crate) token: Option<LeaseToken>,
}

pub(crate) async fn add(tx: &mut Tx<'_>, note: Note<'_>) -> Result<(), Error> {
    let row = params! {
        run_id: note.run.0,
        attempt_no: note.attempt_no,
        verb: note.verb.as_str(),
        actor: note.actor,
        reason: note.reason.map(str::to_owned),
        epoch: note.epoch.map(|epoch| epoch.0),
        token_hash: note.token.map(|token| hash(&token)),
    };
    tx.execute(&ADD, row).await.map(drop)
}

/// Tells a move that several runs made alike: run, attempt and the hash of its token are a list for each. Not for
/// PostgreSQL, which tells it in the statement that moves them.
pub(crate) async fn add_many(
    tx: &mut Tx<'_>,
    verb: Verb,
    actor: &str,
    reason: &str,
    runs: Vec<serde_json::Value>,
) -> Result<(), Error> {
    let rows = params! {
        verb: verb.as_str(),
        actor: actor,
        reason: reason,
        runs: serde_json::Value::Array(runs).to_string(),
    };
    tx.execute(&ADD_MANY, rows).await.map(drop)
}

/// Enough of a token's hash to compare two notes, and not enough to be the token.
pub(crate) fn hash(token: &LeaseToken) -> String {
    let digest = Sha256::digest(token.as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
