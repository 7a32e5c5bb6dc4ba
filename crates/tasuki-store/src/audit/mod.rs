//! The audit: who did what, on what, from where. Told in the transaction that does it, and each row
//! holds the hash of the one before, so that nobody can change the past and leave no trace.

pub(crate) mod verify;

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tasuki_core::Invalid;

use crate::db::sql::{Sql, sql};
use crate::db::{Row, Tx, params};
use crate::run::timestamp;
use crate::{Error, Store};

static LOCK: Sql = sql!("audit/lock");
static APPEND: Sql = sql!("audit/append");
static ADVANCE: Sql = sql!("audit/advance");
static HEAD: Sql = sql!("audit/head");
static LIST: Sql = sql!("audit/list");

/// Who acts, and from where. A bare name acts from nowhere in particular.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Actor<'a> {
    /// What people call them.
    pub name: &'a str,
    /// The address the request came from.
    pub address: Option<&'a str>,
}

impl<'a> From<&'a str> for Actor<'a> {
    fn from(name: &'a str) -> Self {
        Self { name, address: None }
    }
}

/// What was done, to be told.
pub(crate) struct Act {
    pub(crate) action: &'static str,
    pub(crate) object: String,
    pub(crate) before: Option<serde_json::Value>,
    pub(crate) after: Option<serde_json::Value>,
}

/// One thing that was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Its place in the chain, from 1, without gaps.
    pub seq: i64,
    /// When.
    pub at: Timestamp,
    /// By whom.
    pub actor: String,
    /// Which verb.
    pub action: String,
    /// On what: `run 17`, `job 3`, `settings`.
    pub object: String,
    /// From where.
    pub address: Option<String>,
    /// What it was before, as JSON.
    pub before: Option<String>,
    /// What it was after, as JSON.
    pub after: Option<String>,
    /// The hash of the row before.
    pub prev_hash: [u8; 32],
    /// The hash of that and of everything above.
    pub hash: [u8; 32],
}

/// The end of the chain. Whoever keeps one elsewhere can later prove that nothing before it was
/// changed or cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditHead {
    /// The last row.
    pub seq: i64,
    /// Its hash.
    pub hash: [u8; 32],
}

impl AuditHead {
    /// Where every chain begins.
    pub const START: Self = Self { seq: 0, hash: [0; 32] };
}

impl fmt::Display for AuditHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.seq)?;
        self.hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for AuditHead {
    type Err = Invalid;

    fn from_str(typed: &str) -> Result<Self, Invalid> {
        let refused = || Invalid::typed("audit head", typed, "a number, a colon and 64 hex digits");
        let (seq, digits) = typed.split_once(':').ok_or_else(refused)?;
        if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(refused());
        }
        let mut hash = [0; 32];
        for (index, byte) in hash.iter_mut().enumerate() {
            let pair = &digits[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(pair, 16).map_err(|_| refused())?;
        }
        match seq.parse() {
            Ok(seq) if seq >= 0 => Ok(Self { seq, hash }),
            _ => Err(refused()),
        }
    }
}

impl AuditRow {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            seq: row.int("seq")?,
            at: timestamp(row.int("at")?)?,
            actor: row.text("actor")?,
            action: row.text("action")?,
            object: row.text("object")?,
            address: row.opt_text("address")?,
            before: row.opt_text("before_state")?,
            after: row.opt_text("after_state")?,
            prev_hash: hash_in(row, "prev_hash")?,
            hash: hash_in(row, "hash")?,
        })
    }

    /// What its hash must be. Every text goes in with its length and every absence as such, so that
    /// no two rows are the same bytes.
    pub(crate) fn right_hash(&self) -> [u8; 32] {
        let mut sum = Sha256::new();
        sum.update(self.prev_hash);
        sum.update(self.seq.to_be_bytes());
        sum.update(self.at.as_microsecond().to_be_bytes());
        let optional = [&self.address, &self.before, &self.after].map(Option::as_deref);
        let given = [&self.actor, &self.action, &self.object].map(|text| Some(text.as_str()));
        for text in given.into_iter().chain(optional) {
            match text {
                None => sum.update([0]),
                Some(text) => {
                    sum.update([1]);
                    sum.update((text.len() as u64).to_be_bytes());
                    sum.update(text);
                }
            }
        }
        sum.finalize().into()
    }
}

impl Store {
    /// The end of the chain.
    pub async fn audit_head(&self) -> Result<AuditHead, Error> {
        let rows = self.db.rows(&HEAD, params! {}).await?;
        head_in(rows.first())
    }

    /// What was done after this row of the chain, in order, at most so many.
    pub async fn audit_list(&self, after_seq: i64, most: u32) -> Result<Vec<AuditRow>, Error> {
        let rows = self.db.rows(&LIST, params! { after: after_seq, most: most }).await?;
        rows.iter().map(AuditRow::from_row).collect()
    }
}

/// Tells what this transaction does. The last write before the commit: until then everybody else who
/// has something to tell waits.
pub(crate) async fn append(tx: &mut Tx<'_>, by: Actor<'_>, act: Act) -> Result<(), Error> {
    let rows = tx.rows(&LOCK, params! {}).await?;
    let head = head_in(rows.first())?;
    let clock = rows.first().map(|row| row.int("clock")).transpose()?.unwrap_or_default();
    let mut row = AuditRow {
        seq: head.seq + 1,
        at: timestamp(clock)?,
        actor: by.name.to_owned(),
        action: act.action.to_owned(),
        object: act.object,
        address: by.address.map(str::to_owned),
        before: act.before.map(|json| json.to_string()),
        after: act.after.map(|json| json.to_string()),
        prev_hash: head.hash,
        hash: [0; 32],
    };
    row.hash = row.right_hash();
    let end = params! {
        seq: row.seq,
        hash: row.hash.to_vec(),
        prev_hash: row.prev_hash.to_vec(),
    };
    let told = params! {
        at: clock,
        actor: row.actor,
        action: row.action,
        object: row.object,
        address: row.address,
        before_state: row.before,
        after_state: row.after,
    };
    tx.execute(&APPEND, [end.clone(), told].concat()).await?;
    match tx.execute(&ADVANCE, end).await? {
        1 => Ok(()),
        _ => Err(Error::broken("the end of the audit moved while it was locked")),
    }
}

fn head_in(row: Option<&Row>) -> Result<AuditHead, Error> {
    let row = row.ok_or_else(|| Error::broken("the audit has no end"))?;
    Ok(AuditHead { seq: row.int("seq")?, hash: hash_in(row, "hash")? })
}

fn hash_in(row: &Row, name: &str) -> Result<[u8; 32], Error> {
    let bytes = row.bytes(name)?;
    bytes.try_into().map_err(|_| Error::broken(format!("{name} of the audit is no hash")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_back_and_a_wrong_one_is_refused() {
        let head = AuditHead { seq: 7, hash: [0xa5; 32] };
        assert_eq!(head.to_string().parse(), Ok(head));
        let short = head.to_string();
        for wrong in ["", "7", "7:", &short[..60], &short.replace('a', "g"), &format!("-{head}")] {
            assert!(wrong.parse::<AuditHead>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_two_rows_are_the_same_bytes() {
        let row =
            |actor: &str, action: &str, address: Option<&str>, before: Option<&str>| AuditRow {
                seq: 1,
                at: Timestamp::UNIX_EPOCH,
                actor: actor.to_owned(),
                action: action.to_owned(),
                object: "o".to_owned(),
                address: address.map(str::to_owned),
                before: before.map(str::to_owned),
                after: None,
                prev_hash: [0; 32],
                hash: [0; 32],
            };
        let rows = [
            row("ab", "c", None, None),
            row("a", "bc", None, None),
            row("ab", "c", Some(""), None),
            row("ab", "c", None, Some("")),
            row("ab", "c", Some("x"), None),
            row("ab", "c", None, Some("x")),
        ];
        let mut hashes: Vec<_> = rows.iter().map(AuditRow::right_hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), rows.len());
    }
}
