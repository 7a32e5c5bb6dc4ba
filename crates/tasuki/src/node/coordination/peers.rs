//! What nodes say to each other. Every word of it is a hint: whoever hears one looks at the database,
//! or writes with a guard. So a word may be lost, late, doubled or forged.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tasuki_core::{Epoch, LeaseToken, NodeName, RunId, WorkerId};

use super::coordinate::Role;

/// Whom to call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Which incarnation: a successor at the same address is somebody else.
    pub worker: WorkerId,
    /// Where, as its row says.
    pub address: Option<String>,
}

/// What a leader gave a worker, told ahead of time so that it starts on the instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartOrder {
    /// In which term.
    pub epoch: Epoch,
    /// Under which lease.
    pub token: LeaseToken,
    /// What, and when each is due.
    pub runs: Vec<(RunId, Timestamp)>,
}

/// These are to be looked at now: a cancel was asked for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelOrder {
    /// In which term.
    pub epoch: Epoch,
    /// Which.
    pub runs: Vec<RunId>,
}

/// A detached worker asks whether it may go on with these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Who asks.
    pub worker: WorkerId,
    /// What it carries, each under its lease.
    pub runs: Vec<(RunId, LeaseToken)>,
}

/// How a worker answers an order. A refusal is an answer, not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It will see to it.
    Accepted,
    /// There is a newer leader: this is its epoch.
    OldEpoch(Epoch),
    /// It is cut off.
    Detached,
    /// It takes no new work.
    Draining,
    /// It has this already.
    AlreadyRunning,
    /// It makes no sense, or is for somebody else.
    Invalid(String),
}

/// What a worker says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Which incarnation.
    pub worker: WorkerId,
    /// Where.
    pub node: NodeName,
    /// What it is.
    pub role: Role,
    /// The newest epoch it knows.
    pub epoch: Epoch,
    /// How many runs it carries.
    pub load: u32,
    /// Some of them.
    pub runs: Vec<RunId>,
    /// Whether it is cut off.
    pub detached: bool,
    /// Whether it takes no new work.
    pub draining: bool,
}

/// Nobody answered in time, or not in words that can be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no answer: {0}")]
pub struct Silent(pub String);

/// How others are reached.
#[async_trait]
pub trait Peers: Send + Sync {
    /// Asks whether somebody is there: which incarnation is.
    async fn ping(&self, peer: &Peer) -> Result<WorkerId, Silent>;

    /// Asks how somebody is.
    async fn status(&self, peer: &Peer) -> Result<Status, Silent>;

    /// Tells a worker what it was given. What does not arrive is found with its next heartbeat.
    async fn start(&self, peer: &Peer, order: &StartOrder) -> Result<Answer, Silent>;

    /// Tells a worker that a cancel was asked.
    async fn cancel(&self, peer: &Peer, order: &CancelOrder) -> Result<Answer, Silent>;

    /// Tells a worker that it was put aside: drained, or cut off.
    async fn drain(&self, peer: &Peer, epoch: Epoch) -> Result<Answer, Silent>;

    /// Asks a leader or subleader what a detached worker may go on with.
    async fn confirm(&self, peer: &Peer, question: &Question) -> Result<Vec<RunId>, Silent>;

    /// Tells that there are settings of this version.
    async fn reload(&self, peer: &Peer, version: i64) -> Result<Answer, Silent>;
}

/// Somebody who can be called: what a node hands to whoever serves its port.
#[async_trait]
pub trait Called: Send + Sync {
    /// Which incarnation is here.
    fn worker(&self) -> WorkerId;

    /// How it is.
    fn status(&self) -> Status;

    /// A leader gave it something.
    async fn start(&self, order: StartOrder) -> Answer;

    /// A cancel was asked.
    async fn cancel(&self, order: CancelOrder) -> Answer;

    /// It was put aside: drained, or cut off.
    async fn drain(&self, epoch: Epoch) -> Answer;

    /// Whether somebody of this name may ask for a worker: a node asks for its own alone.
    async fn may_ask(&self, caller: &str, worker: WorkerId) -> Result<bool, Silent>;

    /// What of this a detached worker may go on with.
    async fn confirm(&self, question: Question) -> Result<Vec<RunId>, Silent>;

    /// There are settings of this version.
    async fn reload(&self, version: i64) -> Answer;
}

/// How long somebody has to answer a ping, and anything else.
pub const PING: Duration = Duration::from_millis(300);
/// How long somebody has to answer an order.
pub const ORDER: Duration = Duration::from_secs(2);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Some(address) => write!(f, "{} at {address}", self.worker),
            None => write!(f, "{}", self.worker),
        }
    }
}

/// The workers of this process. On one host with one process no port is opened.
#[derive(Clone, Default)]
pub struct InProcess {
    workers: Arc<Mutex<Vec<Weak<dyn Called>>>>,
}

impl InProcess {
    /// From now on this worker can be reached.
    pub fn add(&self, called: &Arc<dyn Called>) {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|known| known.strong_count() > 0);
        workers.push(Arc::downgrade(called));
    }

    fn find(&self, peer: &Peer) -> Result<Arc<dyn Called>, Silent> {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut here = workers.iter().filter_map(Weak::upgrade);
        let known = here.find(|called| called.worker() == peer.worker);
        known.ok_or_else(|| Silent("it is not in this process".to_owned()))
    }
}

#[async_trait]
impl Peers for InProcess {
    async fn ping(&self, peer: &Peer) -> Result<WorkerId, Silent> {
        Ok(self.find(peer)?.worker())
    }

    async fn status(&self, peer: &Peer) -> Result<Status, Silent> {
        Ok(self.find(peer)?.status())
    }

    async fn start(&self, peer: &Peer, order: &StartOrder) -> Result<Answer, Silent> {
        Ok(self.find(peer)?.start(order.clone()).await)
    }

    async fn cancel(&self, peer: &Peer, order: &CancelOrder) -> Result<Answer, Silent> {
        Ok(self.find(peer)?.cancel(order.clone()).await)
    }

    async fn drain(&self, peer: &Peer, epoch: Epoch) -> Result<Answer, Silent> {
        Ok(self.find(peer)?.drain(epoch).await)
    }

    async fn confirm(&self, peer: &Peer, question: &Question) -> Result<Vec<RunId>, Silent> {
        self.find(peer)?.confirm(question.clone()).await
    }

    async fn reload(&self, peer: &Peer, version: i64) -> Result<Answer, Silent> {
        Ok(self.find(peer)?.reload(version).await)
    }
}

/// Those of this process directly, all others as they are to be called.
pub(crate) struct Reach {
    pub(crate) here: InProcess,
    pub(crate) away: Option<Arc<dyn Peers>>,
}

impl Reach {
    fn to(&self, peer: &Peer) -> Result<&dyn Peers, Silent> {
        match (self.here.find(peer), &self.away) {
            (Ok(_), _) => Ok(&self.here),
            (Err(_), Some(away)) => Ok(&**away),
            (Err(silent), None) => Err(silent),
        }
    }
}

#[async_trait]
impl Peers for Reach {
    async fn ping(&self, peer: &Peer) -> Result<WorkerId, Silent> {
        self.to(peer)?.ping(peer).await
    }

    async fn status(&self, peer: &Peer) -> Result<Status, Silent> {
        self.to(peer)?.status(peer).await
    }

    async fn start(&self, peer: &Peer, order: &StartOrder) -> Result<Answer, Silent> {
        self.to(peer)?.start(peer, order).await
    }

    async fn cancel(&self, peer: &Peer, order: &CancelOrder) -> Result<Answer, Silent> {
        self.to(peer)?.cancel(peer, order).await
    }

    async fn drain(&self, peer: &Peer, epoch: Epoch) -> Result<Answer, Silent> {
        self.to(peer)?.drain(peer, epoch).await
    }

    async fn confirm(&self, peer: &Peer, question: &Question) -> Result<Vec<RunId>, Silent> {
        self.to(peer)?.confirm(peer, question).await
    }

    async fn reload(&self, peer: &Peer, version: i64) -> Result<Answer, Silent> {
        self.to(peer)?.reload(peer, version).await
    }
}
