//! What was seen from outside, compared with what the history says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::crew::Life;

/// The end of an attempt is reported at once, and heard a moment later. A process that lives on for longer than
/// this and is not heard has a fault.
const HEARD_WITHIN: Duration = Duration::from_secs(2);

type Run = i64;
type Attempt = i64;

/// One call of the function.
#[derive(Debug)]
struct Execution {
    life: usize,
    start: u64,
    end: Option<u64>,
}

/// What the database says.
pub(super) struct History {
    /// The state of each run.
    pub(super) states: BTreeMap<Run, String>,
    /// How each attempt ended, and which worker had it.
    pub(super) attempts: BTreeMap<(Run, Attempt), (String, String)>,
    /// Node and process of each worker.
    pub(super) workers: HashMap<String, (String, u32)>,
}

/// Figures, once everything is as it must be.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) runs: usize,
    pub(super) executions: usize,
    pub(super) lost: usize,
    /// Cut off by a kill in mid-call.
    pub(super) cut_off: usize,
    /// Ended, but killed before that was heard.
    pub(super) unheard: usize,
}

fn executions(lives: &[Life]) -> BTreeMap<(Run, Attempt), Execution> {
    let mut all = BTreeMap::new();
    for (life, Life { record, .. }) in lives.iter().enumerate() {
        // Killed before it began.
        let Ok(told) = std::fs::read_to_string(record) else { continue };
        // A last line without its end is one that its writer was killed over.
        for line in told.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let words: Vec<&str> = line.split(' ').collect();
            let [what, run, attempt, at] = words[..] else { panic!("{line:?}") };
            let key: (Run, Attempt) = (run.parse().unwrap(), attempt.parse().unwrap());
            let at = at.parse().unwrap();
            if what == "start" {
                let before = all.insert(key, Execution { life, start: at, end: None });
                assert!(before.is_none(), "{key:?} was called twice: {before:?}, {life} {at}");
                continue;
            }
            let execution: &mut Execution = all.get_mut(&key).expect("its start was told first");
            assert_eq!((what, execution.life, execution.end), ("end", life, None), "{key:?}");
            execution.end = Some(at);
        }
    }
    all
}

/// I5: the calls for one run come one after the other, and there is another only because the process of the one
/// before was killed in the middle of it, or before its end was heard. What is wrong with that, if anything.
fn wrong(one: &Execution, next: &Execution, died: Option<u64>) -> Option<&'static str> {
    let heard_within = HEARD_WITHIN.as_micros() as u64;
    match (one.end, died) {
        (Some(end), _) if end > next.start => Some("two at once"),
        (_, None) => Some("called again although its process was not killed"),
        (_, Some(died)) if died > next.start => Some("called again while its process lived"),
        (Some(end), Some(died)) if died > end + heard_within => Some("its end was not heard"),
        (_, Some(_)) => None,
    }
}

#[test]
fn a_witness_sees_what_is_wrong() {
    let second = 1_000_000;
    let table = [
        (None, Some(20), 30, None),
        (Some(15), Some(20), 30, None),
        (Some(40), None, 30, Some("two at once")),
        (Some(40), Some(50), 30, Some("two at once")),
        (Some(15), None, 30, Some("called again although its process was not killed")),
        (None, None, 30, Some("called again although its process was not killed")),
        (None, Some(40), 30, Some("called again while its process lived")),
        (Some(15), Some(40), 30, Some("called again while its process lived")),
        (Some(15), Some(9 * second), 10 * second, Some("its end was not heard")),
    ];
    for (end, died, start, expected) in table {
        let one = Execution { life: 0, start: 10, end };
        let next = Execution { life: 1, start, end: None };
        assert_eq!(wrong(&one, &next, died), expected, "{one:?} {died:?} {next:?}");
    }
}

/// Judges it all.
pub(super) fn judge(submitted: &BTreeSet<Run>, history: &History, lives: &[Life]) -> Seen {
    let executions = executions(lives);
    let mut seen = Seen { runs: submitted.len(), executions: executions.len(), ..Seen::default() };
    for ((key, one), (next_key, next)) in executions.iter().zip(executions.iter().skip(1)) {
        if key.0 == next_key.0 {
            let died = lives[one.life].died;
            let wrong = wrong(one, next, died);
            assert_eq!(wrong, None, "{key:?} {one:?}, died {died:?}, {next_key:?} {next:?}");
        }
    }

    assert!(history.states.keys().eq(submitted), "there are other runs than those submitted");
    for (run, state) in &history.states {
        assert_eq!(state, "SUCCEEDED", "run {run}");
    }
    let by_process: HashMap<_, _> =
        lives.iter().enumerate().map(|(life, one)| ((one.node.clone(), one.pid), life)).collect();
    let mut succeeded = BTreeSet::new();
    for (key, (outcome, worker)) in &history.attempts {
        let life = by_process[&history.workers[worker]];
        let execution = executions.get(key);
        if let Some(execution) = execution {
            assert_eq!(execution.life, life, "{key:?} was called by another process");
        }
        let ended = execution.is_some_and(|execution| execution.end.is_some());
        match outcome.as_str() {
            "SUCCEEDED" => {
                assert!(ended, "{key:?} succeeded without coming to its end");
                assert!(succeeded.insert(key.0), "run {} succeeded twice", key.0);
            }
            "LOST" => {
                assert!(lives[life].died.is_some(), "{key:?} was lost by a process that lived");
                seen.lost += 1;
                seen.unheard += usize::from(ended);
                seen.cut_off += usize::from(execution.is_some() && !ended);
            }
            other => panic!("{key:?} ended as {other}"),
        }
    }
    assert_eq!(&succeeded, submitted, "every run has one attempt that succeeded");
    for key in executions.keys() {
        assert!(history.attempts.contains_key(key), "the history does not know of {key:?}");
    }
    seen
}
