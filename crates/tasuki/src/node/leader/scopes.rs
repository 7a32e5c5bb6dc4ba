//! Jobs that fire for each of several scopes, which only the embedding program knows: each has a cursor of its
//! own, which appears when the scope does and goes when it goes.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use tasuki_core::Scope;
use tasuki_store::{Error, Store};

use crate::operator::next_fire;

/// Whatever went wrong in the embedding program.
pub type ProviderError = Box<dyn std::error::Error + Send + Sync>;

/// Lists the scopes that a job fires for: its customers, its shops, its days.
#[async_trait]
pub trait ScopeProvider: Send + Sync {
    /// All of them, as they are now.
    async fn scopes(&self) -> Result<Vec<Scope>, ProviderError>;
}

/// The same list, however often it is asked for.
#[async_trait]
impl ScopeProvider for Vec<Scope> {
    async fn scopes(&self) -> Result<Vec<Scope>, ProviderError> {
        Ok(self.clone())
    }
}

/// The jobs of this program that have scopes.
#[derive(Default)]
pub(crate) struct Scopes {
    jobs: Vec<(String, Arc<dyn ScopeProvider>)>,
}

impl Scopes {
    pub(crate) fn new(jobs: Vec<(String, Arc<dyn ScopeProvider>)>) -> Self {
        Self { jobs }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Gives each scope that is there a cursor, and takes it from those that are not. What is planned already
    /// stays. A program that cannot tell its scopes now keeps those it told before.
    pub(crate) async fn sync(&self, store: &Store) -> Result<(), Error> {
        for (name, provider) in &self.jobs {
            match provider.scopes().await {
                Ok(scopes) => sync_one(store, name, scopes.into_iter().collect()).await?,
                Err(error) => {
                    tracing::warn!(job = %name, %error, "the scopes of a job cannot be told now");
                }
            }
        }
        Ok(())
    }
}

async fn sync_one(store: &Store, name: &str, scopes: BTreeSet<Scope>) -> Result<(), Error> {
    let Some(job) = store.job(&name.parse()?).await? else { return Ok(()) };
    let Some(first) = next_fire(&job, store.clock().await?) else { return Ok(()) };
    let cursors = store.cursors_of(job.id).await?;
    for cursor in &cursors {
        if !scopes.contains(&cursor.scope) {
            store.end_cursor(job.seen(), cursor).await?;
        }
    }
    let planned: BTreeSet<&Scope> = cursors.iter().map(|cursor| &cursor.scope).collect();
    for scope in scopes.iter().filter(|scope| !planned.contains(scope)) {
        store.put_cursor(job.seen(), scope, first).await?;
    }
    Ok(())
}
