//! Notes: the rare moves of a run, told in the transaction that makes them.

use sha2::{Digest as _, Sha256};
use tasuki_core::run::transition::Verb;
use tasuki_core::{Epoch, LeaseToken, RunId};

use crate::Error;
use crate::db::{Tx, params};
use crate::sql::{Sql, sql};

static ADD: Sql = sql!("note/add");

pub(crate) struct Note<'a> {
    pub(crate) run: RunId,
    pub(crate) attempt_no: u32,
    pub(crate) verb: Verb,
    pub(crate) actor: &'a str,
    pub(crate) reason: Option<&'a str>,
    pub(crate) epoch: Option<Epoch>,
    pub(crate) token: Option<LeaseToken>,
}

pub(crate) async fn add(tx: &mut Tx, note: Note<'_>) -> Result<(), Error> {
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

/// Enough of a token's hash to compare two notes, and not enough to be the token.
pub(crate) fn hash(token: &LeaseToken) -> String {
    let digest = Sha256::digest(token.as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
