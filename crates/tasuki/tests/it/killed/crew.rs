//! Processes with a node each. They are killed and started again, and none outlives its crew.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tasuki::spawner::boottime;
use tasuki::{Client, Context, Job};
use tasuki_core::RunId;

const TOLD: &str = "TASUKI_TEST_KILLED";
pub(super) const JOB: &str = "work";

/// What a run is given.
#[derive(Serialize, Deserialize)]
pub(super) struct Task {
    /// How long it takes, in milliseconds.
    pub(super) takes: u64,
}

/// What is run as a process of its own: a node, until it is killed or the crew lets go of its standard input.
#[test]
fn a_node_in_a_process_of_its_own() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let told: Vec<&str> = told.lines().collect();
    let [url, name, record] = told[..] else { panic!("{told:?}") };
    let record = Arc::new(Record::new(Path::new(record)));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(url).await.unwrap();
        let work = move |task: Task, context: Context| work(task, context, Arc::clone(&record));
        let job = Job::task(JOB)
            .allow_stale_reentry(true)
            .max_retries(1_000)
            .backoff(Duration::from_millis(50), Duration::from_millis(100));
        let node = client.node(name).unwrap().handler(JOB, work).job(job).start().await.unwrap();
        let let_go = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
        tokio::select! {
            _ = let_go => {}
            why = node.ended() => panic!("{name} cannot go on: {why}"),
        }
        node.stop().await;
    });
}

async fn work(task: Task, context: Context, record: Arc<Record>) -> Result<(), tasuki::TaskError> {
    let execution = Execution { record, run: context.run(), attempt: context.attempt_no() };
    execution.tell("start");
    tokio::time::sleep(Duration::from_millis(task.takes)).await;
    execution.tell("end");
    Ok(())
}

/// What one process did, told outside of the database.
struct Record(File);

impl Record {
    fn new(path: &Path) -> Self {
        Self(File::options().append(true).create_new(true).open(path).unwrap())
    }
}

struct Execution {
    record: Arc<Record>,
    run: RunId,
    attempt: u32,
}

impl Execution {
    /// In one write: a line is there whole, or its process was killed over it.
    fn tell(&self, what: &str) {
        let line = format!("{what} {} {} {}\n", self.run, self.attempt, boottime());
        (&self.record.0).write_all(line.as_bytes()).unwrap();
    }
}

/// One process, from its start to its end.
pub(super) struct Life {
    pub(super) node: String,
    pub(super) pid: u32,
    pub(super) record: PathBuf,
    /// When it was certainly dead, by the clock of the records; `None`: it was not killed.
    pub(super) died: Option<u64>,
    child: Child,
}

pub(super) struct Crew {
    url: String,
    folder: PathBuf,
    /// All that ever lived; the last one of each node is up.
    lives: Vec<Life>,
    up: Vec<usize>,
}

impl Crew {
    pub(super) fn new(url: &str, size: usize) -> Self {
        let folder = std::env::temp_dir().join(format!("tasuki_killed_{}", std::process::id()));
        // A test that failed may have left one, and its process number may come again.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut crew = Self { url: url.to_owned(), folder, lives: Vec::new(), up: Vec::new() };
        for number in 0..size {
            let life = crew.start(format!("node-{number}"));
            crew.up.push(life);
        }
        crew
    }

    fn start(&mut self, node: String) -> usize {
        let life = self.lives.len();
        let record = self.folder.join(life.to_string());
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["killed::crew::a_node_in_a_process_of_its_own", "--exact", "--nocapture"])
            .env(TOLD, format!("{}\n{node}\n{}", self.url, record.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.lives.push(Life { node, pid: child.id(), record, died: None, child });
        life
    }

    /// Kills one, in turn, and starts it again.
    pub(super) fn kill(&mut self, turn: usize) {
        let place = turn % self.up.len();
        let life = &mut self.lives[self.up[place]];
        assert_eq!(life.child.try_wait().unwrap(), None, "{} ended by itself", life.node);
        life.child.kill().unwrap();
        life.child.wait().unwrap();
        life.died = Some(boottime());
        let node = life.node.clone();
        self.up[place] = self.start(node);
    }

    /// Those who are up stop in order.
    pub(super) async fn stop(&mut self) -> &[Life] {
        for &life in &self.up {
            let life = &mut self.lives[life];
            drop(life.child.stdin.take());
            let status = super::until(super::ENOUGH, "a node has stopped", async || {
                life.child.try_wait().unwrap()
            });
            assert!(status.await.success(), "{} did not stop in order", life.node);
        }
        &self.lives
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for life in &mut self.lives {
            // Most of them are gone already, which is what is wanted.
            let _ = life.child.kill();
            let _ = life.child.wait();
        }
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}
