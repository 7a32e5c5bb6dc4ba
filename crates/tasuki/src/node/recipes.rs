//! What runs are made of, kept at hand: a version of a job never changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tasuki_core::exit::FailureRules;
use tasuki_core::{JobId, Work};
use tasuki_store::{Error, JobSpec, Store};

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
    known: Mutex<HashMap<(JobId, i64), Arc<Recipe>>>,
}

impl Recipes {
    /// One of them. `None`: there is no such version, or this tasuki cannot read it.
    pub(crate) async fn get(
        &self,
        store: &Store,
        job: JobId,
        version: i64,
    ) -> Result<Option<Arc<Recipe>>, Error> {
        if let Some(known) = self.known().get(&(job, version)) {
            return Ok(Some(Arc::clone(known)));
        }
        let Some(found) = store.job_version(job, version).await? else { return Ok(None) };
        let name = store.job_by_id(job).await?.map(|job| job.name).unwrap_or_default();
        let read = Work::from_json(&found.spec.spec);
        let (work, rules) = match read.and_then(|work| Ok((work.rules()?, work))) {
            Ok((rules, work)) => (work, rules),
            Err(refused) => {
                tracing::warn!(job_id = %job, version, %refused, "a job cannot be read");
                return Ok(None);
            }
        };
        let recipe = Arc::new(Recipe { name, spec: found.spec, work, rules });
        let mut all = self.known();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert((job, version), Arc::clone(&recipe));
        Ok(Some(recipe))
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<(JobId, i64), Arc<Recipe>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
