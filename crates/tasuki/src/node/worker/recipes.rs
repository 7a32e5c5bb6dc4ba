//! What runs are made of, kept at hand: a version of a job never changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tasuki_core::exit::FailureRules;
use tasuki_core::{JobId, Work};
use tasuki_store::{Error, JobSpec, JobVersion, Store};

/// More than this are forgotten all at once, and read again as they are needed.
const MOST: usize = 10_000;

/// One version of a job, ready to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    /// What people call the job.
    pub name: String,
    /// What its runs are made of.
    pub spec: JobSpec,
    /// What they do.
    pub work: Work,
    /// What their failures mean.
    pub rules: FailureRules,
}

/// Recipes by job and version.
#[derive(Default)]
pub(crate) struct Recipes {
    /// In order: mostly there are few, and each run is looked up.
    known: Mutex<BTreeMap<(JobId, i64), Arc<Recipe>>>,
}

impl Recipes {
    /// One of them. `None`: there is no such version, or this tasuki cannot read it.
    pub(crate) async fn get(
        &self,
        store: &Store,
        job: JobId,
        version: i64,
    ) -> Result<Option<Arc<Recipe>>, Error> {
        self.fetch(store, [(job, version)]).await?;
        Ok(self.at_hand(job, version))
    }

    /// One of them that was read before.
    pub(crate) fn at_hand(&self, job: JobId, version: i64) -> Option<Arc<Recipe>> {
        self.known().get(&(job, version)).cloned()
    }

    /// Reads those of them that are not at hand, in one go.
    pub(crate) async fn fetch(
        &self,
        store: &Store,
        wanted: impl IntoIterator<Item = (JobId, i64)>,
    ) -> Result<(), Error> {
        let missing: BTreeSet<(JobId, i64)> = {
            let known = self.known();
            wanted.into_iter().filter(|key| !known.contains_key(key)).collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        self.learn(store.job_versions(&missing).await?);
        Ok(())
    }

    /// Those that somebody has read, with the names of their jobs.
    pub(crate) fn learn(&self, found: Vec<(String, JobVersion)>) {
        let mut known = self.known();
        if known.len() + found.len() > MOST {
            known.clear();
        }
        known.extend(found.into_iter().filter_map(|(name, version)| {
            let key = (version.job, version.version);
            Some((key, Arc::new(read(name, version)?)))
        }));
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<(JobId, i64), Arc<Recipe>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(name: String, found: JobVersion) -> Option<Recipe> {
    let work = Work::from_json(&found.spec.spec);
    match work.and_then(|work| Ok((work.rules()?, work))) {
        Ok((rules, work)) => Some(Recipe { name, spec: found.spec, work, rules }),
        Err(refused) => {
            let JobVersion { job, version, .. } = found;
            tracing::warn!(job_id = %job, version, %refused, "a job cannot be read");
            None
        }
    }
}
