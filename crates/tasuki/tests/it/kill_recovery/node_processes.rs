//! Processes with one node each. The test kills and restarts them; all of them end with [`NodeProcesses`].

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tasuki::spawner::boottime;
use tasuki::{Client, Context, JobDeclaration};
use tasuki_core::RunId;

const NODE_ARGS_ENV: &str = "TASUKI_TEST_KILLED";
pub(super) const JOB: &str = "work";

/// Arguments of a run.
#[derive(Serialize, Deserialize)]
pub(super) struct Task {
    /// How long it takes, in milliseconds.
    pub(super) takes_ms: u64,
}

/// Not a test of its own: [`NodeProcesses`] runs this test binary again as a node process, with [`NODE_ARGS_ENV`] set.
/// The node runs until it is killed or its standard input is closed.
#[test]
fn node_process() {
    let Ok(args) = std::env::var(NODE_ARGS_ENV) else { return };
    let args: Vec<&str> = args.lines().collect();
    let [url, name, trace] = args[..] else { panic!("{args:?}") };
    let trace = Arc::new(TraceFile::new(Path::new(trace)));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(url).await.unwrap();
        let work = move |task: Task, context: Context| work(task, context, Arc::clone(&trace));
        let job = JobDeclaration::task(JOB)
            .allow_stale_reentry(true)
            .max_retries(1_000)
            .backoff(Duration::from_millis(50), Duration::from_millis(100));
        let node =
            client.node_builder(name).unwrap().handler(JOB, work).job(job).start().await.unwrap();
        let stdin_closed = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
        tokio::select! {
            _ = stdin_closed => {}
            why = node.wait_until_ended() => panic!("{name} cannot go on: {why}"),
        }
        node.stop().await;
    });
}

async fn work(
    task: Task,
    context: Context,
    trace: Arc<TraceFile>,
) -> Result<(), tasuki::TaskError> {
    let execution = Execution { trace, run: context.run_id(), attempt: context.attempt_no() };
    execution.record("start");
    tokio::time::sleep(Duration::from_millis(task.takes_ms)).await;
    execution.record("end");
    Ok(())
}

/// File in which a process records the start and the end of its calls, independently of the database.
struct TraceFile(File);

impl TraceFile {
    fn new(path: &Path) -> Self {
        Self(File::options().append(true).create_new(true).open(path).unwrap())
    }
}

struct Execution {
    trace: Arc<TraceFile>,
    run: RunId,
    attempt: u32,
}

impl Execution {
    /// Appends a line with a single write: the line is complete unless the process was killed during the write.
    fn record(&self, event: &str) {
        let line = format!("{event} {} {} {}\n", self.run, self.attempt, boottime());
        (&self.trace.0).write_all(line.as_bytes()).unwrap();
    }
}

/// One node process, running or ended.
pub(super) struct NodeProcess {
    pub(super) node: String,
    pub(super) pid: u32,
    pub(super) trace: PathBuf,
    /// When it was certainly dead, by the clock of the traces. `None`: it was not killed.
    pub(super) dead_at: Option<u64>,
    child: Child,
}

pub(super) struct NodeProcesses {
    url: String,
    dir: PathBuf,
    /// All processes that were ever started. The last process of each node is running.
    processes: Vec<NodeProcess>,
    running: Vec<usize>,
}

impl NodeProcesses {
    pub(super) fn new(url: &str, size: usize) -> Self {
        let dir = std::env::temp_dir().join(format!("tasuki_killed_{}", std::process::id()));
        // A failed test may have left the directory, and its process id may be used again.
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let mut nodes =
            Self { url: url.to_owned(), dir, processes: Vec::new(), running: Vec::new() };
        for number in 0..size {
            let process = nodes.start(format!("node-{number}"));
            nodes.running.push(process);
        }
        nodes
    }

    fn start(&mut self, node: String) -> usize {
        let process = self.processes.len();
        let trace = self.dir.join(process.to_string());
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["kill_recovery::node_processes::node_process", "--exact", "--nocapture"])
            .env(NODE_ARGS_ENV, format!("{}\n{node}\n{}", self.url, trace.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.processes.push(NodeProcess { node, pid: child.id(), trace, dead_at: None, child });
        process
    }

    /// Kills the running process whose turn it is, and starts its node again.
    pub(super) fn kill_and_restart(&mut self, turn: usize) {
        let position = turn % self.running.len();
        let process = &mut self.processes[self.running[position]];
        assert_eq!(
            process.child.try_wait().unwrap(),
            None,
            "{} ended without being killed",
            process.node
        );
        process.child.kill().unwrap();
        process.child.wait().unwrap();
        process.dead_at = Some(boottime());
        let node = process.node.clone();
        self.running[position] = self.start(node);
    }

    /// Stops the running processes gracefully. Returns all processes.
    pub(super) async fn stop(&mut self) -> &[NodeProcess] {
        for &process in &self.running {
            let process = &mut self.processes[process];
            drop(process.child.stdin.take());
            let status = super::wait_until(super::TIMEOUT, "a node has stopped", async || {
                process.child.try_wait().unwrap()
            });
            assert!(status.await.success(), "{} did not stop gracefully", process.node);
        }
        &self.processes
    }
}

impl Drop for NodeProcesses {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // Most of them have ended already; an error is ignored.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}
