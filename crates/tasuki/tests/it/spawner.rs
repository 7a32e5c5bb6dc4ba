//! Tests of the spawner process with real commands.

use std::fs;
use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use tasuki::spawner::{
    AttemptKey, LaunchRefusal, LaunchSpec, ProcessExit, ProcessOutput, SpawnerEvent, SpawnerHandle,
    SpawnerRequest, boottime,
};
use tasuki_core::exit::AttemptStopReason;

mod captured_output;

const SECOND: u64 = 1_000_000;
const RUN_AS_SPAWNER_ENV: &str = "TASUKI_TEST_SPAWNER";
const TIMEOUT: Duration = Duration::from_secs(30);

/// Not a test of its own: the fixture runs this test binary again as the spawner process, with
/// [`RUN_AS_SPAWNER_ENV`] set. Without the variable it only checks the clock.
#[test]
fn spawner_process() {
    if std::env::var_os(RUN_AS_SPAWNER_ENV).is_some() {
        let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        tasuki::spawner::run_spawner(&UnixStream::from(socket)).unwrap();
        std::process::exit(0);
    }
    assert!(boottime() > 0);
}

/// A spawner process, its temporary directory, and the events that it sent.
struct SpawnerFixture {
    handle: Option<SpawnerHandle>,
    events: Receiver<Option<SpawnerEvent>>,
    dir: PathBuf,
}

impl SpawnerFixture {
    /// Starts a spawner without cgroups, as on most machines.
    fn new() -> Self {
        Self::with_cgroups("off")
    }

    fn with_cgroups(cgroups: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("tasuki_spawner_{}_{count}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["spawner::spawner_process", "--exact"])
            .env(RUN_AS_SPAWNER_ENV, "1")
            .env("TASUKI_CGROUPS", cgroups)
            .stdout(Stdio::null());
        let (sender, events) = channel();
        let on_events = move |events: Option<Vec<SpawnerEvent>>| match events {
            Some(events) => events.into_iter().for_each(|event| drop(sender.send(Some(event)))),
            None => drop(sender.send(None)),
        };
        let handle = SpawnerHandle::start(command, on_events).unwrap();
        Self { handle: Some(handle), events, dir }
    }

    fn send(&self, request: &SpawnerRequest) {
        self.handle.as_ref().unwrap().send(request, Vec::new()).unwrap();
    }

    fn set_lease(&self, seconds: u64) {
        self.send(&SpawnerRequest::Lease {
            token: "t".to_owned(),
            until: boottime() + seconds * SECOND,
        });
    }

    /// Starts a shell script in the directory. Returns the reading end of its output pipe.
    fn start_script(&self, job: AttemptKey, script: &str) -> std::io::PipeReader {
        self.start_with(&self.script_spec(job, script))
    }

    /// Starts a shell script whose output the spawner captures.
    fn start_captured(&self, job: AttemptKey, script: &str) {
        let launch = LaunchSpec { capture_output: true, ..self.script_spec(job, script) };
        self.send(&SpawnerRequest::Start(launch));
    }

    fn script_spec(&self, job: AttemptKey, script: &str) -> LaunchSpec {
        LaunchSpec {
            key: job,
            token: "t".to_owned(),
            argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: vec![("PATH".to_owned(), std::env::var("PATH").unwrap())],
            work_dir: Some(self.dir.clone()),
            exit_record: Some(self.record_path(job)),
            ..LaunchSpec::default()
        }
    }

    fn start_with(&self, launch: &LaunchSpec) -> std::io::PipeReader {
        let (reader, writer) = std::io::pipe().unwrap();
        let files = vec![writer.try_clone().unwrap().into(), writer.into()];
        self.handle.as_ref().unwrap().send(&SpawnerRequest::Start(launch.clone()), files).unwrap();
        reader
    }

    fn record_path(&self, job: AttemptKey) -> PathBuf {
        self.dir.join(format!("{}.{}.json", job.run, job.attempt))
    }

    fn next_event(&self) -> Option<SpawnerEvent> {
        self.events.recv_timeout(TIMEOUT).unwrap()
    }

    fn expect_started(&self) -> u32 {
        match self.next_event() {
            Some(SpawnerEvent::Started { pid, .. }) => pid,
            other => panic!("{other:?}"),
        }
    }

    fn expect_exit(&self, job: AttemptKey) -> ProcessExit {
        match self.next_event() {
            Some(SpawnerEvent::Ended { key: ended, exit, .. }) if ended == job => exit,
            other => panic!("{other:?}"),
        }
    }

    /// Output that arrives together with the exit of the command.
    fn expect_exit_output(&self, job: AttemptKey) -> Option<ProcessOutput> {
        match self.next_event() {
            Some(SpawnerEvent::Ended { key: ended, output: printed, .. }) if ended == job => {
                printed
            }
            other => panic!("{other:?}"),
        }
    }

    /// Receives the output pipes of a command and reads stdout and stderr to their ends.
    fn read_output_pipes(&self, job: AttemptKey) -> [String; 2] {
        match self.next_event() {
            Some(SpawnerEvent::OutputPipes { key: running, pipes: from }) if running == job => {
                let pipes = <[_; 2]>::try_from(from).unwrap();
                pipes.map(|pipe| {
                    let mut text = String::new();
                    fs::File::from(pipe).read_to_string(&mut text).unwrap();
                    text
                })
            }
            other => panic!("{other:?}"),
        }
    }

    /// Waits until a script has written a number to a file, and returns it.
    fn read_number(&self, file: &str) -> u32 {
        let path = self.dir.join(file);
        wait_until(|| fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n')));
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }
}

impl Drop for SpawnerFixture {
    fn drop(&mut self) {
        drop(self.handle.take());
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < TIMEOUT, "the condition did not become true in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn key(run: i64) -> AttemptKey {
    AttemptKey { run, attempt: 1 }
}

#[test]
fn exit_record_is_on_disk_until_acknowledged() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    let mut output =
        fixture.start_script(key(1), "echo out; echo err >&2; pwd; echo $PATH | wc -c; exit 3");
    let pid = fixture.expect_started();
    let exit = fixture.expect_exit(key(1));
    assert_eq!(
        exit,
        ProcessExit { code: Some(3), signal: None, lease_expired: false, stop_reason: None }
    );
    assert!(!is_alive(pid));
    wait_until(|| fixture.record_path(key(1)).exists());
    let record = fs::read_to_string(fixture.record_path(key(1))).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!((&record["exit"]["code"], &record["token"]), (&3.into(), &"t".into()));
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("out\nerr\n") && text.contains("tasuki_spawner_"), "{text}");
    fixture.send(&SpawnerRequest::Forget { key: key(1) });
    wait_until(|| !fixture.record_path(key(1)).exists());
}

#[test]
fn command_gets_exactly_the_given_environment() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    let launch = LaunchSpec {
        token: "t".to_owned(),
        argv: vec!["/usr/bin/env".to_owned()],
        env: vec![("A".to_owned(), "one two $HOME".to_owned())],
        ..LaunchSpec::default()
    };
    let mut output = fixture.start_with(&launch);
    fixture.expect_started();
    fixture.expect_exit(launch.key);
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], "A=one two $HOME");
    assert!(lines[1].starts_with("TASUKI_SPAWNED=") && lines[1].ends_with(".t.0.1"), "{lines:?}");
}

#[test]
fn invalid_launches_are_refused() {
    let fixture = SpawnerFixture::new();
    let refused = |fixture: &SpawnerFixture| match fixture.next_event() {
        Some(SpawnerEvent::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    fixture.start_script(key(1), "true");
    assert_eq!(
        refused(&fixture),
        LaunchRefusal::LeaseExpired,
        "the spawner does not know the lease"
    );
    fixture.send(&SpawnerRequest::Lease { token: "t".to_owned(), until: boottime() });
    fixture.start_script(key(1), "true");
    assert_eq!(refused(&fixture), LaunchRefusal::LeaseExpired, "the lease has expired");
    fixture.set_lease(60);
    fixture.start_with(&LaunchSpec {
        token: "t".to_owned(),
        argv: vec!["/no/such/program".to_owned()],
        ..LaunchSpec::default()
    });
    assert!(
        matches!(refused(&fixture), LaunchRefusal::NotFound(why) if why.starts_with("/no/such/program: No such"))
    );
    fixture.start_with(&LaunchSpec { token: "t".to_owned(), ..LaunchSpec::default() });
    assert!(matches!(refused(&fixture), LaunchRefusal::NotFound(_)));
    fixture.start_with(&LaunchSpec {
        token: "t".to_owned(),
        argv: vec!["/bin/true".to_owned()],
        work_dir: Some("/no/such/directory".into()),
        ..LaunchSpec::default()
    });
    assert!(
        matches!(refused(&fixture), LaunchRefusal::NotFound(why) if why.starts_with("/no/such/directory: No such"))
    );
    fixture.start_with(&LaunchSpec {
        token: "t".to_owned(),
        argv: vec![fixture.dir.display().to_string()],
        ..LaunchSpec::default()
    });
    assert!(
        matches!(refused(&fixture), LaunchRefusal::NotExecutable(why) if why.contains("Permission denied"))
    );
    fixture.start_script(key(1), "sleep 1000");
    fixture.expect_started();
    fixture.start_script(key(1), "true");
    assert_eq!(refused(&fixture), LaunchRefusal::AlreadyRunning);
}

/// A worker must be able to send any number of requests without waiting for the spawner.
#[test]
fn sending_does_not_block_on_a_stopped_spawner() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    fixture.start_script(key(1), "sleep 1000");
    fixture.expect_started();
    let pid = Pid::from_raw(fixture.handle.as_ref().unwrap().pid() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    for number in 0..2_000 {
        let token = format!("{number:01000}");
        fixture.send(&SpawnerRequest::Lease { token, until: boottime() + 60 * SECOND });
    }
    fixture.start_script(key(2), "exit 4");
    kill_process(pid, Signal::CONT).unwrap();
    fixture.expect_started();
    assert_eq!(fixture.expect_exit(key(2)).code, Some(4));
}

/// A spawner that stays stopped does not outlive its worker, and neither do its commands.
#[test]
fn dropping_the_handle_kills_a_stopped_spawner() {
    let mut fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    fixture.start_script(key(1), "sleep 1000");
    let job = fixture.expect_started();
    let spawner = fixture.handle.take().unwrap();
    kill_process(Pid::from_raw(spawner.pid() as i32).unwrap(), Signal::STOP).unwrap();
    let pid = spawner.pid();
    drop(spawner);
    assert!(!is_alive(pid));
    wait_until(|| !is_alive(job));
}

#[test]
fn file_limit_refuses_only_new_commands() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    fixture.start_script(key(0), "while [ ! -e go ]; do sleep 0.01; done");
    fixture.expect_started();
    let spawner = fixture.handle.as_ref().unwrap().pid();
    let open = || fs::read_dir(format!("/proc/{spawner}/fd")).unwrap().count() as u64;
    let pid = Pid::from_raw(spawner as i32);
    // With `room` more files the spawner can receive at most one of the two files of a request, and cannot open a
    // pidfd.
    for room in [0, 1] {
        let before = getrlimit(Resource::Nofile);
        let limit = Rlimit { current: Some(open() + room), ..before };
        prlimit(pid, Resource::Nofile, limit).unwrap();
        fixture.start_script(key(1), "true");
        match fixture.next_event() {
            Some(SpawnerEvent::Refused { key: job, why: LaunchRefusal::TemporaryFailure(_) }) => {
                assert_eq!(job, key(1));
            }
            other => panic!("room {room}: {other:?}"),
        }
        prlimit(pid, Resource::Nofile, before).unwrap();
    }
    fixture.start_script(key(2), "exit 5");
    fixture.expect_started();
    assert_eq!(fixture.expect_exit(key(2)).code, Some(5));
    fs::write(fixture.dir.join("go"), "").unwrap();
    assert_eq!(fixture.expect_exit(key(0)).code, Some(0), "the command that already ran goes on");
}

#[test]
fn stopped_command_may_exit_within_its_grace() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    // The reading end stays open: a shell that cannot print that its child was terminated dies of SIGPIPE.
    let _output = fixture
        .start_script(key(1), "trap 'exit 7' TERM; echo $$ > pid; while :; do sleep 0.01; done");
    fixture.expect_started();
    fixture.read_number("pid");
    fixture.send(&SpawnerRequest::Stop {
        key: key(1),
        why: AttemptStopReason::Timeout,
        grace: 60 * SECOND,
    });
    let exit = fixture.expect_exit(key(1));
    assert_eq!((exit.code, exit.stop_reason), (Some(7), Some(AttemptStopReason::Timeout)));
}

#[test]
fn command_that_ignores_term_is_killed_with_its_descendants() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    let script = "trap '' TERM; (trap '' TERM; exec sleep 1000) & echo $! > child
        setsid sh -c 'echo $$ > away; exec sleep 1000' & echo $$ > pid; wait; sleep 1000";
    fixture.start_script(key(1), script);
    fixture.expect_started();
    let pids = ["pid", "child", "away"].map(|file| fixture.read_number(file));
    fixture.send(&SpawnerRequest::Stop {
        key: key(1),
        why: AttemptStopReason::Cancel,
        grace: SECOND / 20,
    });
    let exit = fixture.expect_exit(key(1));
    assert_eq!((exit.signal, exit.lease_expired), (Some(9), false));
    assert!(!pids.iter().any(|&pid| is_alive(pid)), "{pids:?}");
}

/// The command double-forks into another session and exits. The spawner still kills the daemon that it left.
#[test]
fn daemonized_processes_are_killed() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    fixture.start_script(
        key(1),
        "setsid sh -c '(echo $$ > daemon; exec sleep 1000) & echo $! > away; exit' ; exit 0",
    );
    fixture.expect_started();
    assert_eq!(fixture.expect_exit(key(1)).code, Some(0));
    assert!(!is_alive(fixture.read_number("away")));
}

/// A daemon that clears its environment, and with it the spawner's mark, is found through its session.
#[test]
fn daemonized_processes_without_environment_are_killed() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    let away = "env -i /bin/sh -c 'echo $$ > away; exec /bin/sleep 1000' & exit";
    fixture.start_script(
        key(1),
        &format!("setsid sh -c \"{away}\"; while [ ! -s away ]; do sleep 0.01; done"),
    );
    fixture.expect_started();
    let away = fixture.read_number("away");
    assert_eq!(fixture.expect_exit(key(1)).code, Some(0));
    assert!(!is_alive(away));
}

#[test]
fn expired_lease_kills_its_commands() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    fixture.send(&SpawnerRequest::Lease {
        token: "other".to_owned(),
        until: boottime() + 60 * SECOND,
    });
    fixture.start_script(key(1), "trap '' TERM; echo $$ > pid; while :; do sleep 1000; done");
    fixture.expect_started();
    fixture.start_with(&LaunchSpec {
        key: key(2),
        token: "other".to_owned(),
        argv: ["sleep", "1000"].map(str::to_owned).to_vec(),
        env: vec![("PATH".to_owned(), std::env::var("PATH").unwrap())],
        ..LaunchSpec::default()
    });
    let survivor = fixture.expect_started();
    let pid = fixture.read_number("pid");
    fixture.set_lease(0);
    let exit = fixture.expect_exit(key(1));
    assert_eq!((exit.signal, exit.lease_expired), (Some(9), true));
    assert!(!is_alive(pid) && is_alive(survivor));
}

#[test]
fn renewed_lease_keeps_its_commands_running() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    fixture.start_script(key(1), "while [ ! -e go ]; do sleep 0.01; done");
    fixture.expect_started();
    let first = boottime() + SECOND;
    fixture.send(&SpawnerRequest::Lease { token: "t".to_owned(), until: first });
    fixture.set_lease(60);
    wait_until(|| boottime() > first + SECOND / 10);
    fs::write(fixture.dir.join("go"), "").unwrap();
    assert_eq!(fixture.expect_exit(key(1)).code, Some(0));
}

#[test]
fn worker_exit_kills_all_commands() {
    let mut fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    let script =
        "trap '' TERM; setsid sleep 1000 & echo $! > away; echo $$ > pid; sleep 1000; sleep 1000";
    fixture.start_script(key(1), script);
    fixture.start_script(key(2), "sleep 1000");
    let pids = [
        fixture.expect_started(),
        fixture.expect_started(),
        fixture.read_number("away"),
        fixture.read_number("pid"),
    ];
    let spawner = fixture.handle.as_ref().unwrap().pid();
    drop(fixture.handle.take());
    assert!(!is_alive(spawner) && !pids.iter().any(|&pid| is_alive(pid)));
    assert!(
        fixture.record_path(key(1)).exists() && fixture.record_path(key(2)).exists(),
        "the exits are on disk"
    );
    assert!(std::iter::from_fn(|| fixture.events.try_recv().ok()).any(|event| event.is_none()));
}

/// Where this process may create cgroups (v2), each attempt has one, and a daemon without environment cannot leave it.
/// Elsewhere the spawner finds the daemon through its session. A cgroup is reused only once it is empty.
#[test]
fn each_attempt_has_its_own_cgroup_where_possible() {
    let fixture = SpawnerFixture::with_cgroups("on");
    fixture.set_lease(60);
    let cgroup = |mut output: std::io::PipeReader| {
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        text.lines().find_map(|line| line.strip_prefix("0::").map(str::to_owned))
    };
    let leaves_daemon =
        "cat /proc/self/cgroup; (env -i setsid sh -c 'echo $$ > away; exec sleep 1000' &)
        while [ ! -s away ]; do sleep 0.01; done; exit 3";
    let first = fixture.start_script(key(8), leaves_daemon);
    fixture.expect_started();
    assert_eq!(fixture.expect_exit(key(8)).code, Some(3));
    assert!(!is_alive(fixture.read_number("away")));
    let killed = cgroup(first);
    let first = fixture.start_script(key(8), "cat /proc/self/cgroup; exit 5");
    fixture.expect_started();
    assert_eq!(fixture.expect_exit(key(8)).code, Some(5));
    let first = cgroup(first);
    let second = fixture
        .start_script(key(9), "cat /proc/self/cgroup; while [ ! -e go ]; do sleep 0.01; done");
    fixture.expect_started();
    let third = fixture.start_script(key(10), "cat /proc/self/cgroup; exit 4");
    fixture.expect_started();
    assert_eq!(fixture.expect_exit(key(10)).code, Some(4), "the command beside it goes on");
    fs::write(fixture.dir.join("go"), "").unwrap();
    assert_eq!(fixture.expect_exit(key(9)).code, Some(0));
    let [second, third] = [second, third].map(cgroup);
    if can_create_cgroups() {
        assert!(first.as_ref().unwrap().contains("/tasuki-"), "{first:?}");
        assert_ne!(killed, first, "a cgroup that was killed is not reused");
        assert_eq!(first, second, "an empty cgroup is reused");
        assert_ne!(second, third, "a cgroup in use is not reused");
    }
}

/// Path of the cgroup of an attempt, as a shell expression that its script evaluates.
fn own_cgroup() -> String {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let v2 = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
    let v2 = v2.split(' ').nth(4).unwrap();
    format!("{v2}$(sed -n s/^0:://p /proc/self/cgroup)")
}

/// An attempt may create cgroups below its own; the spawner does not reuse such a cgroup.
#[test]
fn changed_cgroup_is_not_reused() {
    if !can_create_cgroups() {
        return;
    }
    let fixture = SpawnerFixture::with_cgroups("on");
    fixture.set_lease(60);
    let here = format!("here={}; echo $here; ", own_cgroup());
    let paths = [(key(1), "mkdir $here/below"), (key(2), "true")].map(|(job, what)| {
        let mut output = fixture.start_script(job, &format!("{here}{what}"));
        fixture.expect_started();
        assert_eq!(fixture.expect_exit(job).code, Some(0), "{what}");
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        PathBuf::from(text.trim())
    });
    assert_ne!(paths[0], paths[1]);
    fs::remove_dir(paths[0].join("below")).unwrap();
    fs::remove_dir(&paths[0]).unwrap();
}

/// An attempt may kill its own cgroup. Linux then also kills every process that is started in it later, so the spawner
/// must not reuse it.
#[test]
fn killed_cgroup_is_not_reused() {
    if !can_create_cgroups() {
        return;
    }
    let fixture = SpawnerFixture::with_cgroups("on");
    fixture.set_lease(60);
    let kill = format!("echo 1 > {}/cgroup.kill; exit 3", own_cgroup());
    let _killed = fixture.start_script(key(1), &kill);
    fixture.expect_started();
    assert_eq!(fixture.expect_exit(key(1)).code, None);
    for number in 2..5 {
        let _fine = fixture.start_script(key(number), "true");
        fixture.expect_started();
        assert_eq!(fixture.expect_exit(key(number)).code, Some(0));
    }
}

/// Commands without the spawner's mark in their environment die with a killed spawner, too (parent death signal).
#[test]
fn commands_die_with_the_spawner() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    for (job, captured) in [(key(1), false), (key(2), true)] {
        let script = format!("echo $$ > pid{}; exec /bin/sleep 1000", job.run);
        let argv = ["/usr/bin/env", "-i", "/bin/sh", "-c", &script];
        let argv = argv.map(str::to_owned).to_vec();
        let launch = LaunchSpec { argv, capture_output: captured, ..fixture.script_spec(job, "") };
        match captured {
            true => fixture.send(&SpawnerRequest::Start(launch)),
            false => drop(fixture.start_with(&launch)),
        }
    }
    let pids = ["pid1", "pid2"].map(|file| fixture.read_number(file));
    let spawner = Pid::from_raw(fixture.handle.as_ref().unwrap().pid() as i32).unwrap();
    kill_process(spawner, Signal::KILL).unwrap();
    wait_until(|| !pids.iter().any(|&pid| is_alive(pid)));
}

/// Whether this process may create a cgroup below its own: it tries.
fn can_create_cgroups() -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let v2 = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let (Some(v2), Some(own)) = (v2, own) else { return false };
    let path = Path::new(v2.split(' ').nth(4).unwrap()).join(own);
    let path = path.join(format!("tasuki-try-{}", std::process::id()));
    let made = fs::create_dir(&path).is_ok();
    let _ = fs::remove_dir(&path);
    made
}
