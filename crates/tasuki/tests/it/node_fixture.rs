//! Test fixture: a temporary directory with a SQLite database, and nodes that use it.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tasuki::node::{Config, DataDirLock, Node};
use tasuki::{HandlerRegistry, Operator, Wakeups};
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::plan_scheduled_runs::MisfirePolicy;
use tasuki_core::schedule::{DstRuleOverrides, ScheduleKind};
use tasuki_core::work_spec::{WorkAction, WorkSpec};
use tasuki_core::{JobId, RunId, RunState, Schedule};
use tasuki_store::{
    Error, Job, JobChangeResult, JobCreateResult, JobDefinition, JobVersionSpec, NewRun, Run,
    RunFilter, SettingsChangeResult, Store, Trigger, Writer,
};

const RUN_AS_SPAWNER_ENV: &str = "TASUKI_TEST_NODE_SPAWNER";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Polling interval while a test waits for a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Not a test of its own: [`NodeFixture`] runs this test binary again as the spawner of a node, with
/// [`RUN_AS_SPAWNER_ENV`] set.
#[test]
fn node_spawner_process() {
    let Some(args) = std::env::var_os(RUN_AS_SPAWNER_ENV) else { return };
    let args = args.into_string().unwrap();
    let (id, lock) = args.split_once(' ').unwrap();
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    tasuki::spawner::run_spawner_of_data_dir(&UnixStream::from(socket), Path::new(lock), id)
        .unwrap();
    std::process::exit(0);
}

/// A temporary directory with a SQLite database, for tests of whole nodes.
pub(crate) struct NodeFixture {
    pub(crate) store: Store,
    pub(crate) dir: PathBuf,
    pub(crate) wakeups: Wakeups,
}

/// A write lock on the database, held by another process until [`Self::release`].
pub(crate) struct DatabaseLock(Child);

impl DatabaseLock {
    pub(crate) fn release(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

pub(crate) fn command(argv: &[&str]) -> WorkSpec {
    WorkSpec::new(WorkAction::Command(argv.iter().map(|&argument| argument.to_owned()).collect()))
}

pub(crate) fn shell(script: &str) -> WorkSpec {
    command(&["sh", "-c", script])
}

/// Default specification of a job with this work.
pub(crate) fn spec(work: &WorkSpec) -> JobVersionSpec {
    JobVersionSpec {
        kind: work.kind(),
        spec: work.to_json().to_string(),
        lane: work.lane_for_dispatch(work.kind().default_dispatch()),
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

impl NodeFixture {
    pub(crate) async fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tasuki_node_{}_{count}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let url = format!("sqlite:{}", dir.join("tasuki.db").display());
        let store = Store::open(&url, 4).await.unwrap();
        store.migrate().await.unwrap();
        Self { store, dir, wakeups: Wakeups::default() }
    }

    /// Changes settings.
    pub(crate) async fn change_settings(&self, changes: &[(&str, &str)]) {
        let version = self.store.load_settings().await.unwrap().version;
        let changed = self.store.change_settings("test", version, changes).await.unwrap();
        assert!(matches!(changed, SettingsChangeResult::Applied(_)), "{changed:?}");
    }

    pub(crate) async fn start_node(&self) -> Node {
        self.start_node_with(HandlerRegistry::default()).await
    }

    pub(crate) async fn start_node_with(&self, functions: HandlerRegistry) -> Node {
        self.start_configured_node(functions, |config| config.slots = Some(32)).await
    }

    /// Starts a node with a changed configuration.
    pub(crate) async fn start_configured_node(
        &self,
        functions: HandlerRegistry,
        configure: impl FnOnce(&mut Config),
    ) -> Node {
        let mut config = Config::new("here".parse().unwrap());
        config.drain_timeout = Duration::from_secs(5);
        configure(&mut config);
        let data_dir = DataDirLock::acquire(&self.dir.join("node")).unwrap();
        let mut spawner = Command::new(std::env::current_exe().unwrap());
        spawner
            .args(["node_fixture::node_spawner_process", "--exact"])
            .env(
                RUN_AS_SPAWNER_ENV,
                format!("{} {}", data_dir.id(), data_dir.spawner_lock_path().display()),
            )
            .stdout(Stdio::null());
        let node = Node::builder(config, self.store.clone()).wakeups(self.wakeups.clone());
        node.functions(functions).commands(data_dir, spawner).start().await.unwrap()
    }

    /// Starts a node that runs functions and no commands.
    pub(crate) async fn start_functions_only_node(&self, functions: HandlerRegistry) -> Node {
        let config = Config::new("here".parse().unwrap());
        let node = Node::builder(config, self.store.clone()).wakeups(self.wakeups.clone());
        node.functions(functions).start().await.unwrap()
    }

    pub(crate) fn operator(&self) -> Operator {
        Operator::new(self.store.clone(), self.wakeups.clone())
    }

    pub(crate) async fn create_job(
        &self,
        name: &str,
        trigger: Trigger,
        spec: JobVersionSpec,
    ) -> Job {
        let next = match &trigger {
            Trigger::Time { schedule, .. } => {
                let clock = self.store.read_clock().await.unwrap();
                schedule.next_after(clock).map(|fire| fire.at)
            }
            Trigger::Event { .. } | Trigger::Task => None,
        };
        let definition = JobDefinition { trigger, enabled: true, spec };
        let created =
            self.store.create_job("test", &name.parse().unwrap(), &definition, next).await;
        let JobCreateResult::Created(job) = created.unwrap() else {
            panic!("the job name {name} is taken")
        };
        self.wakeups.wake_all();
        *job
    }

    pub(crate) async fn create_every_job(&self, name: &str, value: &str, work: &WorkSpec) -> JobId {
        self.create_job(name, every_trigger(value, None), spec(work)).await.id
    }

    pub(crate) async fn create_task_job(&self, name: &str, work: &WorkSpec) -> Job {
        self.create_job(name, Trigger::Task, spec(work)).await
    }

    pub(crate) async fn submit(&self, job: &Job, args: Option<Value>) -> RunId {
        let args = args.map(|args| args.to_string());
        let run = NewRun { args, ..NewRun::task(&job.newest) };
        let created = self.store.create_or_find_runs(Writer::Api, &[run]).await.unwrap();
        self.wakeups.wake_all();
        created[0].run
    }

    /// Takes the write lock of the database in another process, so that the node cannot write.
    pub(crate) fn lock_database(&self) -> DatabaseLock {
        let script = "import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
db.execute('begin immediate')
print('held', flush=True)
sys.stdin.read()";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(self.dir.join("tasuki.db"));
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.expect("python3 is not installed: run ./test, which installs it");
        let mut locked = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut locked).unwrap();
        DatabaseLock(child)
    }

    /// Waits until a run has ended.
    pub(crate) async fn wait_until_ended(&self, run: RunId) -> Run {
        self.wait_until(&format!("run {run} has ended"), async || {
            let found = self.store.find_run(run).await.unwrap().unwrap();
            found.state.is_ended().then_some(found)
        })
        .await
    }

    /// Waits until a job has at least `count` runs in states that match, and returns them, oldest first.
    pub(crate) async fn wait_for_runs(
        &self,
        job: JobId,
        count: usize,
        matches_state: impl Fn(RunState) -> bool,
    ) -> Vec<Run> {
        let filter = RunFilter { job: Some(job), ..RunFilter::default() };
        self.wait_until(&format!("{count} runs of job {job}"), async || {
            let page = self.store.list_runs(&filter, None, 200).await.unwrap();
            let mut runs = page.runs;
            runs.retain(|run| matches_state(run.state));
            runs.sort_by_key(|run| run.id);
            (runs.len() >= count).then_some(runs)
        })
        .await
    }

    /// Polls until `check` returns a value.
    pub(crate) async fn wait_until<T>(
        &self,
        condition: &str,
        check: impl AsyncFn() -> Option<T>,
    ) -> T {
        wait_until(TIMEOUT, condition, check).await
    }

    pub(crate) async fn read_log(&self, run: RunId) -> Vec<String> {
        let attempt = self.store.find_run(run).await.unwrap().unwrap().counters.attempt_no;
        let mut lines = Vec::new();
        while let Some(page) =
            self.store.read_log(run, attempt, lines.len() as i64, 1_000).await.unwrap()
            && !page.lines.is_empty()
        {
            lines.extend(page.lines.into_iter().map(|line| line.text));
        }
        lines
    }

    /// Checks the database with the doctor, and removes the directory.
    pub(crate) async fn finish(self) {
        let report = self.store.check_invariants(jiff::Timestamp::now).await.unwrap();
        let findings: Vec<String> =
            report.findings().map(|(check, finding)| format!("{check}: {finding:?}")).collect();
        assert!(report.is_clean(), "{}", findings.join("\n"));
        self.store.close().await;
        std::fs::remove_dir_all(&self.dir).unwrap();
    }
}

/// Unwraps a change of a job that must have been applied.
pub(crate) fn expect_applied(change: Result<JobChangeResult, Error>) -> Job {
    match change.unwrap() {
        JobChangeResult::Applied { job, .. } => job,
        JobChangeResult::Lost(now) => panic!("lost to {now:?}"),
    }
}

pub(crate) fn every_trigger(value: &str, misfire: Option<MisfirePolicy>) -> Trigger {
    let dst = DstRuleOverrides::default();
    let schedule = Schedule::parse(ScheduleKind::Every, value, "UTC", dst).unwrap();
    Trigger::Time { schedule, misfire }
}

/// Polls until `check` returns a value, and panics after `timeout`.
pub(crate) async fn wait_until<T>(
    timeout: Duration,
    condition: &str,
    mut check: impl AsyncFnMut() -> Option<T>,
) -> T {
    let found = async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    match tokio::time::timeout(timeout, found).await {
        Ok(found) => found,
        Err(_) => panic!("waited in vain until {condition}"),
    }
}
