//! Records of rare transitions of a run (table `tasuki_run_note`), written in the transaction of the transition.
//!
//! Frequent transitions (assign, claim, start, renew, finish) leave no record: the run and its attempts show them.

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tasuki_core::run::transition::RunVerb;
use tasuki_core::{Epoch, LeaseToken, RunId};

use crate::db::instant::timestamp_from_micros;
use crate::db::sql::{Sql, sql};
use crate::db::{Tx, params};
use crate::{Error, Store};

static INSERT: Sql = sql!("transition_record/insert");
static INSERT_MANY: Sql = sql!("transition_record/insert_many", ".sqlite", ".mysql", ".mysql");
static LIST_OF_RUN: Sql = sql!("transition_record/list_of_run");

/// A stored record of a rare transition: who did what to a run, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransitionRecord {
    /// Number of the attempt during which it happened; 0 before the first attempt.
    pub attempt_no: u32,
    /// Verb of the transition.
    pub verb: RunVerb,
    /// Name of the actor.
    pub actor: String,
    /// Reason, for humans.
    pub reason: Option<String>,
    /// Epoch of the leader's term, if a leader made the transition.
    pub epoch: Option<Epoch>,
    /// Beginning of the hash of the lease token. Records with the same hash belong to the same lease.
    pub token_hash: Option<String>,
    /// When the transition was made.
    pub at: Timestamp,
}

impl Store {
    /// Lists the recorded transitions of a run, in order.
    pub async fn list_rare_transitions(&self, run: RunId) -> Result<Vec<TransitionRecord>, Error> {
        let rows = self.db.query(&LIST_OF_RUN, params! { run_id: run.0 }).await?;
        rows.iter()
            .map(|row| {
                Ok(TransitionRecord {
                    attempt_no: row.int("attempt_no")? as u32,
                    verb: row.text("verb")?.parse()?,
                    actor: row.text("actor")?,
                    reason: row.opt_text("reason")?,
                    epoch: row.opt_int("epoch")?.map(Epoch),
                    token_hash: row.opt_text("token_hash")?,
                    at: timestamp_from_micros(row.int("at")?)?,
                })
            })
            .collect()
    }
}

/// Values of a new transition record; the database adds the instant.
pub(crate) struct NewTransitionRecord<'a> {
    pub(crate) run: RunId,
    pub(crate) attempt_no: u32,
    pub(crate) verb: RunVerb,
    pub(crate) actor: &'a str,
    pub(crate) reason: Option<&'a str>,
    pub(crate) epoch: Option<Epoch>,
    pub(crate) token: Option<LeaseToken>,
}

/// Inserts one transition record.
pub(crate) async fn insert_transition_record(
    tx: &mut Tx<'_>,
    record: NewTransitionRecord<'_>,
) -> Result<(), Error> {
    let row = params! {
        run_id: record.run.0,
        attempt_no: record.attempt_no,
        verb: record.verb.as_str(),
        actor: record.actor,
        reason: record.reason.map(str::to_owned),
        epoch: record.epoch.map(|epoch| epoch.0),
        token_hash: record.token.map(|token| short_lease_token_hash(&token)),
    };
    tx.execute(&INSERT, row).await.map(drop)
}

/// Inserts the records of the same transition of several runs. `runs` has a JSON list for each run: id, attempt
/// number, hash of the token. For MySQL and SQLite only: on PostgreSQL the statement that makes the transition also
/// inserts the records.
pub(crate) async fn insert_transition_records(
    tx: &mut Tx<'_>,
    verb: RunVerb,
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
    tx.execute(&INSERT_MANY, rows).await.map(drop)
}

/// First 16 hexadecimal digits of a token's SHA-256: enough to compare two records, too few to be the token.
pub(crate) fn short_lease_token_hash(token: &LeaseToken) -> String {
    let digest = Sha256::digest(token.as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
