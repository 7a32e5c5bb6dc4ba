//! The operator: all queries and actions of the pages, the REST API and the CLI.
//!
//! An [`Operator`] reads from the store, writes through guarded statements of the store, and wakes the node of this
//! process. Every action names its actor, and the store writes the audit entry in the same transaction. If a guard does
//! not hold, the action returns [`Error::Lost`] with the current state.
//!
//! Deliberately absent: permission checks. The web API checks the [`AccessRole`] of its user before it calls the operator; a
//! program that embeds tasuki may do everything.

mod error;
mod events;
pub mod explain_run_state;
mod job_draft;
mod jobs;
mod runs;
mod settings_and_audit;
mod tokens;
mod trigger_and_submit;
mod workers_and_leader;

use std::sync::Arc;

use tasuki_store::Store;

pub use error::{CurrentState, Error};
pub use events::EventDraft;
pub use job_draft::JobDraft;
pub(crate) use jobs::next_fire;
pub use jobs::{JobFilter, JobPage, JobWithNextFire};
pub use runs::{RunDetail, RunOverview, RunOverviewPage, WaitResult};
pub use tasuki_core::AccessRole;
pub use tokens::{IssuedToken, generate_token, hash_token};
pub use trigger_and_submit::{SubmitResult, TaskDraft};
pub use workers_and_leader::{LeaderInfo, WorkerInfo};

use crate::Wakeups;
use crate::wakeups_and_hints::wakeup_notifier::Notifier;

/// The user or program that performs an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The name for the audit.
    pub name: String,
    /// The network address of the request, if there is one.
    pub address: Option<String>,
    /// The role of the actor.
    pub role: AccessRole,
}

impl Actor {
    /// The actor in the form that the store writes to the audit.
    fn for_store(&self) -> tasuki_store::AuditActor<'_> {
        tasuki_store::AuditActor { name: &self.name, address: self.address.as_deref() }
    }
}

/// Performs queries and actions for users and programs. Cheap to clone.
#[derive(Clone)]
pub struct Operator {
    store: Store,
    notifier: Notifier,
    submit_cache: Arc<trigger_and_submit::SubmitCache>,
}

impl Operator {
    /// Makes an operator on a store. `wakeups` wake the node in this process, if there is one.
    pub fn new(store: Store, wakeups: Wakeups) -> Self {
        let notifier = Notifier::new(&store, wakeups);
        Self { store, notifier, submit_cache: Arc::default() }
    }

    /// Wakes the nodes after the application committed a transaction with submitted tasks: the node in this process and,
    /// on PostgreSQL, those in other processes.
    pub fn notify_committed(&self) {
        self.notifier.wake_all();
    }

    /// Checks that the database responds.
    pub async fn ping_database(&self) -> Result<(), Error> {
        self.store.read_clock().await.map(drop).map_err(Error::from)
    }

    /// The current time by the database's clock.
    pub async fn read_database_clock(&self) -> Result<jiff::Timestamp, Error> {
        Ok(self.store.read_clock().await?)
    }
}
