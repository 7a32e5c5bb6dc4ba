//! Scopes of jobs that fire once per scope. Only the embedding program knows the scopes. Each scope has its own cursor,
//! which is created and deleted with the scope.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use tasuki_core::RunScope;
use tasuki_store::{Error, Store};

use crate::operator::next_fire;

/// Error of the embedding program's [`ScopeProvider`].
pub type ProviderError = Box<dyn std::error::Error + Send + Sync>;

/// Lists the scopes for which a job fires, for example customers or shops.
#[async_trait]
pub trait ScopeProvider: Send + Sync {
    /// Lists all current scopes.
    async fn scopes(&self) -> Result<Vec<RunScope>, ProviderError>;
}

/// A fixed list of scopes.
#[async_trait]
impl ScopeProvider for Vec<RunScope> {
    async fn scopes(&self) -> Result<Vec<RunScope>, ProviderError> {
        Ok(self.clone())
    }
}

/// The jobs of this program that have a scope provider.
#[derive(Default)]
pub(crate) struct RunScopeProviders {
    jobs: Vec<(String, Arc<dyn ScopeProvider>)>,
}

impl RunScopeProviders {
    pub(crate) fn new(jobs: Vec<(String, Arc<dyn ScopeProvider>)>) -> Self {
        Self { jobs }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Creates cursors for new scopes and deletes the cursors of removed ones. Runs that exist already stay. If a
    /// provider fails, its job keeps its cursors.
    pub(crate) async fn sync_stored_schedule_cursors(&self, store: &Store) -> Result<(), Error> {
        for (name, provider) in &self.jobs {
            match provider.scopes().await {
                Ok(scopes) => sync_job_scopes(store, name, scopes.into_iter().collect()).await?,
                Err(error) => {
                    tracing::warn!(job = %name, %error, "the scope provider of a job failed");
                }
            }
        }
        Ok(())
    }
}

async fn sync_job_scopes(
    store: &Store,
    name: &str,
    scopes: BTreeSet<RunScope>,
) -> Result<(), Error> {
    let Some(job) = store.find_job(&name.parse()?).await? else { return Ok(()) };
    let Some(first) = next_fire(&job, store.read_clock().await?) else { return Ok(()) };
    let cursors = store.list_cursors_of_job(job.id).await?;
    for cursor in &cursors {
        if !scopes.contains(&cursor.scope) {
            store.delete_schedule_cursor(job.expected_version(), cursor).await?;
        }
    }
    let planned: BTreeSet<&RunScope> = cursors.iter().map(|cursor| &cursor.scope).collect();
    for scope in scopes.iter().filter(|scope| !planned.contains(scope)) {
        store.create_schedule_cursor(job.expected_version(), scope, first).await?;
    }
    Ok(())
}
