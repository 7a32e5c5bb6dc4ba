//! Cache of job versions, parsed and ready to run. A job version never changes, so an entry never gets stale.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tasuki_core::exit::FailureRules;
use tasuki_core::{JobId, WorkSpec};
use tasuki_store::{Error, JobVersion, JobVersionSpec, Store};

/// Maximum number of cached job versions. A cache that would exceed it is cleared, and fills again as versions are
/// needed.
const MAX_CACHED_JOBS: usize = 10_000;

/// One version of a job, ready to run.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedJobVersion {
    /// Name of the job.
    pub name: String,
    /// The stored specification of this version.
    pub spec: JobVersionSpec,
    /// The parsed work: command, Django command or function, with its arguments and limits.
    pub work: WorkSpec,
    /// Rules that turn exit codes and errors into error codes and retries.
    pub rules: FailureRules,
}

/// Runnable jobs by job id and version.
#[derive(Default)]
pub(crate) struct JobVersionCache {
    /// A `BTreeMap`: mostly there are few entries, and every run looks one up.
    known: Mutex<BTreeMap<(JobId, i64), Arc<ParsedJobVersion>>>,
}

impl JobVersionCache {
    /// Returns a job version, from the cache or the database. `None`: it does not exist, or this program cannot parse
    /// it.
    pub(crate) async fn find_or_load(
        &self,
        store: &Store,
        job: JobId,
        version: i64,
    ) -> Result<Option<Arc<ParsedJobVersion>>, Error> {
        self.load_missing(store, [(job, version)]).await?;
        Ok(self.get_cached(job, version))
    }

    /// Returns a job version if it is in the cache.
    pub(crate) fn get_cached(&self, job: JobId, version: i64) -> Option<Arc<ParsedJobVersion>> {
        self.jobs().get(&(job, version)).cloned()
    }

    /// Reads the wanted job versions that are not in the cache, with one query.
    pub(crate) async fn load_missing(
        &self,
        store: &Store,
        wanted: impl IntoIterator<Item = (JobId, i64)>,
    ) -> Result<(), Error> {
        let missing: BTreeSet<(JobId, i64)> = {
            let known = self.jobs();
            wanted.into_iter().filter(|key| !known.contains_key(key)).collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        self.insert_all(store.list_job_versions_by_id(&missing).await?);
        Ok(())
    }

    /// Adds job versions, each with the name of its job. Versions that cannot be parsed are left out.
    pub(crate) fn insert_all(&self, found: Vec<(String, JobVersion)>) {
        let mut known = self.jobs();
        if known.len() + found.len() > MAX_CACHED_JOBS {
            known.clear();
        }
        known.extend(found.into_iter().filter_map(|(name, version)| {
            let key = (version.job, version.version);
            Some((key, Arc::new(parse_job(name, version)?)))
        }));
    }

    fn jobs(&self) -> std::sync::MutexGuard<'_, BTreeMap<(JobId, i64), Arc<ParsedJobVersion>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse_job(name: String, found: JobVersion) -> Option<ParsedJobVersion> {
    let work = WorkSpec::from_json(&found.spec.spec);
    match work.and_then(|work| Ok((work.failure_rules()?, work))) {
        Ok((rules, work)) => Some(ParsedJobVersion { name, spec: found.spec, work, rules }),
        Err(refused) => {
            let JobVersion { job, version, .. } = found;
            tracing::warn!(job_id = %job, version, %refused, "a job version cannot be parsed");
            None
        }
    }
}
