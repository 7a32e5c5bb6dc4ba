//! `tasuki up` as a separate process, and the helpers for tests with running nodes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tasuki_core::RunId;
use tasuki_store::{LogPage, SettingsChangeResult, Store};

const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Polling interval of [`wait_until`].
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A temporary directory with a data directory and the log of its nodes.
pub(crate) struct TestDirectory {
    pub(crate) folder: PathBuf,
}

/// A running `tasuki up`.
pub(crate) struct RunningNode {
    pub(crate) child: Child,
}

pub(crate) fn wait_until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(started.elapsed() < WAIT_TIMEOUT, "timed out while waiting until {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

impl TestDirectory {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tasuki_up_{}_{count}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self { folder }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.data().join("tasuki.db").display())
    }

    /// Creates the database and changes settings.
    pub(crate) fn settings(&self, changes: &[(&str, &str)]) {
        fs::create_dir_all(self.data()).unwrap();
        in_runtime(async {
            let store = Store::open(&self.url(), 1).await.unwrap();
            store.migrate().await.unwrap();
            let seen = store.load_settings().await.unwrap().version;
            let changed = store.change_settings("test", seen, changes).await.unwrap();
            assert!(matches!(changed, SettingsChangeResult::Applied(_)), "{changed:?}");
            store.close().await;
        });
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tasuki"));
        command.args(arguments).env("TASUKI_DATA", self.data()).current_dir(&self.folder);
        for variable in ["TASUKI_URL", "TASUKI_TOKEN", "TASUKI_DATABASE_URL", "TASUKI_LISTEN"] {
            command.env_remove(variable);
        }
        command
    }

    /// Runs a command that must succeed and returns its stdout.
    pub(crate) fn tasuki(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.tasuki(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Starts a node and waits until its API is ready.
    pub(crate) fn start(&self) -> RunningNode {
        self.start_with(self.up_command("127.0.0.1:0"))
    }

    /// The command that starts a node.
    pub(crate) fn up_command(&self, address: &str) -> Command {
        self.command(&["up", "--listen", address])
    }

    /// Starts a node with a command of [`Self::up_command`].
    pub(crate) fn start_with(&self, mut command: Command) -> RunningNode {
        let _ = fs::remove_file(self.data().join("api.json"));
        let log = fs::File::options().create(true).append(true).open(self.folder.join("up.log"));
        command.stderr(log.unwrap());
        self.wait_until_started(command)
    }

    /// Starts a node whose stderr is a closed pipe.
    pub(crate) fn start_with_closed_stderr(&self, mut command: Command) -> RunningNode {
        let _ = fs::remove_file(self.data().join("api.json"));
        command.stderr(Stdio::piped());
        self.wait_until_started(command)
    }

    fn wait_until_started(&self, mut command: Command) -> RunningNode {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut up = RunningNode { child: command.spawn().unwrap() };
        drop(up.child.stderr.take());
        wait_until("tasuki is up", || {
            if let Some(ended) = up.child.try_wait().unwrap() {
                panic!("the node ended with {ended}: {}", self.log_of_nodes());
            }
            self.data().join("api.json").exists().then_some(())
        });
        up
    }

    /// The API address of the running node.
    fn address(&self) -> String {
        let api = fs::read_to_string(self.data().join("api.json")).unwrap();
        let api: Value = serde_json::from_str(&api).unwrap();
        api["url"].as_str().unwrap().trim_start_matches("http://").to_owned()
    }

    /// The stderr output of all nodes so far.
    fn log_of_nodes(&self) -> String {
        fs::read_to_string(self.folder.join("up.log")).unwrap_or_default()
    }

    /// The stored output of the first attempt of a run.
    pub(crate) fn read_log(&self, run: i64) -> LogPage {
        in_runtime(async {
            let store = Store::open(&self.url(), 1).await.unwrap();
            let page = store.read_log(RunId(run), 1, 0, 1_000).await.unwrap();
            store.close().await;
            page.unwrap()
        })
    }

    pub(crate) fn expect_healthy_database(&self) {
        self.tasuki(&["doctor"]);
    }

    pub(crate) fn remove(self) {
        fs::remove_dir_all(&self.folder).unwrap();
    }

    /// The running job processes of this data directory.
    pub(crate) fn list_job_processes(&self) -> Vec<i32> {
        let id = fs::read_to_string(self.data().join("id")).unwrap();
        processes_with("TASUKI_HOME_ID", id.split(' ').next().unwrap())
    }
}

impl RunningNode {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub(crate) fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        let ended = self.child.wait().unwrap();
        assert_eq!(ended.signal(), Some(9));
    }

    /// Sends SIGTERM and waits until the node has stopped.
    pub(crate) fn stop(self) {
        self.signal(Signal::SIGTERM);
        self.wait_until_stopped();
    }

    /// Waits until the node has stopped with success.
    fn wait_until_stopped(mut self) {
        let ended = self.child.wait().unwrap();
        assert!(ended.success(), "the node stopped with {ended}");
    }

    /// The maximum resident memory of the node so far, in bytes.
    pub(crate) fn max_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        // After a failed test, so that no process is left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes with this environment variable.
pub(crate) fn processes_with(name: &str, value: &str) -> Vec<i32> {
    let wanted = format!("{name}={value}");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let mut environment = Vec::new();
        let file = fs::File::open(format!("/proc/{pid}/environ"));
        let read = file.and_then(|mut file| file.read_to_end(&mut environment));
        read.is_ok() && environment.split(|&b| b == 0).any(|word| word == wanted.as_bytes())
    })
    .collect()
}

fn refusal_text(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The first steps of the README.
#[test]
fn a_newcomer_has_a_working_scheduler() {
    let directory = TestDirectory::new();
    let up = directory.start();
    let output = directory.tasuki(&["job", "create", "hello", "--every", "1s", "--", "echo", "hi"]);
    assert!(output.starts_with("created hello: every second"), "{output}");
    let run = wait_until("a run succeeded", || {
        let runs = directory.json(&["run", "list", "--job", "hello", "--state", "SUCCEEDED"]);
        runs["items"].as_array()?.first()?["id"].as_i64()
    });
    assert_eq!(directory.tasuki(&["run", "logs", &run.to_string()]), "hi\n");
    up.stop();
    directory.expect_healthy_database();
    directory.remove();
}

#[test]
fn start_up_errors_are_explained() {
    let directory = TestDirectory::new();
    let up = directory.start();
    let second = directory.command(&["up", "--listen", "127.0.0.1:0"]).output().unwrap();
    assert!(refusal_text(&second).contains("another tasuki process uses"), "{second:?}");
    let taken = directory.address();
    let other = directory.folder.join("other");
    let port = directory
        .command(&["up", "--listen", &taken, "--data", other.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(refusal_text(&port).contains("cannot serve on"), "{port:?}");
    up.stop();

    let corrupt = directory.folder.join("corrupt");
    fs::create_dir_all(&corrupt).unwrap();
    fs::write(corrupt.join("tasuki.db"), vec![b'x'; 8192]).unwrap();
    let broken = run_up(&directory, &corrupt);
    assert!(refusal_text(&broken).contains("not a database"), "{broken:?}");

    let file = directory.folder.join("file");
    fs::write(&file, "").unwrap();
    let no_folder = run_up(&directory, &file.join("data"));
    assert!(refusal_text(&no_folder).contains("error: "), "{no_folder:?}");
    let nowhere = directory
        .command(&["up", "--listen", "127.0.0.1:0", "--database-url", "postgres://127.0.0.1:1/x"])
        .output()
        .unwrap();
    assert!(refusal_text(&nowhere).contains("cannot open"), "{nowhere:?}");
    directory.remove();
}

fn run_up(directory: &TestDirectory, data: &Path) -> Output {
    let data = data.to_str().unwrap();
    directory.command(&["up", "--listen", "127.0.0.1:0", "--data", data]).output().unwrap()
}

/// Only their owner can read the files that contain the token.
#[test]
fn secrets_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = TestDirectory::new();
    let up = directory.start();
    for name in ["token", "api.json"] {
        let mode = fs::metadata(directory.data().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let mode = fs::metadata(directory.data()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    up.stop();
    directory.remove();
}

/// A token is written to its file before it is registered: if the file cannot be written, no token is created, and a file
/// that a killed node left contains no valid token.
#[test]
fn no_valid_token_exists_outside_its_file() {
    let directory = TestDirectory::new();
    let tokens = || {
        in_runtime(async {
            let store = Store::open(&directory.url(), 1).await.unwrap();
            let tokens = store.list_tokens().await.unwrap();
            store.close().await;
            tokens.len()
        })
    };
    let token_file = directory.data().join("token");
    fs::create_dir_all(token_file.join("x")).unwrap();
    let refused_to = directory.command(&["up", "--listen", "127.0.0.1:0"]).output().unwrap();
    assert!(refusal_text(&refused_to).contains("token: "), "{refused_to:?}");
    assert_eq!(tokens(), 0);
    fs::remove_dir_all(&token_file).unwrap();

    let unknown = format!("tsk_{}", "0".repeat(64));
    fs::write(&token_file, &unknown).unwrap();
    let up = directory.start();
    assert_ne!(fs::read_to_string(&token_file).unwrap(), unknown);
    assert_eq!(directory.json(&["token", "list"])["items"].as_array().unwrap().len(), 1);
    up.stop();
    // A valid token is used again.
    let up = directory.start();
    up.stop();
    assert_eq!(tokens(), 1);
    directory.remove();
}

/// An API that other machines can reach causes a warning; commands on this machine still find it.
#[test]
fn an_api_on_a_public_address_causes_a_warning() {
    let directory = TestDirectory::new();
    let up = directory.start();
    up.stop();
    assert!(!directory.log_of_nodes().contains("warning"), "{}", directory.log_of_nodes());
    let up = directory.start_with(directory.up_command("0.0.0.0:0"));
    assert!(
        directory.log_of_nodes().contains("can be reached from other machines"),
        "{}",
        directory.log_of_nodes()
    );
    assert!(directory.tasuki(&["job", "list"]).starts_with("there are no jobs"));
    up.stop();
    directory.remove();
}

/// An incomplete request does not delay the stop.
#[test]
fn a_stalled_client_does_not_delay_the_stop() {
    let directory = TestDirectory::new();
    let up = directory.start();
    let mut stalled = std::net::TcpStream::connect(directory.address()).unwrap();
    stalled.write_all(b"GET /api/v1/jobs HTTP/1.1\r\nauthor").unwrap();
    let started = Instant::now();
    up.stop();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    directory.remove();
}

/// The doctor checks the database of the data directory of `--data`, `TASUKI_DATA` or the default.
#[test]
fn the_doctor_finds_the_database_of_a_data_directory() {
    let directory = TestDirectory::new();
    directory.settings(&[("leader_tick", "500ms")]);
    let data = directory.data();
    let doctor = |arguments: &[&str]| {
        directory.command(arguments).env_remove("TASUKI_DATA").output().unwrap()
    };
    let content = doctor(&["doctor", "--data", data.to_str().unwrap()]);
    assert!(content.status.success(), "{content:?}");
    let nowhere = doctor(&["doctor"]);
    assert!(refusal_text(&nowhere).contains("tasuki-data/tasuki.db"), "{nowhere:?}");
    fs::rename(&data, directory.folder.join("tasuki-data")).unwrap();
    assert!(doctor(&["doctor"]).status.success());
    directory.remove();
}

/// Sixteen concurrent emits with the same key create one event and one run.
#[test]
fn concurrent_events_with_one_key_create_one_run() {
    let directory = TestDirectory::new();
    let up = directory.start();
    directory.tasuki(&["job", "create", "ship", "--on-event", "order.paid", "--", "true"]);
    let emit = ["event", "emit", "order.paid", "--key", "order-7", "--json"];
    let children: Vec<Child> = (0..16)
        .map(|_| {
            directory.command(&emit).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut created = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["id"], 1);
        created += u32::from(answer["existed"] == false);
    }
    assert_eq!(created, 1);
    wait_until("the event is processed", || {
        (!directory.json(&["event", "show", "1"])["processed_at"].is_null()).then_some(())
    });
    let runs = directory.json(&["run", "list", "--planned"]);
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "{runs}");
    assert_eq!(directory.json(&["event", "list"])["items"].as_array().unwrap().len(), 1);
    up.stop();
    directory.expect_healthy_database();
    directory.remove();
}

/// An exit code in `--retry-on` is retried even if its error code is not retryable.
#[test]
fn a_named_exit_code_is_retried() {
    let directory = TestDirectory::new();
    let up = directory.start();
    // Exit code 3 maps to NOT_FOUND, which is not retryable, but 3 itself is in --retry-on.
    let script = "test $TASUKI_ATTEMPT = 2 || exit $0";
    for (job, exit) in [("named", "3"), ("other", "4")] {
        let policy = ["--retries", "1", "--backoff", "1s", "--retry-on", "3", "--exit-code"];
        let codes = ["3=NOT_FOUND", "--exit-code", "4=NOT_FOUND", "--", "sh", "-c", script, exit];
        directory.tasuki(&[&["job", "create", job][..], &policy[..], &codes[..]].concat());
    }
    let ended = |job| {
        let output =
            directory.command(&["job", "trigger", job, "--wait", "--json"]).output().unwrap();
        let run: Value = serde_json::from_slice(&output.stdout).unwrap();
        (run["state"].as_str().unwrap().to_owned(), run["tries"].as_i64().unwrap())
    };
    assert_eq!(ended("named"), ("SUCCEEDED".to_owned(), 2));
    assert_eq!(ended("other"), ("FAILED".to_owned(), 1));
    up.stop();
    directory.remove();
}

/// A node that stops waits for its run, and a follower receives the output to its end.
#[test]
fn a_run_that_ends_while_its_node_stops_is_followed_to_its_end() {
    let directory = TestDirectory::new();
    let up = directory.start();
    let go_on = directory.folder.join("go on");
    let script = "echo one; until test -e \"$0\"; do sleep 0.01; done; echo two";
    let command = ["--", "sh", "-c", script, go_on.to_str().unwrap()];
    directory.tasuki(&[&["job", "create", "slow"][..], &command[..]].concat());
    let run = directory.json(&["job", "trigger", "slow"])["id"].to_string();
    let mut follow = directory.command(&["run", "logs", "-f", &run]);
    let mut follow = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 4];
    follow.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    up.signal(Signal::SIGTERM);
    wait_until("the node is stopping", || {
        directory.log_of_nodes().contains("stopping: ").then_some(())
    });
    fs::write(&go_on, "").unwrap();
    let output = follow.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"two\n"[..]), "{output:?}");
    up.wait_until_stopped();
    directory.remove();
}
