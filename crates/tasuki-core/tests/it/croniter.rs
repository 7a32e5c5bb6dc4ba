//! Compares cron schedules with the Python library croniter, in zones without clock changes.
//!
//! croniter is installed once into a private virtual environment under the build directory. If that is
//! not possible, the test fails: a comparison that did not happen must not count as a success.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jiff::Timestamp;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tasuki_core::Schedule;
use tasuki_core::schedule::{DstRuleOverrides, ScheduleKind};

use crate::model;

const CRONITER: &str = "croniter==6.2.4";
const ZONES: [&str; 2] = ["UTC", "Asia/Tokyo"];
const FIRES: usize = 8;

/// Reads lines `zone TAB start TAB count TAB expression`. For each line, prints the next fires as
/// seconds since 1970.
const SCRIPT: &str = r#"
import sys
from datetime import datetime
from zoneinfo import ZoneInfo
from croniter import croniter
for line in sys.stdin:
    zone, start, fires, expression = line.rstrip("\n").split("\t")
    start = datetime.fromtimestamp(int(start), ZoneInfo(zone))
    dates = croniter(expression, start, second_at_beginning=True, max_years_between_matches=30)
    try:
        print(*(int(dates.get_next(datetime).timestamp()) for _ in range(int(fires))))
    except Exception as error:
        print("never" if type(error).__name__ == "CroniterBadDateError" else repr(error))
"#;

#[test]
fn fires_match_croniter_in_zones_without_clock_changes() {
    let expressions = expressions();
    assert!(expressions.len() >= 200);
    let starts = ["2026-11-15T21:31:05Z", "2024-02-28T14:59:59Z", "2027-12-31T23:59:00Z"];
    let mut cases = Vec::new();
    for expression in &expressions {
        for zone in ZONES {
            for start in starts {
                cases.push((expression, zone, start.parse::<Timestamp>().unwrap()));
            }
        }
    }

    let input: String = cases
        .iter()
        .map(|(expression, zone, start)| {
            format!("{zone}\t{}\t{FIRES}\t{expression}\n", start.as_second())
        })
        .collect();
    let results = run_script(&environment(), &input);
    assert_eq!(results.len(), cases.len());

    for ((expression, zone, start), expected) in cases.into_iter().zip(results) {
        let schedule =
            Schedule::parse(ScheduleKind::Cron, expression, zone, DstRuleOverrides::default())
                .unwrap();
        let fires: Vec<String> = schedule
            .iter_fires_after(start)
            .take(FIRES)
            .map(|fire| fire.at.as_second().to_string())
            .collect();
        let found = if fires.is_empty() { "never".to_owned() } else { fires.join(" ") };
        assert_eq!(found, expected, "{expression:?} in {zone} after {start}");
    }
}

/// Common expressions, and many random ones.
fn expressions() -> Vec<String> {
    let common = [
        "* * * * *",
        "*/5 * * * *",
        "0 * * * *",
        "30 2 * * *",
        "0 0 * * 0",
        "0 0 * * 7",
        "0 9-17 * * MON-FRI",
        "15,45 */2 * * *",
        "0 0 1 * *",
        "0 0 31 * *",
        "0 0 29 2 *",
        "0 0 1 1 *",
        "0 0 13 * FRI",
        "0 12 1-7 * MON",
        "*/7 * * * *",
        "0 0 */2 * *",
        "0 0 * */5 *",
        "0 22 * * 1-5",
        "23 0-20/2 * * *",
        "5 4 * * SUN",
        "0 0 30 2 *",
        "59 23 31 12 *",
        "0 0,12 1 */2 *",
        "10-20/3 5 * JAN,JUL TUE,THU",
        "*/10 * * * * *",
        "30 0 0 * * *",
        "15,45 30 6 1 * *",
    ];
    let mut expressions: Vec<String> = common.iter().map(ToString::to_string).collect();
    let mut runner = TestRunner::deterministic();
    let minutes = model::minute_schedules().prop_filter("cron", |m| m.kind == ScheduleKind::Cron);
    let seconds = model::second_schedules();
    for _ in 0..180 {
        expressions.push(minutes.new_tree(&mut runner).unwrap().current().value);
    }
    for _ in 0..30 {
        expressions.push(seconds.new_tree(&mut runner).unwrap().current().value);
    }
    expressions
}

/// The Python interpreter of the private environment, which is created if it does not exist.
fn environment() -> PathBuf {
    let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(base).unwrap();
    let home = base.join(CRONITER.replace("==", "-"));
    let lock = File::create(home.with_extension("lock")).unwrap();
    lock.lock().expect("the lock file can be locked");
    let (python, ready) = (home.join("bin/python"), home.join("ready"));
    if !ready.exists() {
        let _ = fs::remove_dir_all(&home);
        run(Command::new("python3").args(["-m", "venv"]).arg(&home));
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", CRONITER, "tzdata"]));
        File::create(ready).unwrap();
    }
    python
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
}

/// Runs the script with this input and returns its output lines.
fn run_script(python: &Path, input: &str) -> Vec<String> {
    let mut child = Command::new(python)
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the environment has a Python interpreter");
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input.as_bytes()).unwrap());
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "croniter: {}", output.status);
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}
