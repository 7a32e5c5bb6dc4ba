//! What people may ask: every question and every action of the pages, the REST API and the CLI.
//!
//! An [`Operator`] reads, decides nothing that a guard must decide, writes through the store, and wakes
//! the node of this process. Whoever acts is named, and the store tells the audit in the same
//! transaction. A lost guard comes back as [`Error::Lost`] with what is true now.
//!
//! Deliberately not here: who may do what. A surface knows whom it talks to, and asks [`Role`] before it
//! calls; a program that embeds tasuki is its own master.

mod cluster;
mod draft;
mod error;
mod events;
pub mod explain;
mod jobs;
mod runs;
mod tasks;
mod tokens;

use std::sync::Arc;

use tasuki_store::Store;

pub use cluster::{Lead, WorkerNow};
pub use draft::JobDraft;
pub use error::{Current, Error};
pub use events::EventDraft;
pub(crate) use jobs::next_fire;
pub use jobs::{JobFilter, JobNow, JobPage};
pub use runs::{RunDetail, RunNow, RunsNow, Waited};
pub use tasks::{Submitted, TaskDraft};
pub use tasuki_core::Role;
pub use tokens::{Given, hash_token, new_secret};

use crate::Wake;
use crate::notify::announce::Announce;

/// Who acts, from where, and as what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// What people call them.
    pub name: String,
    /// The address the request came from.
    pub address: Option<String>,
    /// What they may do.
    pub role: Role,
}

impl Actor {
    /// As the audit wants it.
    fn told(&self) -> tasuki_store::Actor<'_> {
        tasuki_store::Actor { name: &self.name, address: self.address.as_deref() }
    }
}

/// Answers and acts for people. Cheap to clone.
#[derive(Clone)]
pub struct Operator {
    store: Store,
    wake: Announce,
    submits: Arc<tasks::Submits>,
}

impl Operator {
    /// Over a store, and the node of this process if there is one.
    pub fn new(store: Store, wake: Wake) -> Self {
        let wake = Announce::new(&store, wake);
        Self { store, wake, submits: Arc::default() }
    }

    /// Something was committed that others may wait for: they look at once.
    pub fn committed(&self) {
        self.wake.all();
    }

    /// Whether the database answers.
    pub async fn ready(&self) -> Result<(), Error> {
        self.store.clock().await.map(drop).map_err(Error::from)
    }

    /// The database's clock.
    pub async fn clock(&self) -> Result<jiff::Timestamp, Error> {
        Ok(self.store.clock().await?)
    }
}
