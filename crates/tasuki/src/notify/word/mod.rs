//! Word for those whom something concerns: the worker that carries what is to be canceled, the one that was put aside,
//! all of them where settings changed.
//!
//! Whoever acts leaves word here and goes on; the node of this process calls those concerned, and where none calls
//! others nothing is kept. All that concerns a worker while it is being called waits and travels together, so there is
//! never more than one call to each, and one that does not answer keeps nobody else waiting. Like every call it is a
//! hint: who does not hear it finds the same with its next heartbeat.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::{StreamExt as _, stream};
use tasuki_core::{RunId, WorkerId};
use tasuki_store::{Error, Store};
use tokio::sync::Notify;

use crate::node::coordination::peers::{Answer, CancelOrder, Peer, Peers, Silent};
use crate::node::within;

/// How many are called at once.
const AT_ONCE: usize = 16;
/// More than this who did not answer are forgotten all at once.
const MOST_SILENT: usize = 1_000;
/// How many runs one call names. Whoever hears of one cancel looks at all it carries.
const NAMED: usize = 100;

/// What is still to be told, and to whom.
#[derive(Debug, Default)]
pub(crate) struct Words {
    kept: Mutex<Kept>,
    left: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    /// Whether somebody sends what is left here.
    sent: bool,
    /// Everybody is to hear of settings of this version.
    settings: Option<i64>,
    waiting: BTreeMap<WorkerId, Word>,
    /// Who is being called just now.
    called: BTreeSet<WorkerId>,
    /// Who did not answer last time: called when nobody else is left, since each takes up a line until it is given up.
    silent: BTreeSet<WorkerId>,
}

/// What concerns one worker.
#[derive(Debug, Default)]
struct Word {
    canceled: BTreeSet<RunId>,
    aside: bool,
    settings: Option<i64>,
}

/// What is to be sent next.
enum Next {
    Everybody(i64),
    One(WorkerId, Word),
}

impl Words {
    /// A worker carries a run that was asked to stop.
    pub(crate) fn canceled(&self, worker: WorkerId, run: RunId) {
        self.leave(worker, |word| {
            if word.canceled.len() < NAMED {
                word.canceled.insert(run);
            }
        });
    }

    /// A worker was drained or cut off.
    pub(crate) fn aside(&self, worker: WorkerId) {
        self.leave(worker, |word| word.aside = true);
    }

    /// There are settings of this version.
    pub(crate) fn settings(&self, version: i64) {
        let mut kept = self.kept();
        if kept.sent {
            kept.settings = kept.settings.max(Some(version));
            self.left.notify_one();
        }
    }

    fn leave(&self, worker: WorkerId, add: impl FnOnce(&mut Word)) {
        let mut kept = self.kept();
        if kept.sent {
            add(kept.waiting.entry(worker).or_default());
            self.left.notify_one();
        }
    }

    /// Sends what is left here for as long as it is polled.
    pub(crate) async fn send(&self, store: &Store, peers: &dyn Peers) {
        self.kept().sent = true;
        let _closes = Closes(self);
        let words = stream::unfold((), |()| async { Some((self.next().await, ())) });
        let each = words.for_each_concurrent(AT_ONCE, async |next| {
            let told = match next {
                Next::Everybody(version) => self.spread(version, store).await,
                Next::One(worker, word) => {
                    let heard = tell(worker, &word, store, peers).await;
                    self.kept().told(worker, !matches!(heard, Ok(false)));
                    // More may wait for it.
                    self.left.notify_one();
                    heard.map(drop)
                }
            };
            if let Err(error) = told {
                tracing::debug!(%error, "others were not told; they will look by themselves");
            }
        });
        each.await;
    }

    async fn next(&self) -> Next {
        loop {
            if let Some(next) = self.kept().next() {
                return next;
            }
            self.left.notified().await;
        }
    }

    /// Leaves word of settings for everybody who can be called.
    async fn spread(&self, version: i64, store: &Store) -> Result<(), Error> {
        for worker in within(store.workers()).await? {
            if worker.is_attached() && worker.address.is_some() {
                self.leave(worker.id, |word| word.settings = word.settings.max(Some(version)));
            }
        }
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn next(&mut self) -> Option<Next> {
        if let Some(version) = self.settings.take() {
            return Some(Next::Everybody(version));
        }
        let mut free = self.waiting.keys().filter(|worker| !self.called.contains(worker));
        let first = free.clone().find(|worker| !self.silent.contains(worker));
        let free = first.or_else(|| free.next()).copied()?;
        let word = self.waiting.remove(&free)?;
        self.called.insert(free);
        Some(Next::One(free, word))
    }

    fn told(&mut self, worker: WorkerId, heard: bool) {
        self.called.remove(&worker);
        self.silent.remove(&worker);
        if !heard {
            if self.silent.len() == MOST_SILENT {
                self.silent.clear();
            }
            self.silent.insert(worker);
        }
    }
}

/// Nobody sends any more: nothing is kept.
struct Closes<'a>(&'a Words);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        *self.0.kept() = Kept::default();
    }
}

/// Tells one worker what concerns it, in the newest term that the database knows. Whether it heard, or is no more.
async fn tell(
    worker: WorkerId,
    word: &Word,
    store: &Store,
    peers: &dyn Peers,
) -> Result<bool, Error> {
    let row = within(store.worker(worker)).await?;
    let Some(row) = row.filter(|row| row.dead_at.is_none() && row.gone_at.is_none()) else {
        return Ok(true);
    };
    let epoch = within(store.leader()).await?.epoch;
    let peer = Peer { worker, address: row.address };
    let told = async {
        if !word.canceled.is_empty() {
            let order = CancelOrder { epoch, runs: word.canceled.iter().copied().collect() };
            refused(&peer, "cancel", &peers.cancel(&peer, &order).await?);
        }
        if word.aside {
            refused(&peer, "drain", &peers.drain(&peer, epoch).await?);
        }
        if let Some(version) = word.settings {
            refused(&peer, "reload", &peers.reload(&peer, version).await?);
        }
        Ok::<(), Silent>(())
    };
    let told = told.await;
    if let Err(silent) = &told {
        tracing::debug!(worker_id = %worker, %silent, "it was not heard; it will be found with a heartbeat");
    }
    Ok(told.is_ok())
}

fn refused(peer: &Peer, verb: &str, answer: &Answer) {
    if *answer != Answer::Accepted {
        tracing::debug!(worker_id = %peer.worker, verb, refusal = ?answer, "it was refused; it will be found with a heartbeat");
    }
}

#[cfg(test)]
mod tests;
