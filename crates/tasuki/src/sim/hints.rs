//! What nodes tell each other beside the database, as badly as it may be told.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tasuki_core::{Epoch, NodeName, RunId, WorkerId};
use tasuki_store::News;

use super::stage::Stage;
use crate::node::coordination::coordinate::{
    Coordinator, Hearing, Presence, Sighting, Unreachable, Wanted,
};
use crate::node::coordination::peers::{
    Answer, Called, CancelOrder, Peer, Peers, Question, Silent, StartOrder, Status,
};

/// An order on its way.
pub(super) struct Letter {
    pub(super) to: WorkerId,
    pub(super) order: StartOrder,
}

/// How nodes are found that are up.
#[derive(Clone, Default)]
pub(super) struct Switchboard(Arc<Mutex<Vec<(usize, Weak<dyn Called>)>>>);

impl Switchboard {
    pub(super) fn add(&self, host: usize, called: &Arc<dyn Called>) {
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|(_, node)| node.strong_count() > 0);
        nodes.push((host, Arc::downgrade(called)));
    }

    fn find(&self, peer: &Peer) -> Option<(usize, Arc<dyn Called>)> {
        let nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut up = nodes.iter().filter_map(|(host, node)| Some((*host, node.upgrade()?)));
        up.find(|(_, node)| node.worker() == peer.worker)
    }
}

/// Orders that come late, twice, or not at all: whoever runs the simulation delivers them. Calls that want an
/// answer get one, or none.
pub(super) struct SimPeers {
    pub(super) stage: Stage,
    pub(super) nodes: Switchboard,
}

impl SimPeers {
    async fn call(&self, peer: &Peer) -> Result<Arc<dyn Called>, Silent> {
        self.stage.pause().await;
        let called = self.nodes.find(peer);
        let inside = &mut *self.stage.inside();
        let lost = !inside.calm && inside.rng.chance(200);
        match called {
            Some((host, called)) if !lost && !inside.frozen[host] => Ok(called),
            Some(_) | None => Err(Silent("nobody answers".to_owned())),
        }
    }
}

#[async_trait]
impl Peers for SimPeers {
    async fn ping(&self, peer: &Peer) -> Result<WorkerId, Silent> {
        Ok(self.call(peer).await?.worker())
    }

    async fn status(&self, peer: &Peer) -> Result<Status, Silent> {
        Ok(self.call(peer).await?.status())
    }

    async fn start(&self, peer: &Peer, order: &StartOrder) -> Result<Answer, Silent> {
        {
            let inside = &mut *self.stage.inside();
            let times = match inside.calm {
                true => 1,
                false => inside.rng.weigh(&[(15, 0), (70, 1), (15, 2)]),
            };
            for _ in 0..times {
                inside.letters.push(Letter { to: peer.worker, order: order.clone() });
            }
        }
        self.stage.pause().await;
        Ok(Answer::Accepted)
    }

    async fn cancel(&self, peer: &Peer, order: &CancelOrder) -> Result<Answer, Silent> {
        Ok(self.call(peer).await?.cancel(order.clone()).await)
    }

    async fn drain(&self, peer: &Peer, epoch: Epoch) -> Result<Answer, Silent> {
        Ok(self.call(peer).await?.drain(epoch).await)
    }

    async fn confirm(&self, peer: &Peer, question: &Question) -> Result<Vec<RunId>, Silent> {
        let _others = self.stage.at_once();
        let told = self.call(peer).await?.confirm(question.clone()).await;
        self.stage.tell(|| format!("{} may go on with {told:?}", question.worker));
        told
    }

    async fn reload(&self, peer: &Peer, version: i64) -> Result<Answer, Silent> {
        Ok(self.call(peer).await?.reload(version).await)
    }
}

/// A coordinator that is sometimes not there.
pub(super) struct SimCoordinator {
    pub(super) stage: Stage,
    pub(super) inner: Arc<dyn Coordinator>,
}

impl SimCoordinator {
    async fn reach(&self) -> Result<(), Unreachable> {
        self.stage.pause().await;
        let inside = &mut *self.stage.inside();
        match !inside.calm && inside.rng.chance(50) {
            true => Err(Unreachable("nobody answers".to_owned())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Coordinator for SimCoordinator {
    async fn stand(&self, worker: WorkerId, ttl: Duration) -> Result<Option<Epoch>, Unreachable> {
        self.reach().await?;
        self.inner.stand(worker, ttl).await
    }

    async fn leads(
        &self,
        worker: WorkerId,
        epoch: Epoch,
        ttl: Duration,
    ) -> Result<(), Unreachable> {
        self.reach().await?;
        self.inner.leads(worker, epoch, ttl).await
    }

    async fn resigns(&self, worker: WorkerId) -> Result<(), Unreachable> {
        self.reach().await?;
        self.inner.resigns(worker).await
    }

    async fn leader_seen(&self) -> Result<Option<Sighting>, Unreachable> {
        self.reach().await?;
        self.inner.leader_seen().await
    }

    async fn degrade(&self, leader: WorkerId, epoch: Epoch) -> Result<(), Unreachable> {
        self.reach().await?;
        self.inner.degrade(leader, epoch).await
    }

    async fn watch(
        &self,
        worker: WorkerId,
        node: &NodeName,
        ttl: Duration,
    ) -> Result<Option<bool>, Unreachable> {
        self.reach().await?;
        self.inner.watch(worker, node, ttl).await
    }

    async fn show(&self, presence: &Presence, ttl: Duration) -> Result<Wanted, Unreachable> {
        self.reach().await?;
        self.inner.show(presence, ttl).await
    }

    async fn hide(&self, worker: WorkerId) -> Result<(), Unreachable> {
        self.reach().await?;
        self.inner.hide(worker).await
    }

    async fn detach(&self, worker: WorkerId, ttl: Duration) -> Result<(), Unreachable> {
        self.reach().await?;
        self.inner.detach(worker, ttl).await
    }

    async fn carries(
        &self,
        worker: WorkerId,
        runs: &[RunId],
        ttl: Duration,
    ) -> Result<(), Unreachable> {
        self.reach().await?;
        self.inner.carries(worker, runs, ttl).await
    }

    async fn tell(&self, news: News) -> Result<(), Unreachable> {
        self.reach().await?;
        self.inner.tell(news).await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Hearing>>, Unreachable> {
        self.reach().await?;
        self.inner.listen().await
    }
}
