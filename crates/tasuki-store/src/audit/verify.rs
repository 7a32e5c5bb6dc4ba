//! Verification of the audit chain: finds entries that were edited, moved, inserted or deleted.

use std::fmt;

use crate::{AuditEntry, AuditHead, Error, Store};

/// How many entries are read with one query.
const PAGE_SIZE: u32 = 500;

/// The result of [`Store::verify_audit`].
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditVerification {
    /// Every entry follows the one before it, up to this end of the chain.
    Intact(AuditHead),
    /// The chain is broken. The entries after this one were not checked.
    Broken {
        /// Number of the first entry that is wrong.
        seq: i64,
        /// What is wrong with it.
        error: ChainError,
    },
}

/// What is wrong with an entry of the audit chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainError {
    /// The entry is missing or out of order.
    Missing,
    /// The entry does not contain the hash of the one before it: that one was hashed again, or this one was moved here.
    Unlinked,
    /// The content of the entry does not match its hash.
    Edited,
    /// The chain ends before this entry, although it should contain it.
    Truncated,
    /// The entry has another hash than the saved head: the chain up to it was written again.
    Rewritten,
    /// The entry is the last one, but the stored head has another number or another hash.
    HeadMismatch,
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "is missing or out of order",
            Self::Unlinked => "does not follow the entry before it",
            Self::Edited => "was edited",
            Self::Truncated => "was deleted with everything after it",
            Self::Rewritten => "differs from the saved head",
            Self::HeadMismatch => "is the last entry, but the stored head differs from it",
        })
    }
}

impl Store {
    /// Verifies the whole chain from its beginning, page by page. Other transactions may append meanwhile. With a
    /// head that was saved earlier it also detects a chain that was truncated or written again as a whole.
    pub async fn verify_audit(&self, saved: Option<AuditHead>) -> Result<AuditVerification, Error> {
        let mut end = AuditHead::START;
        // Not from 1: somebody may have inserted an entry before the first one.
        let mut page = self.list_audit_entries_after(i64::MIN, PAGE_SIZE).await?;
        loop {
            for entry in &page {
                if let Some(error) = find_chain_error(end, entry) {
                    let is_missing = error == ChainError::Missing;
                    let seq = if is_missing { end.seq + 1 } else { entry.seq };
                    return Ok(AuditVerification::Broken { seq, error });
                }
                end = AuditHead { seq: entry.seq, hash: entry.hash };
                if saved.is_some_and(|saved| saved.seq == end.seq && saved != end) {
                    return Ok(AuditVerification::Broken {
                        seq: end.seq,
                        error: ChainError::Rewritten,
                    });
                }
            }
            page = self.list_audit_entries_after(end.seq, PAGE_SIZE).await?;
            if page.is_empty() {
                let head = self.find_audit_head().await?;
                // Entries and head are committed together: if the head is ahead, its entries are visible now.
                page = match head.seq > end.seq {
                    true => self.list_audit_entries_after(end.seq, PAGE_SIZE).await?,
                    false => Vec::new(),
                };
                if page.is_empty() {
                    return Ok(check_end(end, head, saved));
                }
            }
        }
    }
}

/// Checks one entry against the end of the chain before it.
fn find_chain_error(end: AuditHead, entry: &AuditEntry) -> Option<ChainError> {
    match entry {
        entry if entry.seq != end.seq + 1 => Some(ChainError::Missing),
        entry if entry.prev_hash != end.hash => Some(ChainError::Unlinked),
        entry if entry.hash != entry.compute_hash() => Some(ChainError::Edited),
        _ => None,
    }
}

/// Checks that the chain ends at the stored head, and not before the saved head.
fn check_end(end: AuditHead, head: AuditHead, saved: Option<AuditHead>) -> AuditVerification {
    let expected = saved.map_or(head.seq, |saved| saved.seq.max(head.seq));
    match (end, head) {
        (end, _) if expected > end.seq => {
            AuditVerification::Broken { seq: end.seq + 1, error: ChainError::Truncated }
        }
        (end, head) if end != head => {
            AuditVerification::Broken { seq: end.seq, error: ChainError::HeadMismatch }
        }
        (end, _) => AuditVerification::Intact(end),
    }
}
