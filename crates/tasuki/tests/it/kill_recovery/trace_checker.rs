//! Compares the traces that the node processes have written with the history in the database.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::node_processes::NodeProcess;

/// The end of a call is reported immediately and stored a moment later. A process that lives on for longer than this
/// without storing the end has a fault.
const MAX_REPORT_DELAY: Duration = Duration::from_secs(2);

type Run = i64;
type Attempt = i64;

/// One call of the function.
#[derive(Debug)]
struct Execution {
    process: usize,
    start: u64,
    end: Option<u64>,
}

/// The history that the database contains.
pub(super) struct History {
    /// The state of each run.
    pub(super) states: BTreeMap<Run, String>,
    /// Outcome and worker of each attempt.
    pub(super) attempts: BTreeMap<(Run, Attempt), (String, String)>,
    /// Node and process id of each worker.
    pub(super) workers: HashMap<String, (String, u32)>,
}

/// Numbers of a run of the test that passed.
#[derive(Debug, Default)]
pub(super) struct CheckSummary {
    pub(super) runs: usize,
    pub(super) executions: usize,
    pub(super) lost: usize,
    /// Calls that were interrupted by a kill.
    pub(super) interrupted: usize,
    /// Calls that ended, but whose process was killed before the end was stored.
    pub(super) unreported: usize,
}

fn read_executions(processes: &[NodeProcess]) -> BTreeMap<(Run, Attempt), Execution> {
    let mut all = BTreeMap::new();
    for (process, NodeProcess { trace, .. }) in processes.iter().enumerate() {
        // The process was killed before it created its trace.
        let Ok(text) = std::fs::read_to_string(trace) else { continue };
        // A last line without a line end was being written when the process was killed.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let fields: Vec<&str> = line.split(' ').collect();
            let [event, run, attempt, at] = fields[..] else { panic!("{line:?}") };
            let key: (Run, Attempt) = (run.parse().unwrap(), attempt.parse().unwrap());
            let at = at.parse().unwrap();
            if event == "start" {
                let before = all.insert(key, Execution { process, start: at, end: None });
                assert!(before.is_none(), "{key:?} was called twice: {before:?}, {process} {at}");
                continue;
            }
            let execution: &mut Execution =
                all.get_mut(&key).expect("a start is recorded before its end");
            assert_eq!(
                (event, execution.process, execution.end),
                ("end", process, None),
                "{key:?}"
            );
            execution.end = Some(at);
        }
    }
    all
}

/// I5: the calls for one run do not overlap, and there is another call only because the process of the previous one was
/// killed during the call or before its end was stored. Returns the violation, if there is one.
fn find_violation(
    call: &Execution,
    next: &Execution,
    dead_at: Option<u64>,
) -> Option<&'static str> {
    let max_delay = MAX_REPORT_DELAY.as_micros() as u64;
    match (call.end, dead_at) {
        (Some(end), _) if end > next.start => Some("two calls at the same time"),
        (_, None) => Some("called again although its process was not killed"),
        (_, Some(dead_at)) if dead_at > next.start => Some("called again while its process lived"),
        (Some(end), Some(dead_at)) if dead_at > end + max_delay => Some("its end was not stored"),
        (_, Some(_)) => None,
    }
}

#[test]
fn violations_are_found() {
    let second = 1_000_000;
    let table = [
        (None, Some(20), 30, None),
        (Some(15), Some(20), 30, None),
        (Some(40), None, 30, Some("two calls at the same time")),
        (Some(40), Some(50), 30, Some("two calls at the same time")),
        (Some(15), None, 30, Some("called again although its process was not killed")),
        (None, None, 30, Some("called again although its process was not killed")),
        (None, Some(40), 30, Some("called again while its process lived")),
        (Some(15), Some(40), 30, Some("called again while its process lived")),
        (Some(15), Some(9 * second), 10 * second, Some("its end was not stored")),
    ];
    for (end, dead_at, start, expected) in table {
        let call = Execution { process: 0, start: 10, end };
        let next = Execution { process: 1, start, end: None };
        assert_eq!(
            find_violation(&call, &next, dead_at),
            expected,
            "{call:?} {dead_at:?} {next:?}"
        );
    }
}

/// Checks everything: the calls of each run, and the history against the traces. Panics at a violation.
pub(super) fn check_history(
    submitted: &BTreeSet<Run>,
    history: &History,
    processes: &[NodeProcess],
) -> CheckSummary {
    let executions = read_executions(processes);
    let mut summary = CheckSummary {
        runs: submitted.len(),
        executions: executions.len(),
        ..CheckSummary::default()
    };
    for ((key, call), (next_key, next)) in executions.iter().zip(executions.iter().skip(1)) {
        if key.0 == next_key.0 {
            let dead_at = processes[call.process].dead_at;
            let violation = find_violation(call, next, dead_at);
            assert_eq!(
                violation, None,
                "{key:?} {call:?}, died {dead_at:?}, {next_key:?} {next:?}"
            );
        }
    }

    assert!(
        history.states.keys().eq(submitted),
        "the runs in the database are not the submitted ones"
    );
    for (run, state) in &history.states {
        assert_eq!(state, "SUCCEEDED", "run {run}");
    }
    let by_process: HashMap<_, _> = processes
        .iter()
        .enumerate()
        .map(|(index, process)| ((process.node.clone(), process.pid), index))
        .collect();
    let mut succeeded = BTreeSet::new();
    for (key, (outcome, worker)) in &history.attempts {
        let process = by_process[&history.workers[worker]];
        let execution = executions.get(key);
        if let Some(execution) = execution {
            assert_eq!(execution.process, process, "{key:?} was called by another process");
        }
        let ended = execution.is_some_and(|execution| execution.end.is_some());
        match outcome.as_str() {
            "SUCCEEDED" => {
                assert!(ended, "{key:?} succeeded although its call did not end");
                assert!(succeeded.insert(key.0), "run {} succeeded twice", key.0);
            }
            "LOST" => {
                assert!(
                    processes[process].dead_at.is_some(),
                    "{key:?} was lost by a process that lived"
                );
                summary.lost += 1;
                summary.unreported += usize::from(ended);
                summary.interrupted += usize::from(execution.is_some() && !ended);
            }
            other => panic!("{key:?} ended as {other}"),
        }
    }
    assert_eq!(&succeeded, submitted, "every run must have one successful attempt");
    for key in executions.keys() {
        assert!(history.attempts.contains_key(key), "the history has no attempt {key:?}");
    }
    summary
}
