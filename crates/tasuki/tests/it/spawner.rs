//! The process that runs commands, with real commands.

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
use tasuki::spawner::{Exit, JobKey, Launch, Order, Printed, Refusal, Report, Spawner, boottime};
use tasuki_core::exit::Stopped;

mod captured;

const SECOND: u64 = 1_000_000;
const CALLED: &str = "TASUKI_TEST_SPAWNER";
const ENOUGH: Duration = Duration::from_secs(30);

/// What is run as a process of its own: the spawner.
#[test]
fn the_spawner_itself() {
    if std::env::var_os(CALLED).is_some() {
        let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        tasuki::spawner::run(&UnixStream::from(socket)).unwrap();
        std::process::exit(0);
    }
    assert!(boottime() > 0);
}

/// A spawner, a folder, and what was reported.
struct Bench {
    spawner: Option<Spawner>,
    reports: Receiver<Option<Report>>,
    folder: PathBuf,
}

impl Bench {
    /// One that has to do without cgroups, as on most machines.
    fn new() -> Self {
        Self::with_cgroups("off")
    }

    fn with_cgroups(cgroups: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("tasuki_spawner_{}_{count}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["spawner::the_spawner_itself", "--exact"])
            .env(CALLED, "1")
            .env("TASUKI_CGROUPS", cgroups)
            .stdout(Stdio::null());
        let (tell, reports) = channel();
        let heard = move |reports: Option<Vec<Report>>| match reports {
            Some(reports) => reports.into_iter().for_each(|report| drop(tell.send(Some(report)))),
            None => drop(tell.send(None)),
        };
        let spawner = Spawner::start(command, heard).unwrap();
        Self { spawner: Some(spawner), reports, folder }
    }

    fn order(&self, order: &Order) {
        self.spawner.as_ref().unwrap().order(order, Vec::new()).unwrap();
    }

    fn lease(&self, seconds: u64) {
        self.order(&Order::Lease { token: "t".to_owned(), until: boottime() + seconds * SECOND });
    }

    /// Starts a shell script in the folder. Returns the ends of its output.
    fn start(&self, job: JobKey, script: &str) -> std::io::PipeReader {
        self.launch(&self.script(job, script))
    }

    /// The same, for the spawner to capture what it prints.
    fn start_captured(&self, job: JobKey, script: &str) {
        let launch = Launch { captured: true, ..self.script(job, script) };
        self.order(&Order::Start(launch));
    }

    fn script(&self, job: JobKey, script: &str) -> Launch {
        Launch {
            job,
            token: "t".to_owned(),
            argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: vec![("PATH".to_owned(), std::env::var("PATH").unwrap())],
            directory: Some(self.folder.clone()),
            record: Some(self.record(job)),
            ..Launch::default()
        }
    }

    fn launch(&self, launch: &Launch) -> std::io::PipeReader {
        let (reader, writer) = std::io::pipe().unwrap();
        let files = vec![writer.try_clone().unwrap().into(), writer.into()];
        self.spawner.as_ref().unwrap().order(&Order::Start(launch.clone()), files).unwrap();
        reader
    }

    fn record(&self, job: JobKey) -> PathBuf {
        self.folder.join(format!("{}.{}.json", job.run, job.attempt))
    }

    fn next(&self) -> Option<Report> {
        self.reports.recv_timeout(ENOUGH).unwrap()
    }

    fn started(&self) -> u32 {
        match self.next() {
            Some(Report::Started { pid, .. }) => pid,
            other => panic!("{other:?}"),
        }
    }

    fn ended(&self, job: JobKey) -> Exit {
        match self.next() {
            Some(Report::Ended { job: told, exit, .. }) if told == job => exit,
            other => panic!("{other:?}"),
        }
    }

    /// What it printed, where that is told with its end.
    fn printed(&self, job: JobKey) -> Option<Printed> {
        match self.next() {
            Some(Report::Ended { job: told, printed, .. }) if told == job => printed,
            other => panic!("{other:?}"),
        }
    }

    /// What it prints, to be read from now on.
    fn prints(&self, job: JobKey) -> [String; 2] {
        match self.next() {
            Some(Report::Prints { job: told, from }) if told == job => {
                let from = <[_; 2]>::try_from(from).unwrap();
                from.map(|from| {
                    let mut text = String::new();
                    fs::File::from(from).read_to_string(&mut text).unwrap();
                    text
                })
            }
            other => panic!("{other:?}"),
        }
    }

    /// The number that a script has written to a file, once it has.
    fn number(&self, file: &str) -> u32 {
        let path = self.folder.join(file);
        until(|| fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n')));
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        drop(self.spawner.take());
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn until(mut condition: impl FnMut() -> bool) {
    let asked = Instant::now();
    while !condition() {
        assert!(asked.elapsed() < ENOUGH, "it never came to be");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn key(run: i64) -> JobKey {
    JobKey { run, attempt: 1 }
}

#[test]
fn a_command_runs_and_its_end_is_on_disk_until_somebody_has_heard_it() {
    let bench = Bench::new();
    bench.lease(60);
    let mut output = bench.start(key(1), "echo out; echo err >&2; pwd; echo $PATH | wc -c; exit 3");
    let pid = bench.started();
    let exit = bench.ended(key(1));
    assert_eq!(exit, Exit { code: Some(3), signal: None, lease_passed: false, stopped: None });
    assert!(!lives(pid));
    until(|| bench.record(key(1)).exists());
    let record = fs::read_to_string(bench.record(key(1))).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!((&record["exit"]["code"], &record["token"]), (&3.into(), &"t".into()));
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("out\nerr\n") && text.contains("tasuki_spawner_"), "{text}");
    bench.order(&Order::Forget { job: key(1) });
    until(|| !bench.record(key(1)).exists());
}

#[test]
fn the_environment_is_what_was_given_and_nothing_else() {
    let bench = Bench::new();
    bench.lease(60);
    let launch = Launch {
        token: "t".to_owned(),
        argv: vec!["/usr/bin/env".to_owned()],
        env: vec![("A".to_owned(), "one two $HOME".to_owned())],
        ..Launch::default()
    };
    let mut output = bench.launch(&launch);
    bench.started();
    bench.ended(launch.job);
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], "A=one two $HOME");
    assert!(lines[1].starts_with("TASUKI_SPAWNED=") && lines[1].ends_with(".t.0.1"), "{lines:?}");
}

#[test]
fn what_may_not_start_does_not() {
    let bench = Bench::new();
    let refused = |bench: &Bench| match bench.next() {
        Some(Report::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    bench.start(key(1), "true");
    assert_eq!(refused(&bench), Refusal::Lease, "it was not told of the lease");
    bench.order(&Order::Lease { token: "t".to_owned(), until: boottime() });
    bench.start(key(1), "true");
    assert_eq!(refused(&bench), Refusal::Lease, "the lease has passed");
    bench.lease(60);
    bench.launch(&Launch {
        token: "t".to_owned(),
        argv: vec!["/no/such/program".to_owned()],
        ..Launch::default()
    });
    assert!(
        matches!(refused(&bench), Refusal::NotFound(why) if why.starts_with("/no/such/program: No such"))
    );
    bench.launch(&Launch { token: "t".to_owned(), ..Launch::default() });
    assert!(matches!(refused(&bench), Refusal::NotFound(_)));
    bench.launch(&Launch {
        token: "t".to_owned(),
        argv: vec!["/bin/true".to_owned()],
        directory: Some("/no/such/directory".into()),
        ..Launch::default()
    });
    assert!(
        matches!(refused(&bench), Refusal::NotFound(why) if why.starts_with("/no/such/directory: No such"))
    );
    bench.launch(&Launch {
        token: "t".to_owned(),
        argv: vec![bench.folder.display().to_string()],
        ..Launch::default()
    });
    assert!(matches!(refused(&bench), Refusal::Unfit(why) if why.contains("Permission denied")));
    bench.start(key(1), "sleep 1000");
    bench.started();
    bench.start(key(1), "true");
    assert_eq!(refused(&bench), Refusal::Doubled);
}

/// A worker must be able to give any number of orders and go on with its own work.
#[test]
fn a_spawner_that_is_stopped_keeps_nobody_waiting() {
    let bench = Bench::new();
    bench.lease(60);
    bench.start(key(1), "sleep 1000");
    bench.started();
    let pid = Pid::from_raw(bench.spawner.as_ref().unwrap().pid() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    for number in 0..2_000 {
        let token = format!("{number:01000}");
        bench.order(&Order::Lease { token, until: boottime() + 60 * SECOND });
    }
    bench.start(key(2), "exit 4");
    kill_process(pid, Signal::CONT).unwrap();
    bench.started();
    assert_eq!(bench.ended(key(2)).code, Some(4));
}

/// And one that stays stopped does not outlive its worker, nor does what it runs.
#[test]
fn a_spawner_that_is_stopped_for_good_is_killed() {
    let mut bench = Bench::new();
    bench.lease(60);
    bench.start(key(1), "sleep 1000");
    let job = bench.started();
    let spawner = bench.spawner.take().unwrap();
    kill_process(Pid::from_raw(spawner.pid() as i32).unwrap(), Signal::STOP).unwrap();
    let pid = spawner.pid();
    drop(spawner);
    assert!(!lives(pid));
    until(|| !lives(job));
}

#[test]
fn with_too_many_open_files_only_what_finds_no_room_is_refused() {
    let bench = Bench::new();
    bench.lease(60);
    bench.start(key(0), "while [ ! -e go ]; do sleep 0.01; done");
    bench.started();
    let spawner = bench.spawner.as_ref().unwrap().pid();
    let open = || fs::read_dir(format!("/proc/{spawner}/fd")).unwrap().count() as u64;
    let pid = Pid::from_raw(spawner as i32);
    // Hardly for those that come with an order, and not for what tells of its end.
    for room in [0, 1] {
        let before = getrlimit(Resource::Nofile);
        let limit = Rlimit { current: Some(open() + room), ..before };
        prlimit(pid, Resource::Nofile, limit).unwrap();
        bench.start(key(1), "true");
        match bench.next() {
            Some(Report::Refused { job, why: Refusal::Unable(_) }) => assert_eq!(job, key(1)),
            other => panic!("room {room}: {other:?}"),
        }
        prlimit(pid, Resource::Nofile, before).unwrap();
    }
    bench.start(key(2), "exit 5");
    bench.started();
    assert_eq!(bench.ended(key(2)).code, Some(5));
    fs::write(bench.folder.join("go"), "").unwrap();
    assert_eq!(bench.ended(key(0)).code, Some(0), "and what ran goes on");
}

#[test]
fn a_job_that_is_stopped_may_end_by_itself() {
    let bench = Bench::new();
    bench.lease(60);
    // Somebody listens: a shell that cannot say that its child was terminated dies of that.
    let _output =
        bench.start(key(1), "trap 'exit 7' TERM; echo $$ > pid; while :; do sleep 0.01; done");
    bench.started();
    bench.number("pid");
    bench.order(&Order::Stop { job: key(1), why: Stopped::Timeout, grace: 60 * SECOND });
    let exit = bench.ended(key(1));
    assert_eq!((exit.code, exit.stopped), (Some(7), Some(Stopped::Timeout)));
}

#[test]
fn one_that_ignores_it_is_killed_after_its_grace_with_everything_it_started() {
    let bench = Bench::new();
    bench.lease(60);
    let script = "trap '' TERM; (trap '' TERM; exec sleep 1000) & echo $! > child
        setsid sh -c 'echo $$ > away; exec sleep 1000' & echo $$ > pid; wait; sleep 1000";
    bench.start(key(1), script);
    bench.started();
    let pids = ["pid", "child", "away"].map(|file| bench.number(file));
    bench.order(&Order::Stop { job: key(1), why: Stopped::Cancel, grace: SECOND / 20 });
    let exit = bench.ended(key(1));
    assert_eq!((exit.signal, exit.lease_passed), (Some(9), false));
    assert!(!pids.iter().any(|&pid| lives(pid)), "{pids:?}");
}

/// It double-forks into another session and ends; what it left behind still belongs to it.
#[test]
fn what_runs_away_is_found_and_ended() {
    let bench = Bench::new();
    bench.lease(60);
    bench.start(
        key(1),
        "setsid sh -c '(echo $$ > daemon; exec sleep 1000) & echo $! > away; exit' ; exit 0",
    );
    bench.started();
    assert_eq!(bench.ended(key(1)).code, Some(0));
    assert!(!lives(bench.number("away")));
}

/// Nor does it help to throw away the environment in which the spawner's mark is.
#[test]
fn what_runs_away_in_disguise_is_found_too() {
    let bench = Bench::new();
    bench.lease(60);
    let away = "env -i /bin/sh -c 'echo $$ > away; exec /bin/sleep 1000' & exit";
    bench.start(
        key(1),
        &format!("setsid sh -c \"{away}\"; while [ ! -s away ]; do sleep 0.01; done"),
    );
    bench.started();
    let away = bench.number("away");
    assert_eq!(bench.ended(key(1)).code, Some(0));
    assert!(!lives(away));
}

#[test]
fn when_the_lease_ends_everything_under_it_is_killed() {
    let bench = Bench::new();
    bench.lease(60);
    bench.order(&Order::Lease { token: "other".to_owned(), until: boottime() + 60 * SECOND });
    bench.start(key(1), "trap '' TERM; echo $$ > pid; while :; do sleep 1000; done");
    bench.started();
    bench.launch(&Launch {
        job: key(2),
        token: "other".to_owned(),
        argv: ["sleep", "1000"].map(str::to_owned).to_vec(),
        env: vec![("PATH".to_owned(), std::env::var("PATH").unwrap())],
        ..Launch::default()
    });
    let survivor = bench.started();
    let pid = bench.number("pid");
    bench.lease(0);
    let exit = bench.ended(key(1));
    assert_eq!((exit.signal, exit.lease_passed), (Some(9), true));
    assert!(!lives(pid) && lives(survivor));
}

#[test]
fn a_lease_that_is_renewed_goes_on() {
    let bench = Bench::new();
    bench.lease(60);
    bench.start(key(1), "while [ ! -e go ]; do sleep 0.01; done");
    bench.started();
    let first = boottime() + SECOND;
    bench.order(&Order::Lease { token: "t".to_owned(), until: first });
    bench.lease(60);
    until(|| boottime() > first + SECOND / 10);
    fs::write(bench.folder.join("go"), "").unwrap();
    assert_eq!(bench.ended(key(1)).code, Some(0));
}

#[test]
fn when_the_worker_is_gone_nothing_is_left() {
    let mut bench = Bench::new();
    bench.lease(60);
    let script =
        "trap '' TERM; setsid sleep 1000 & echo $! > away; echo $$ > pid; sleep 1000; sleep 1000";
    bench.start(key(1), script);
    bench.start(key(2), "sleep 1000");
    let pids = [bench.started(), bench.started(), bench.number("away"), bench.number("pid")];
    let spawner = bench.spawner.as_ref().unwrap().pid();
    drop(bench.spawner.take());
    assert!(!lives(spawner) && !pids.iter().any(|&pid| lives(pid)));
    assert!(
        bench.record(key(1)).exists() && bench.record(key(2)).exists(),
        "and how it ended is known"
    );
    assert!(std::iter::from_fn(|| bench.reports.try_recv().ok()).any(|report| report.is_none()));
}

/// Where cgroup v2 can be divided each job has one, and what runs away in disguise cannot leave it; elsewhere
/// it is found in the other ways. The next job has it when nobody is in it any more, and never before.
#[test]
fn a_job_has_a_cgroup_of_its_own_where_that_can_be() {
    let bench = Bench::with_cgroups("on");
    bench.lease(60);
    let cgroup = |mut output: std::io::PipeReader| {
        let mut told = String::new();
        output.read_to_string(&mut told).unwrap();
        told.lines().find_map(|line| line.strip_prefix("0::").map(str::to_owned))
    };
    let disguised =
        "cat /proc/self/cgroup; (env -i setsid sh -c 'echo $$ > away; exec sleep 1000' &)
        while [ ! -s away ]; do sleep 0.01; done; exit 3";
    let first = bench.start(key(8), disguised);
    bench.started();
    assert_eq!(bench.ended(key(8)).code, Some(3));
    assert!(!lives(bench.number("away")));
    let killed = cgroup(first);
    let first = bench.start(key(8), "cat /proc/self/cgroup; exit 5");
    bench.started();
    assert_eq!(bench.ended(key(8)).code, Some(5));
    let first = cgroup(first);
    let second =
        bench.start(key(9), "cat /proc/self/cgroup; while [ ! -e go ]; do sleep 0.01; done");
    bench.started();
    let third = bench.start(key(10), "cat /proc/self/cgroup; exit 4");
    bench.started();
    assert_eq!(bench.ended(key(10)).code, Some(4), "and the one beside it goes on");
    fs::write(bench.folder.join("go"), "").unwrap();
    assert_eq!(bench.ended(key(9)).code, Some(0));
    let [second, third] = [second, third].map(cgroup);
    if can_divide() {
        assert!(first.as_ref().unwrap().contains("/tasuki-"), "{first:?}");
        assert_ne!(killed, first, "all in it were killed once");
        assert_eq!(first, second, "nobody was in it");
        assert_ne!(second, third, "somebody was");
    }
}

/// Where the cgroup of a job is, in the words of its shell.
fn own_cgroup() -> String {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let v2 = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
    let v2 = v2.split(' ').nth(4).unwrap();
    format!("{v2}$(sed -n s/^0:://p /proc/self/cgroup)")
}

/// A job may have divided its cgroup.
#[test]
fn a_cgroup_that_is_not_as_it_was_is_nobody_elses() {
    if !can_divide() {
        return;
    }
    let bench = Bench::with_cgroups("on");
    bench.lease(60);
    let here = format!("here={}; echo $here; ", own_cgroup());
    let seen = [(key(1), "mkdir $here/below"), (key(2), "true")].map(|(job, what)| {
        let mut output = bench.start(job, &format!("{here}{what}"));
        bench.started();
        assert_eq!(bench.ended(job).code, Some(0), "{what}");
        let mut told = String::new();
        output.read_to_string(&mut told).unwrap();
        PathBuf::from(told.trim())
    });
    assert_ne!(seen[0], seen[1]);
    fs::remove_dir(seen[0].join("below")).unwrap();
    fs::remove_dir(&seen[0]).unwrap();
}

/// A job may have killed all that is in its cgroup, and with it all that would be born there.
#[test]
fn a_cgroup_in_which_all_were_killed_is_nobody_elses() {
    if !can_divide() {
        return;
    }
    let bench = Bench::with_cgroups("on");
    bench.lease(60);
    let kill = format!("echo 1 > {}/cgroup.kill; exit 3", own_cgroup());
    let _killed = bench.start(key(1), &kill);
    bench.started();
    assert_eq!(bench.ended(key(1)).code, None);
    for number in 2..5 {
        let _fine = bench.start(key(number), "true");
        bench.started();
        assert_eq!(bench.ended(key(number)).code, Some(0));
    }
}

/// What its environment says is gone, and its worker does not look: it still does not outlive its spawner.
#[test]
fn what_is_started_ends_with_its_spawner() {
    let bench = Bench::new();
    bench.lease(60);
    for (job, captured) in [(key(1), false), (key(2), true)] {
        let script = format!("echo $$ > pid{}; exec /bin/sleep 1000", job.run);
        let argv = ["/usr/bin/env", "-i", "/bin/sh", "-c", &script];
        let argv = argv.map(str::to_owned).to_vec();
        let launch = Launch { argv, captured, ..bench.script(job, "") };
        match captured {
            true => bench.order(&Order::Start(launch)),
            false => drop(bench.launch(&launch)),
        }
    }
    let pids = ["pid1", "pid2"].map(|file| bench.number(file));
    let spawner = Pid::from_raw(bench.spawner.as_ref().unwrap().pid() as i32).unwrap();
    kill_process(spawner, Signal::KILL).unwrap();
    until(|| !pids.iter().any(|&pid| lives(pid)));
}

/// Whether this machine lets us make a cgroup beside our own, tried.
fn can_divide() -> bool {
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
