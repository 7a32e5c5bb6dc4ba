//! The audit: who did what, to which object, from which address. The transaction that makes a change also writes its
//! audit entry. Each entry contains the hash of the entry before it, so that a later change of the audit is detectable.

pub(crate) mod verify;

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tasuki_core::InvalidInput;

use crate::db::instant::timestamp_from_micros;
use crate::db::sql::{Sql, sql};
use crate::db::{Row, Tx, params};
use crate::{Error, Store};

static LOCK_HEAD: Sql = sql!("audit/lock_head");
static INSERT: Sql = sql!("audit/insert");
static UPDATE_HEAD: Sql = sql!("audit/update_head");
static FIND_HEAD: Sql = sql!("audit/find_head");
static LIST: Sql = sql!("audit/list");

/// Who acts, and from which address. It can be made from a name alone, without an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditActor<'a> {
    /// Name of the user, token or component.
    pub name: &'a str,
    /// The address from which the request came.
    pub address: Option<&'a str>,
}

impl<'a> From<&'a str> for AuditActor<'a> {
    fn from(name: &'a str) -> Self {
        Self { name, address: None }
    }
}

/// A change to be recorded in the audit.
pub(crate) struct AuditAction {
    pub(crate) action: &'static str,
    pub(crate) object: String,
    pub(crate) before: Option<serde_json::Value>,
    pub(crate) after: Option<serde_json::Value>,
}

/// One entry of the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number in the chain, from 1, without gaps.
    pub seq: i64,
    /// When the change was made.
    pub at: Timestamp,
    /// Name of the actor.
    pub actor: String,
    /// The verb of the action, for example `create`.
    pub action: String,
    /// The object that was changed: `run 17`, `job 3`, `settings`.
    pub object: String,
    /// The address from which the request came.
    pub address: Option<String>,
    /// The state of the object before, as JSON.
    pub before: Option<String>,
    /// The state of the object after, as JSON.
    pub after: Option<String>,
    /// The hash of the entry before it.
    pub prev_hash: [u8; 32],
    /// The hash of this entry, including `prev_hash`.
    pub hash: [u8; 32],
}

/// The end of the audit chain. A copy that is kept elsewhere can prove later that no entry up to it was changed or
/// deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditHead {
    /// Number of the last entry; 0 if there is none.
    pub seq: i64,
    /// Hash of the last entry.
    pub hash: [u8; 32],
}

impl AuditHead {
    /// The head of an empty chain.
    pub const START: Self = Self { seq: 0, hash: [0; 32] };
}

impl fmt::Display for AuditHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.seq)?;
        self.hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for AuditHead {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let invalid =
            || InvalidInput::with_value("audit head", text, "a number, a colon and 64 hex digits");
        let (seq, digits) = text.split_once(':').ok_or_else(invalid)?;
        if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        let mut hash = [0; 32];
        for (index, byte) in hash.iter_mut().enumerate() {
            let pair = &digits[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(pair, 16).map_err(|_| invalid())?;
        }
        match seq.parse() {
            Ok(seq) if seq >= 0 => Ok(Self { seq, hash }),
            _ => Err(invalid()),
        }
    }
}

impl AuditEntry {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            seq: row.int("seq")?,
            at: timestamp_from_micros(row.int("at")?)?,
            actor: row.text("actor")?,
            action: row.text("action")?,
            object: row.text("object")?,
            address: row.opt_text("address")?,
            before: row.opt_text("before_state")?,
            after: row.opt_text("after_state")?,
            prev_hash: hash_from_row(row, "prev_hash")?,
            hash: hash_from_row(row, "hash")?,
        })
    }

    /// Computes the hash that the entry must have. Each text is hashed with its length, and a missing text has a
    /// marker of its own, so that two different entries never hash the same bytes.
    pub(crate) fn compute_hash(&self) -> [u8; 32] {
        let mut sum = Sha256::new();
        sum.update(self.prev_hash);
        sum.update(self.seq.to_be_bytes());
        sum.update(self.at.as_microsecond().to_be_bytes());
        let optional = [&self.address, &self.before, &self.after].map(Option::as_deref);
        let required = [&self.actor, &self.action, &self.object].map(|text| Some(text.as_str()));
        for text in required.into_iter().chain(optional) {
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
    /// Reads the end of the chain.
    pub async fn find_audit_head(&self) -> Result<AuditHead, Error> {
        let rows = self.db.query(&FIND_HEAD, params! {}).await?;
        head_from_row(rows.first())
    }

    /// Lists the entries with numbers above `after_seq`, in order, at most `limit` of them.
    pub async fn list_audit_entries_after(
        &self,
        after_seq: i64,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, Error> {
        let rows = self.db.query(&LIST, params! { after: after_seq, limit: limit }).await?;
        rows.iter().map(AuditEntry::from_row).collect()
    }
}

/// Appends an audit entry in the transaction that makes the change. It must be the last write before the commit,
/// because it locks the end of the chain and all other writers of audit entries wait for this lock.
pub(crate) async fn append_audit_entry(
    tx: &mut Tx<'_>,
    actor: AuditActor<'_>,
    action: AuditAction,
) -> Result<(), Error> {
    let rows = tx.query(&LOCK_HEAD, params! {}).await?;
    let head = head_from_row(rows.first())?;
    let clock = rows.first().map(|row| row.int("clock")).transpose()?.unwrap_or_default();
    let mut entry = AuditEntry {
        seq: head.seq + 1,
        at: timestamp_from_micros(clock)?,
        actor: actor.name.to_owned(),
        action: action.action.to_owned(),
        object: action.object,
        address: actor.address.map(str::to_owned),
        before: action.before.map(|json| json.to_string()),
        after: action.after.map(|json| json.to_string()),
        prev_hash: head.hash,
        hash: [0; 32],
    };
    entry.hash = entry.compute_hash();
    let end = params! {
        seq: entry.seq,
        hash: entry.hash.to_vec(),
        prev_hash: entry.prev_hash.to_vec(),
    };
    let content = params! {
        at: clock,
        actor: entry.actor,
        action: entry.action,
        object: entry.object,
        address: entry.address,
        before_state: entry.before,
        after_state: entry.after,
    };
    tx.execute(&INSERT, [end.clone(), content].concat()).await?;
    match tx.execute(&UPDATE_HEAD, end).await? {
        1 => Ok(()),
        _ => Err(Error::broken("the head of the audit chain changed while it was locked")),
    }
}

fn head_from_row(row: Option<&Row>) -> Result<AuditHead, Error> {
    let row = row.ok_or_else(|| Error::broken("the audit chain has no head row"))?;
    Ok(AuditHead { seq: row.int("seq")?, hash: hash_from_row(row, "hash")? })
}

fn hash_from_row(row: &Row, name: &str) -> Result<[u8; 32], Error> {
    let bytes = row.bytes(name)?;
    bytes
        .try_into()
        .map_err(|_| Error::broken(format!("column {name} of the audit is not a hash of 32 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_parsed_and_invalid_text_is_rejected() {
        let head = AuditHead { seq: 7, hash: [0xa5; 32] };
        assert_eq!(head.to_string().parse(), Ok(head));
        let short = head.to_string();
        for wrong in ["", "7", "7:", &short[..60], &short.replace('a', "g"), &format!("-{head}")] {
            assert!(wrong.parse::<AuditHead>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn different_entries_have_different_hashes() {
        let entry =
            |actor: &str, action: &str, address: Option<&str>, before: Option<&str>| AuditEntry {
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
        let entries = [
            entry("ab", "c", None, None),
            entry("a", "bc", None, None),
            entry("ab", "c", Some(""), None),
            entry("ab", "c", None, Some("")),
            entry("ab", "c", Some("x"), None),
            entry("ab", "c", None, Some("x")),
        ];
        let mut hashes: Vec<_> = entries.iter().map(AuditEntry::compute_hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), entries.len());
    }
}
