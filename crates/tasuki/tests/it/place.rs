//! A folder with a database and a node in it.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tasuki::node::{Config, HomeLock, Node};
use tasuki::{Functions, Operator, Wake};
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::misfire::Misfire;
use tasuki_core::schedule::{DstChoice, ScheduleKind};
use tasuki_core::job_spec::{What, Work};
use tasuki_core::{JobId, RunId, RunState, Schedule};
use tasuki_store::{
    Writer, Error, Job, JobChange, JobCreated, JobDefinition, JobSpec, NewRun, Run, RunFilter,
    SettingsChange, Store, Trigger,
};

const SPAWNER: &str = "TASUKI_TEST_NODE_SPAWNER";
const ENOUGH: Duration = Duration::from_secs(60);
/// How long between two looks at a condition.
const LOOK: Duration = Duration::from_millis(10);

/// What is run as a process of its own: the spawner of a node.
#[test]
fn the_spawner_of_a_node() {
    let Some(told) = std::env::var_os(SPAWNER) else { return };
    let told = told.into_string().unwrap();
    let (id, lock) = told.split_once(' ').unwrap();
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    tasuki::spawner::serve(&UnixStream::from(socket), Path::new(lock), id).unwrap();
    std::process::exit(0);
}

pub(crate) struct Place {
    pub(crate) store: Store,
    pub(crate) data: PathBuf,
    pub(crate) wake: Wake,
}

/// A database that somebody else writes to.
pub(crate) struct Held(Child);

impl Held {
    pub(crate) fn release(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

pub(crate) fn command(argv: &[&str]) -> Work {
    Work::new(What::Command(argv.iter().map(|&word| word.to_owned()).collect()))
}

pub(crate) fn shell(script: &str) -> Work {
    command(&["sh", "-c", script])
}

/// What a job with this work is made of, unless a test says otherwise.
pub(crate) fn spec(work: &Work) -> JobSpec {
    JobSpec {
        kind: work.kind(),
        spec: work.to_json().to_string(),
        lane: work.lane(work.kind().dispatch()),
        concurrency: ConcurrencyPolicy::Allow,
        max_attempts: 1,
        max_releases: 20,
        backoff: Duration::from_millis(50),
        backoff_cap: Duration::from_secs(1),
        jitter_percent: 0,
        retry_lost: true,
        labels: [].into(),
    }
}

impl Place {
    pub(crate) async fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tasuki_node_{}_{count}", std::process::id());
        let data = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&data);
        std::fs::create_dir_all(&data).unwrap();
        let url = format!("sqlite:{}", data.join("tasuki.db").display());
        let store = Store::open(&url, 4).await.unwrap();
        store.migrate().await.unwrap();
        Self { store, data, wake: Wake::default() }
    }

    /// Changes settings.
    pub(crate) async fn set(&self, changes: &[(&str, &str)]) {
        let seen = self.store.settings().await.unwrap().version;
        let changed = self.store.change_settings("test", seen, changes).await.unwrap();
        assert!(matches!(changed, SettingsChange::Applied(_)), "{changed:?}");
    }

    pub(crate) async fn node(&self) -> Node {
        self.node_with(Functions::default()).await
    }

    pub(crate) async fn node_with(&self, functions: Functions) -> Node {
        self.node_like(functions, |config| config.slots = Some(32)).await
    }

    /// A node that is configured in its own way.
    pub(crate) async fn node_like(
        &self,
        functions: Functions,
        configure: impl FnOnce(&mut Config),
    ) -> Node {
        let mut config = Config::new("here".parse().unwrap());
        config.drain = Duration::from_secs(5);
        configure(&mut config);
        let home = HomeLock::take(&self.data.join("node")).unwrap();
        let mut spawner = Command::new(std::env::current_exe().unwrap());
        spawner
            .args(["place::the_spawner_of_a_node", "--exact"])
            .env(SPAWNER, format!("{} {}", home.id(), home.spawner_lock().display()))
            .stdout(Stdio::null());
        let node = Node::builder(config, self.store.clone()).wake(self.wake.clone());
        node.functions(functions).commands(home, spawner).start().await.unwrap()
    }

    /// A node that runs functions and nothing else.
    pub(crate) async fn functions_only(&self, functions: Functions) -> Node {
        let config = Config::new("here".parse().unwrap());
        let node = Node::builder(config, self.store.clone()).wake(self.wake.clone());
        node.functions(functions).start().await.unwrap()
    }

    pub(crate) fn operator(&self) -> Operator {
        Operator::new(self.store.clone(), self.wake.clone())
    }

    pub(crate) async fn job(&self, name: &str, trigger: Trigger, spec: JobSpec) -> Job {
        let next = match &trigger {
            Trigger::Time { schedule, .. } => {
                let clock = self.store.clock().await.unwrap();
                schedule.next_after(clock).map(|fire| fire.at)
            }
            Trigger::Event { .. } | Trigger::Task => None,
        };
        let definition = JobDefinition { trigger, enabled: true, spec };
        let made = self.store.create_job("test", &name.parse().unwrap(), &definition, next).await;
        let JobCreated::Made(job) = made.unwrap() else { panic!("{name} is taken") };
        self.wake.all();
        *job
    }

    pub(crate) async fn every(&self, name: &str, value: &str, work: &Work) -> JobId {
        self.job(name, every(value, None), spec(work)).await.id
    }

    pub(crate) async fn task(&self, name: &str, work: &Work) -> Job {
        self.job(name, Trigger::Task, spec(work)).await
    }

    pub(crate) async fn submit(&self, job: &Job, args: Option<Value>) -> RunId {
        let args = args.map(|args| args.to_string());
        let run = NewRun { args, ..NewRun::task(&job.newest) };
        let made = self.store.create(Writer::Api, &[run]).await.unwrap();
        self.wake.all();
        made[0].run
    }

    /// Takes the database for somebody else, until that is released.
    pub(crate) fn hold(&self) -> Held {
        let script = "import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
db.execute('begin immediate')
print('held', flush=True)
sys.stdin.read()";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(self.data.join("tasuki.db"));
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.expect("python3 is there: run ./test, which installs it");
        let mut told = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut told).unwrap();
        Held(child)
    }

    /// Waits until a run has ended.
    pub(crate) async fn ended(&self, run: RunId) -> Run {
        self.until(&format!("run {run} has ended"), async || {
            let found = self.store.run(run).await.unwrap().unwrap();
            found.state.is_ended().then_some(found)
        })
        .await
    }

    /// Waits until a job has so many runs in such a state, and returns them, oldest first.
    pub(crate) async fn runs_of(
        &self,
        job: JobId,
        count: usize,
        such: impl Fn(RunState) -> bool,
    ) -> Vec<Run> {
        let filter = RunFilter { job: Some(job), ..RunFilter::default() };
        self.until(&format!("{count} runs of job {job}"), async || {
            let page = self.store.runs(&filter, None, 200).await.unwrap();
            let mut runs = page.runs;
            runs.retain(|run| such(run.state));
            runs.sort_by_key(|run| run.id);
            (runs.len() >= count).then_some(runs)
        })
        .await
    }

    /// Waits for a condition.
    pub(crate) async fn until<T>(&self, what: &str, look: impl AsyncFn() -> Option<T>) -> T {
        until(ENOUGH, what, look).await
    }

    pub(crate) async fn log(&self, run: RunId) -> Vec<String> {
        let attempt = self.store.run(run).await.unwrap().unwrap().counters.attempt_no;
        let mut lines = Vec::new();
        while let Some(page) =
            self.store.read_log(run, attempt, lines.len() as i64, 1_000).await.unwrap()
            && !page.lines.is_empty()
        {
            lines.extend(page.lines.into_iter().map(|line| line.text));
        }
        lines
    }

    /// Everything must be as the doctor wants it; then nothing is left.
    pub(crate) async fn end(self) {
        let report = self.store.doctor(jiff::Timestamp::now).await.unwrap();
        let findings: Vec<String> =
            report.findings().map(|(check, finding)| format!("{check}: {finding:?}")).collect();
        assert!(report.is_clean(), "{}", findings.join("\n"));
        self.store.close().await;
        std::fs::remove_dir_all(&self.data).unwrap();
    }
}

/// A change of a job must have happened.
pub(crate) fn applied(change: Result<JobChange, Error>) -> Job {
    match change.unwrap() {
        JobChange::Applied { job, .. } => job,
        JobChange::Lost(now) => panic!("lost to {now:?}"),
    }
}

pub(crate) fn every(value: &str, misfire: Option<Misfire>) -> Trigger {
    let dst = DstChoice::default();
    let schedule = Schedule::parse(ScheduleKind::Every, value, "UTC", dst).unwrap();
    Trigger::Time { schedule, misfire }
}

/// Waits for a condition, for so long at most.
pub(crate) async fn until<T>(
    enough: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    match tokio::time::timeout(enough, found).await {
        Ok(found) => found,
        Err(_) => panic!("waited in vain until {what}"),
    }
}
