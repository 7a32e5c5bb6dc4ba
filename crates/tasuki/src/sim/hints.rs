//! What nodes tell each other beside the database, as badly as it may be told.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tasuki_core::{Epoch, WorkerId};

use super::stage::Stage;
use crate::node::coordinate::{Coordinator, Unreachable};
use crate::node::peers::{Peers, StartOrder};

/// An order on its way.
pub(super) struct Letter {
    pub(super) to: WorkerId,
    pub(super) order: StartOrder,
}

/// Orders that come late, twice, or not at all: whoever runs the simulation delivers them.
pub(super) struct SimPeers {
    pub(super) stage: Stage,
}

#[async_trait]
impl Peers for SimPeers {
    async fn start(&self, worker: WorkerId, order: StartOrder) {
        {
            let inside = &mut *self.stage.inside();
            let times = match inside.calm {
                true => 1,
                false => inside.rng.weigh(&[(15, 0), (70, 1), (15, 2)]),
            };
            for _ in 0..times {
                inside.letters.push(Letter { to: worker, order: order.clone() });
            }
        }
        self.stage.pause().await;
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
}
