//! What a node answers when others call it. It believes nobody: an order makes it look sooner, and what it
//! then finds in the database is what it does.

use std::sync::Arc;

use async_trait::async_trait;
use tasuki_core::{Epoch, NodeName, RunId, RunState, WorkerId};
use tasuki_store::{Carried, Store};

use super::peers::{Answer, Called, CancelOrder, Question, Silent, StartOrder, Status};
use crate::Wake;
use crate::node::leader::Leader;
use crate::node::within::within;
use crate::node::worker::Worker;

/// How many of the runs it carries a worker names when it is asked how it is.
pub(in crate::node) const NAMED: usize = 100;

/// A node as others reach it.
pub(crate) struct Callee {
    pub(crate) node: NodeName,
    pub(crate) worker: Arc<Worker>,
    pub(crate) leader: Arc<Leader>,
    pub(crate) store: Store,
    pub(crate) wake: Wake,
}

impl Callee {
    /// Whether an order is to be refused, whatever it asks.
    fn refusal(&self, epoch: Epoch) -> Option<Answer> {
        let newest = self.worker.newest_epoch();
        if epoch > newest {
            // There may be a newer leader. That is for the database to say.
            self.worker.look_now();
        }
        (epoch < newest).then_some(Answer::OldEpoch(newest))
    }
}

#[async_trait]
impl Called for Callee {
    fn worker(&self) -> WorkerId {
        self.worker.id()
    }

    fn status(&self) -> Status {
        let carried = self.worker.carried();
        Status {
            worker: self.worker.id(),
            node: self.node.clone(),
            role: self.leader.role(),
            epoch: self.worker.newest_epoch(),
            load: carried.len() as u32,
            runs: carried.into_iter().take(NAMED).collect(),
            detached: self.worker.is_detached(),
            draining: self.worker.is_draining(),
        }
    }

    async fn start(&self, order: StartOrder) -> Answer {
        if let Some(refusal) = self.refusal(order.epoch) {
            return refusal;
        }
        if order.runs.is_empty() {
            return Answer::Invalid("it names no run".to_owned());
        }
        if self.worker.is_detached() {
            return Answer::Detached;
        }
        if self.worker.is_draining() {
            return Answer::Draining;
        }
        match self.worker.hear(&order) {
            true => Answer::Accepted,
            false => Answer::AlreadyRunning,
        }
    }

    async fn cancel(&self, order: CancelOrder) -> Answer {
        if let Some(refusal) = self.refusal(order.epoch) {
            return refusal;
        }
        tracing::debug!(worker_id = %self.worker.id(), runs = order.runs.len(), "a cancel was heard of");
        self.wake.leases();
        Answer::Accepted
    }

    async fn drain(&self, epoch: Epoch) -> Answer {
        if let Some(refusal) = self.refusal(epoch) {
            return refusal;
        }
        tracing::debug!(worker_id = %self.worker.id(), "it heard that it was put aside");
        self.worker.look_now();
        Answer::Accepted
    }

    async fn may_ask(&self, caller: &str, worker: WorkerId) -> Result<bool, Silent> {
        let asking = within(self.store.worker(worker)).await;
        let asking = asking.map_err(|error| Silent(error.to_string()))?;
        // Whom nobody knows carries nothing, and may be told so.
        Ok(asking.is_none_or(|asking| asking.node.as_str() == caller))
    }

    async fn confirm(&self, question: Question) -> Result<Vec<RunId>, Silent> {
        // Whoever is asked can say: what counts is what the database says.
        let carried = within(self.store.carried_by(question.worker)).await;
        let carried = carried.map_err(|error| Silent(error.to_string()))?;
        let runs = question.runs.into_iter().filter(|(run, token)| {
            let same = |one: &&Carried| one.run == *run && one.token == *token;
            carried.iter().find(same).is_some_and(|one| one.state == RunState::Running)
        });
        Ok(runs.map(|(run, _)| run).collect())
    }

    async fn reload(&self, version: i64) -> Answer {
        if self.worker.settings_version() < Some(version) {
            tracing::debug!(worker_id = %self.worker.id(), version, "settings were heard of");
            self.worker.look_now();
        }
        Answer::Accepted
    }
}
