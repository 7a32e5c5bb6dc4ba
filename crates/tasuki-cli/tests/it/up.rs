//! `tasuki up` as a process of its own.

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
use tasuki_store::{LogPage, SettingsChange, Store};

const ENOUGH: Duration = Duration::from_secs(60);
/// How long between two looks at a condition.
const LOOK: Duration = Duration::from_millis(5);

/// A data directory, and whatever runs on it.
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
}

/// A running `tasuki up`.
pub(crate) struct Up {
    pub(crate) child: Child,
}

pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < ENOUGH, "waited in vain until {what}");
        std::thread::sleep(LOOK);
    }
}

fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

impl Place {
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

    /// Makes the database and gives it settings that suit a test.
    pub(crate) fn settings(&self, changes: &[(&str, &str)]) {
        fs::create_dir_all(self.data()).unwrap();
        in_runtime(async {
            let store = Store::open(&self.url(), 1).await.unwrap();
            store.migrate().await.unwrap();
            let seen = store.settings().await.unwrap().version;
            let changed = store.change_settings("test", seen, changes).await.unwrap();
            assert!(matches!(changed, SettingsChange::Applied(_)), "{changed:?}");
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

    /// Runs a command of the command line and expects it to succeed.
    pub(crate) fn tasuki(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.tasuki(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Starts a node and waits until it can be asked.
    pub(crate) fn up(&self) -> Up {
        self.up_by(self.up_command("127.0.0.1:0"))
    }

    /// The command that does so.
    pub(crate) fn up_command(&self, address: &str) -> Command {
        self.command(&["up", "--listen", address])
    }

    /// The same by a command like that.
    pub(crate) fn up_by(&self, mut command: Command) -> Up {
        let _ = fs::remove_file(self.data().join("api.json"));
        let log = fs::File::options().create(true).append(true).open(self.folder.join("up.log"));
        command.stderr(log.unwrap());
        self.started(command)
    }

    /// The same, and nobody hears what it says.
    pub(crate) fn up_unheard(&self, mut command: Command) -> Up {
        let _ = fs::remove_file(self.data().join("api.json"));
        command.stderr(Stdio::piped());
        self.started(command)
    }

    fn started(&self, mut command: Command) -> Up {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut up = Up { child: command.spawn().unwrap() };
        drop(up.child.stderr.take());
        until("tasuki is up", || {
            if let Some(ended) = up.child.try_wait().unwrap() {
                panic!("it ended with {ended}: {}", self.up_told());
            }
            self.data().join("api.json").exists().then_some(())
        });
        up
    }

    /// Where the node that is up is served.
    fn address(&self) -> String {
        let api = fs::read_to_string(self.data().join("api.json")).unwrap();
        let api: Value = serde_json::from_str(&api).unwrap();
        api["url"].as_str().unwrap().trim_start_matches("http://").to_owned()
    }

    /// What nodes told on stderr.
    fn up_told(&self) -> String {
        fs::read_to_string(self.folder.join("up.log")).unwrap_or_default()
    }

    /// What the first attempt of a run printed, as the database has it.
    pub(crate) fn log(&self, run: i64) -> LogPage {
        in_runtime(async {
            let store = Store::open(&self.url(), 1).await.unwrap();
            let page = store.read_log(RunId(run), 1, 0, 1_000).await.unwrap();
            store.close().await;
            page.unwrap()
        })
    }

    pub(crate) fn doctor_is_content(&self) {
        self.tasuki(&["doctor"]);
    }

    pub(crate) fn end(self) {
        fs::remove_dir_all(&self.folder).unwrap();
    }

    /// The processes of jobs of this data directory.
    pub(crate) fn jobs_left(&self) -> Vec<i32> {
        let id = fs::read_to_string(self.data().join("id")).unwrap();
        processes_with("TASUKI_HOME_ID", id.split(' ').next().unwrap())
    }
}

impl Up {
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

    /// Asks it to stop, and waits until it has.
    pub(crate) fn stop(self) {
        self.signal(Signal::SIGTERM);
        self.ended();
    }

    /// Waits until it has stopped in order.
    fn ended(mut self) {
        let ended = self.child.wait().unwrap();
        assert!(ended.success(), "it stopped with {ended}");
    }

    /// The most memory it ever used, in bytes.
    pub(crate) fn most_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // Only where a test failed: nothing is left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes that were started with this variable.
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

fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The README's first five minutes.
#[test]
fn a_newcomer_has_a_working_scheduler() {
    let place = Place::new();
    let up = place.up();
    let told = place.tasuki(&["job", "create", "hello", "--every", "1s", "--", "echo", "hi"]);
    assert!(told.starts_with("created hello: every second"), "{told}");
    let run = until("a run succeeded", || {
        let runs = place.json(&["run", "list", "--job", "hello", "--state", "SUCCEEDED"]);
        runs["items"].as_array()?.first()?["id"].as_i64()
    });
    assert_eq!(place.tasuki(&["run", "logs", &run.to_string()]), "hi\n");
    up.stop();
    place.doctor_is_content();
    place.end();
}

#[test]
fn what_cannot_work_is_told_in_words() {
    let place = Place::new();
    let up = place.up();
    let second = place.command(&["up", "--listen", "127.0.0.1:0"]).output().unwrap();
    assert!(refused(&second).contains("another tasuki runs on"), "{second:?}");
    let taken = place.address();
    let other = place.folder.join("other");
    let port = place
        .command(&["up", "--listen", &taken, "--data", other.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(refused(&port).contains("cannot serve on"), "{port:?}");
    up.stop();

    let corrupt = place.folder.join("corrupt");
    fs::create_dir_all(&corrupt).unwrap();
    fs::write(corrupt.join("tasuki.db"), vec![b'x'; 8192]).unwrap();
    let broken = start(&place, &corrupt);
    assert!(refused(&broken).contains("not a database"), "{broken:?}");

    let file = place.folder.join("file");
    fs::write(&file, "").unwrap();
    let no_folder = start(&place, &file.join("data"));
    assert!(refused(&no_folder).contains("error: "), "{no_folder:?}");
    let nowhere = place
        .command(&["up", "--listen", "127.0.0.1:0", "--database-url", "postgres://127.0.0.1:1/x"])
        .output()
        .unwrap();
    assert!(refused(&nowhere).contains("cannot open"), "{nowhere:?}");
    place.end();
}

fn start(place: &Place, data: &Path) -> Output {
    let data = data.to_str().unwrap();
    place.command(&["up", "--listen", "127.0.0.1:0", "--data", data]).output().unwrap()
}

/// The files with the token are for their owner alone.
#[test]
fn secrets_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    let up = place.up();
    for name in ["token", "api.json"] {
        let mode = fs::metadata(place.data().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let mode = fs::metadata(place.data()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    up.stop();
    place.end();
}

/// A token is in its file before it counts: one that cannot be kept is never made, and what a node that
/// was killed in between left behind is of no use to anybody.
#[test]
fn no_token_is_left_that_nobody_has() {
    let place = Place::new();
    let tokens = || {
        in_runtime(async {
            let store = Store::open(&place.url(), 1).await.unwrap();
            let tokens = store.tokens().await.unwrap();
            store.close().await;
            tokens.len()
        })
    };
    let in_the_way = place.data().join("token");
    fs::create_dir_all(in_the_way.join("x")).unwrap();
    let refused_to = place.command(&["up", "--listen", "127.0.0.1:0"]).output().unwrap();
    assert!(refused(&refused_to).contains("token: "), "{refused_to:?}");
    assert_eq!(tokens(), 0);
    fs::remove_dir_all(&in_the_way).unwrap();

    let unknown = format!("tsk_{}", "0".repeat(64));
    fs::write(&in_the_way, &unknown).unwrap();
    let up = place.up();
    assert_ne!(fs::read_to_string(&in_the_way).unwrap(), unknown);
    assert_eq!(place.json(&["token", "list"])["items"].as_array().unwrap().len(), 1);
    up.stop();
    // The one that is good is used again.
    let up = place.up();
    up.stop();
    assert_eq!(tokens(), 1);
    place.end();
}

/// Whoever opens the API to other machines is told what that means; the command line finds it anyway.
#[test]
fn an_api_that_others_can_reach_is_told_of() {
    let place = Place::new();
    let up = place.up();
    up.stop();
    assert!(!place.up_told().contains("warning"), "{}", place.up_told());
    let up = place.up_by(place.up_command("0.0.0.0:0"));
    assert!(place.up_told().contains("can be reached from other machines"), "{}", place.up_told());
    assert!(place.tasuki(&["job", "list"]).starts_with("there are no jobs"));
    up.stop();
    place.end();
}

/// Half of a request does not hold up Ctrl-C.
#[test]
fn a_client_that_stalls_does_not_hold_up_a_stop() {
    let place = Place::new();
    let up = place.up();
    let mut stalled = std::net::TcpStream::connect(place.address()).unwrap();
    stalled.write_all(b"GET /api/v1/jobs HTTP/1.1\r\nauthor").unwrap();
    let begun = Instant::now();
    up.stop();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    place.end();
}

/// The doctor looks at the data directory that it is told of, by a flag or as every command is.
#[test]
fn the_doctor_finds_the_database_of_a_data_directory() {
    let place = Place::new();
    place.settings(&[("leader_tick", "500ms")]);
    let data = place.data();
    let doctor =
        |arguments: &[&str]| place.command(arguments).env_remove("TASUKI_DATA").output().unwrap();
    let content = doctor(&["doctor", "--data", data.to_str().unwrap()]);
    assert!(content.status.success(), "{content:?}");
    let nowhere = doctor(&["doctor"]);
    assert!(refused(&nowhere).contains("tasuki-data/tasuki.db"), "{nowhere:?}");
    fs::rename(&data, place.folder.join("tasuki-data")).unwrap();
    assert!(doctor(&["doctor"]).status.success());
    place.end();
}

/// However many tell it at once, an event under one key is one event, and makes one run.
#[test]
fn one_key_told_by_sixteen_at_once_makes_one_run() {
    let place = Place::new();
    let up = place.up();
    place.tasuki(&["job", "create", "ship", "--on-event", "order.paid", "--", "true"]);
    let emit = ["event", "emit", "order.paid", "--key", "order-7", "--json"];
    let told: Vec<Child> = (0..16)
        .map(|_| {
            place.command(&emit).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut made = 0;
    for child in told {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["id"], 1);
        made += u32::from(answer["existed"] == false);
    }
    assert_eq!(made, 1);
    until("the event was taken", || {
        (!place.json(&["event", "show", "1"])["processed_at"].is_null()).then_some(())
    });
    let runs = place.json(&["run", "list", "--planned"]);
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "{runs}");
    assert_eq!(place.json(&["event", "list"])["items"].as_array().unwrap().len(), 1);
    up.stop();
    place.doctor_is_content();
    place.end();
}

/// What a job says of a plain exit code decides whether there is another try.
#[test]
fn an_exit_code_that_is_named_is_tried_again() {
    let place = Place::new();
    let up = place.up();
    // 3 is called NOT_FOUND, after which no other try would help: but 3 itself is named.
    let script = "test $TASUKI_ATTEMPT = 2 || exit $0";
    for (job, exit) in [("named", "3"), ("other", "4")] {
        let policy = ["--retries", "1", "--backoff", "1s", "--retry-on", "3", "--exit-code"];
        let codes = ["3=NOT_FOUND", "--exit-code", "4=NOT_FOUND", "--", "sh", "-c", script, exit];
        place.tasuki(&[&["job", "create", job][..], &policy[..], &codes[..]].concat());
    }
    let ended = |job| {
        let output = place.command(&["job", "trigger", job, "--wait", "--json"]).output().unwrap();
        let run: Value = serde_json::from_slice(&output.stdout).unwrap();
        (run["state"].as_str().unwrap().to_owned(), run["tries"].as_i64().unwrap())
    };
    assert_eq!(ended("named"), ("SUCCEEDED".to_owned(), 2));
    assert_eq!(ended("other"), ("FAILED".to_owned(), 1));
    up.stop();
    place.end();
}

/// Ctrl-C lets a run end, and whoever follows it hears the last line.
#[test]
fn a_run_that_ends_while_its_node_stops_is_followed_to_its_end() {
    let place = Place::new();
    let up = place.up();
    let go_on = place.folder.join("go on");
    let script = "echo one; until test -e \"$0\"; do sleep 0.01; done; echo two";
    let command = ["--", "sh", "-c", script, go_on.to_str().unwrap()];
    place.tasuki(&[&["job", "create", "slow"][..], &command[..]].concat());
    let run = place.json(&["job", "trigger", "slow"])["id"].to_string();
    let mut follow = place.command(&["run", "logs", "-f", &run]);
    let mut follow = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 4];
    follow.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    up.signal(Signal::SIGTERM);
    until("it stops", || place.up_told().contains("stopping: ").then_some(()));
    fs::write(&go_on, "").unwrap();
    let told = follow.wait_with_output().unwrap();
    assert_eq!((told.status.code(), &*told.stdout), (Some(0), &b"two\n"[..]), "{told:?}");
    up.ended();
    place.end();
}
