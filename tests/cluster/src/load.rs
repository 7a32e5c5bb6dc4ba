//! The load that runs during a fault: jobs that append lines to one trace file while they run. `job_trace.rs` reads
//! the file.

use std::fs;

use tasuki_core::{RunId, RunState};
use tasuki_store::{Error, Run, RunFilter, Store};

use crate::cluster::Cluster;
use crate::cluster_config::Pace;
use crate::job_trace::JobTrace;
use crate::test_support::wait_until;

/// A scheduled job of the load.
pub(crate) struct LoadJob {
    pub(crate) name: &'static str,
    pub(crate) every_seconds: i64,
    pub(crate) concurrency: &'static str,
    /// Number of `beat` lines that an attempt writes, one every 0.2 seconds.
    beats: u32,
}

/// The jobs that fire by schedule during a fault.
pub(crate) const SCHEDULED_JOBS: [LoadJob; 3] = [
    LoadJob { name: "tick", every_seconds: 1, concurrency: "allow", beats: 0 },
    LoadJob { name: "walk", every_seconds: 1, concurrency: "allow", beats: 15 },
    // A run takes longer than the interval, so the next run must wait: `forbid` must prevent an overlap.
    LoadJob { name: "alone", every_seconds: 2, concurrency: "forbid", beats: 11 },
];

/// Name of a job that runs on request. Its first attempt takes longer than the lease of a lost worker, so the cluster
/// must end it; later attempts are short.
pub(crate) const LONG_JOB: &str = "long";
/// Name of a job that runs on request and takes about twelve seconds with any settings.
pub(crate) const BRIEF_JOB: &str = "brief";
const BRIEF_BEATS: u32 = 60;

/// All jobs that run on request.
pub(crate) const TRIGGERED_JOBS: [&str; 2] = [LONG_JOB, BRIEF_JOB];

impl Cluster {
    fn trace_file(&self) -> String {
        self.folder().join("trace").display().to_string()
    }

    /// The shell script of a job. It writes `first` beats in the first attempt, and `again` beats in later ones.
    fn script(&self, first: u32, again: u32) -> String {
        let file = self.trace_file();
        format!(
            "trace() {{ echo \"$1 $TASUKI_RUN_ID $TASUKI_ATTEMPT $$\" >> '{file}'; }}
             trace begin; i=0; n={first}; [ $TASUKI_ATTEMPT -eq 1 ] || n={again}
             while [ $i -lt $n ]; do sleep 0.2; trace beat; i=$((i+1)); done
             trace end"
        )
    }

    /// Creates the jobs of the load, and waits until two scheduled runs have ended.
    pub fn start_load(&self) {
        let again = ["--retries", "100", "--backoff", "200ms", "--backoff-cap", "500ms"];
        for job in &SCHEDULED_JOBS {
            let (every, script) =
                (format!("{}s", job.every_seconds), self.script(job.beats, job.beats));
            let create = ["job", "create", job.name, "--every", &every];
            let options = ["--concurrency", job.concurrency, "--stop-grace", "1s"];
            self.run_cli_on_any_node(
                &[&create[..], &options, &again, &["--", "sh", "-c", &script]].concat(),
            );
        }
        self.create_long_job(LONG_JOB, &[]);
        self.create_triggered_job(BRIEF_JOB, &self.script(BRIEF_BEATS, BRIEF_BEATS), &[]);
        wait_until("two scheduled runs have ended", || {
            let runs = self.list_runs(SCHEDULED_JOBS[1].name)?;
            (runs.iter().filter(|run| run.state.is_ended()).count() >= 2).then_some(())
        });
    }

    /// Whether the jobs of the load exist.
    pub fn has_load(&self) -> bool {
        let name = SCHEDULED_JOBS[0].name.parse().unwrap();
        self.try_query_store(async |store| store.find_job(&name).await).flatten().is_some()
    }

    /// Creates a long job that runs on request. `more` are additional arguments of `job create`.
    pub fn create_long_job(&self, name: &str, more: &[&str]) {
        let beats = match self.config().pace {
            Pace::Default => 225,
            Pace::Quick => 60,
        };
        self.create_triggered_job(name, &self.script(beats, 10), more);
    }

    fn create_triggered_job(&self, name: &str, script: &str, more: &[&str]) {
        let create = ["job", "create", name, "--on-request", "--concurrency", "allow"];
        let options = ["--retries", "100", "--backoff", "200ms", "--backoff-cap", "500ms"];
        self.run_cli_on_any_node(
            &[&create[..], &options, more, &["--", "sh", "-c", script]].concat(),
        );
    }

    /// Triggers a run of a job, and waits until it is RUNNING. Returns its id and its node.
    pub fn trigger_and_wait(&self, job: &str) -> (RunId, usize) {
        let output = self.run_cli_on_any_node(&["job", "trigger", job]);
        let run = RunId(output["id"].as_i64().unwrap_or_else(|| panic!("no run in {output}")));
        wait_until("the triggered run is RUNNING", || {
            let run = self.find_run(run)?;
            let running = run.state == RunState::Running;
            Some((run.id, self.node_of(run.worker.filter(|_| running)?)?))
        })
    }

    /// Reads a run. `None` if it does not exist or the database did not answer.
    pub fn find_run(&self, run: RunId) -> Option<Run> {
        self.try_query_store(async |store| store.find_run(run).await)?
    }

    /// All runs of a job, in order of their ids. `None` if the database did not answer.
    pub fn list_runs(&self, job: &str) -> Option<Vec<Run>> {
        self.try_query_store(async |store| list_runs_of(store, job).await)
    }

    /// Disables the scheduled jobs, and waits until every run has ended.
    pub(crate) fn stop_load(&self) {
        for job in &SCHEDULED_JOBS {
            self.run_cli_on_any_node(&["job", "disable", job.name]);
        }
        for job in SCHEDULED_JOBS.iter().map(|job| job.name).chain(TRIGGERED_JOBS) {
            wait_until("every run has ended", || {
                self.list_runs(job)?.iter().all(|run| run.state.is_ended()).then_some(())
            });
        }
    }

    /// Reads the trace file.
    pub(crate) fn read_trace(&self) -> JobTrace {
        let text = fs::read_to_string(self.trace_file()).unwrap_or_default();
        JobTrace::read(&text)
    }
}

/// All runs of a job, in order of their ids.
pub(crate) async fn list_runs_of(store: &Store, job: &str) -> Result<Vec<Run>, Error> {
    let job =
        store.find_job(&job.parse().unwrap()).await?.unwrap_or_else(|| panic!("no job {job}"));
    let filter = RunFilter { job: Some(job.id), ..RunFilter::default() };
    let (mut runs, mut next) = (Vec::new(), None);
    loop {
        let page = store.list_runs(&filter, next.as_ref(), 200).await?;
        runs.extend(page.runs);
        next = page.next;
        if next.is_none() {
            runs.sort_unstable_by_key(|run| run.id);
            return Ok(runs);
        }
    }
}
