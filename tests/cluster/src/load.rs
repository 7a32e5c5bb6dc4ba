//! What runs while things break. Every job appends lines to one file while it lives; `witness.rs` reads them.

use std::fs;

use tasuki_core::{RunId, RunState};
use tasuki_store::{Error, Run, RunFilter, Store};

use crate::cluster::Cluster;
use crate::place::until;
use crate::plan::Pace;
use crate::witness::Witness;

/// A job that fires by itself while things break.
pub(crate) struct Fires {
    pub(crate) name: &'static str,
    pub(crate) every_seconds: i64,
    pub(crate) concurrency: &'static str,
    /// How often it tells that it still lives, five times a second.
    beats: u32,
}

pub(crate) const FIRES: [Fires; 3] = [
    Fires { name: "tick", every_seconds: 1, concurrency: "allow", beats: 0 },
    Fires { name: "walk", every_seconds: 1, concurrency: "allow", beats: 15 },
    // It takes longer than until the next one, which may not begin beside it.
    Fires { name: "alone", every_seconds: 2, concurrency: "forbid", beats: 11 },
];

/// Runs on request and outlasts the lease of a worker that is gone, so that what must end it has to. When it is tried
/// again, it is brief.
pub(crate) const LONG: &str = "long";
/// Runs on request and takes about twelve seconds, whatever the settings.
pub(crate) const BRIEF: &str = "brief";
const BRIEF_BEATS: u32 = 60;

/// All jobs that run on request.
pub(crate) const ASKED: [&str; 2] = [LONG, BRIEF];

impl Cluster {
    fn witness_file(&self) -> String {
        self.folder().join("witness").display().to_string()
    }

    /// Lives for so many beats, or so many if it is tried again.
    fn script(&self, first: u32, again: u32) -> String {
        let file = self.witness_file();
        format!(
            "say() {{ echo \"$1 $TASUKI_RUN_ID $TASUKI_ATTEMPT $$\" >> '{file}'; }}
             say begin; i=0; n={first}; [ $TASUKI_ATTEMPT -eq 1 ] || n={again}
             while [ $i -lt $n ]; do sleep 0.2; say beat; i=$((i+1)); done
             say end"
        )
    }

    /// Creates the jobs; those that fire begin to.
    pub fn load(&self) {
        let again = ["--retries", "100", "--backoff", "200ms", "--backoff-cap", "500ms"];
        for job in &FIRES {
            let (every, script) =
                (format!("{}s", job.every_seconds), self.script(job.beats, job.beats));
            let create = ["job", "create", job.name, "--every", &every];
            let how = ["--concurrency", job.concurrency, "--stop-grace", "1s"];
            self.ask(&[&create[..], &how, &again, &["--", "sh", "-c", &script]].concat());
        }
        self.create_long(LONG, &[]);
        self.create_asked(BRIEF, &self.script(BRIEF_BEATS, BRIEF_BEATS), &[]);
        until("some have run", || {
            let runs = self.runs(FIRES[1].name)?;
            (runs.iter().filter(|run| run.state.is_ended()).count() >= 2).then_some(())
        });
    }

    /// Whether the jobs are there.
    pub fn is_loaded(&self) -> bool {
        let name = FIRES[0].name.parse().unwrap();
        self.look(async |store| store.job(&name).await).flatten().is_some()
    }

    /// Creates a job that runs on request, takes long, and needs more than that is said here.
    pub fn create_long(&self, name: &str, more: &[&str]) {
        let beats = match self.plan().pace {
            Pace::Default => 225,
            Pace::Quick => 60,
        };
        self.create_asked(name, &self.script(beats, 10), more);
    }

    fn create_asked(&self, name: &str, script: &str, more: &[&str]) {
        let create = ["job", "create", name, "--on-request", "--concurrency", "allow"];
        let how = ["--retries", "100", "--backoff", "200ms", "--backoff-cap", "500ms"];
        self.ask(&[&create[..], &how, more, &["--", "sh", "-c", script]].concat());
    }

    /// Asks for a run of a job, and waits until it runs: which it is, and on which node.
    pub fn trigger(&self, job: &str) -> (RunId, usize) {
        let asked = self.ask(&["job", "trigger", job]);
        let run = RunId(asked["id"].as_i64().unwrap_or_else(|| panic!("no run in {asked}")));
        until("it runs", || {
            let run = self.run(run)?;
            let running = run.state == RunState::Running;
            Some((run.id, self.node_of(run.worker.filter(|_| running)?)?))
        })
    }

    /// A run as the database has it.
    pub fn run(&self, run: RunId) -> Option<Run> {
        self.look(async |store| store.run(run).await)?
    }

    /// Every run of a job that the database knows of, the first one first. `None`: it did not answer.
    pub fn runs(&self, job: &str) -> Option<Vec<Run>> {
        self.look(async |store| runs_of(store, job).await)
    }

    /// Stops what fires, and waits until everything has ended.
    pub(crate) fn unload(&self) {
        for job in &FIRES {
            self.ask(&["job", "disable", job.name]);
        }
        for job in FIRES.iter().map(|job| job.name).chain(ASKED) {
            until("every run has ended", || {
                self.runs(job)?.iter().all(|run| run.state.is_ended()).then_some(())
            });
        }
    }

    pub(crate) fn witness(&self) -> Witness {
        let text = fs::read_to_string(self.witness_file()).unwrap_or_default();
        Witness::read(&text)
    }
}

/// Every run of a job, the first one first.
pub(crate) async fn runs_of(store: &Store, job: &str) -> Result<Vec<Run>, Error> {
    let job = store.job(&job.parse().unwrap()).await?.unwrap_or_else(|| panic!("no job {job}"));
    let filter = RunFilter { job: Some(job.id), ..RunFilter::default() };
    let (mut runs, mut next) = (Vec::new(), None);
    loop {
        let page = store.runs(&filter, next.as_ref(), 200).await?;
        runs.extend(page.runs);
        next = page.next;
        if next.is_none() {
            runs.sort_unstable_by_key(|run| run.id);
            return Ok(runs);
        }
    }
}
