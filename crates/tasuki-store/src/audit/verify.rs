//! Whether the audit is what it was.

use std::fmt;

use crate::{AuditHead, AuditRow, Error, Store};

/// How many rows are looked at in one go.
const PAGE: u32 = 500;

/// What a walk along the whole chain found.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verified {
    /// Every row follows the one before, up to this end.
    Whole(AuditHead),
    /// It does not hold. What comes after this row was not looked at.
    Broken {
        /// The first row that is wrong.
        seq: i64,
        /// What is wrong with it.
        flaw: Flaw,
    },
}

/// What is wrong with a row of the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// It is not there, or not in its place.
    Missing,
    /// It does not hold the hash of the one before: that one was hashed anew, or this one moved here.
    Unlinked,
    /// What it says is not what was hashed.
    Edited,
    /// The chain ends before it.
    Cut,
    /// It is not the row whose hash was saved: everything up to it was written anew.
    Rewritten,
    /// The chain goes on to here, but the head stands elsewhere or has another hash.
    Head,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "is missing or out of its place",
            Self::Unlinked => "does not follow the row before it",
            Self::Edited => "was edited",
            Self::Cut => "was cut off with everything after it",
            Self::Rewritten => "is not the row that was saved",
            Self::Head => "is the last row, but the head says otherwise",
        })
    }
}

impl Store {
    /// Walks the chain from its beginning, in bounded pages, while others append to it. With a head
    /// that was saved earlier it also finds a chain that was cut or written anew as a whole.
    pub async fn audit_verify(&self, saved: Option<AuditHead>) -> Result<Verified, Error> {
        let mut end = AuditHead::START;
        // From the very beginning: a row may have been put before the first.
        let mut page = self.audit_list(i64::MIN, PAGE).await?;
        loop {
            for row in &page {
                if let Some(flaw) = flaw(end, row) {
                    let seq = if flaw == Flaw::Missing { end.seq + 1 } else { row.seq };
                    return Ok(Verified::Broken { seq, flaw });
                }
                end = AuditHead { seq: row.seq, hash: row.hash };
                if saved.is_some_and(|saved| saved.seq == end.seq && saved != end) {
                    return Ok(Verified::Broken { seq: end.seq, flaw: Flaw::Rewritten });
                }
            }
            page = self.audit_list(end.seq, PAGE).await?;
            if page.is_empty() {
                let head = self.audit_head().await?;
                // Rows and head are committed together: if the head is ahead, its rows are there now.
                page = match head.seq > end.seq {
                    true => self.audit_list(end.seq, PAGE).await?,
                    false => Vec::new(),
                };
                if page.is_empty() {
                    return Ok(ends(end, head, saved));
                }
            }
        }
    }
}

fn flaw(end: AuditHead, row: &AuditRow) -> Option<Flaw> {
    match row {
        row if row.seq != end.seq + 1 => Some(Flaw::Missing),
        row if row.prev_hash != end.hash => Some(Flaw::Unlinked),
        row if row.hash != row.right_hash() => Some(Flaw::Edited),
        _ => None,
    }
}

/// Whether the chain ends where it should.
fn ends(end: AuditHead, head: AuditHead, saved: Option<AuditHead>) -> Verified {
    let expected = saved.map_or(head.seq, |saved| saved.seq.max(head.seq));
    match (end, head) {
        (end, _) if expected > end.seq => Verified::Broken { seq: end.seq + 1, flaw: Flaw::Cut },
        (end, head) if end != head => Verified::Broken { seq: end.seq, flaw: Flaw::Head },
        (end, _) => Verified::Whole(end),
    }
}
