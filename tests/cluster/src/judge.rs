//! The judge: what must hold whatever broke, and how long things took beside what is promised.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{Epoch, RunState};
use tasuki_store::{Execution, Run};

use crate::cluster::Cluster;
use crate::load::{ASKED, FIRES, runs_of};
use crate::place::until;
use crate::rules::{self, Told};

/// What is promised for the settings as they are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// What.
    pub what: &'static str,
    /// How many seconds at the most, if anything is promised.
    pub seconds: Option<f64>,
}

impl Bound {
    pub(crate) const NEXT_LEADER: Self =
        Self { what: "next leader's first write", seconds: Some(8.0) };
    pub(crate) const SUCCESSOR: Self =
        Self { what: "next leader's first write after SIGTERM", seconds: Some(2.0) };
    const HEALTHY: Self = Self { what: "a due run starts, healthy (p99)", seconds: Some(0.05) };
    const ACROSS: Self =
        Self { what: "a due run starts, across a failover (worst)", seconds: Some(11.0) };
    const OUTAGE: Self =
        Self { what: "a due run starts, across an outage of the database (worst)", seconds: None };
    pub(crate) const RESTARTED: Self =
        Self { what: "runs of a killed and restarted worker recovered", seconds: Some(10.0) };
    pub(crate) const NODE_LOST: Self =
        Self { what: "runs of a lost node recovered", seconds: Some(45.0) };
    pub(crate) const RECORDED: Self =
        Self { what: "results recorded after the database's return", seconds: Some(10.0) };
    const HEALED: Self =
        Self { what: "everything due started or skipped after the heal", seconds: Some(30.0) };
}

/// How long something took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Beside what is promised.
    pub bound: Bound,
    /// How many seconds.
    pub seconds: f64,
}

/// What became of a cluster.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What must not be.
    pub broken: Vec<String>,
    /// How long things took.
    pub measured: Vec<Measured>,
    /// What is worth knowing.
    pub counted: BTreeMap<&'static str, usize>,
}

/// What a fault wrote down on its way.
#[derive(Debug, Default)]
pub(crate) struct Course {
    pub(crate) broke_at: Timestamp,
    pub(crate) healed_at: Timestamp,
    /// Somebody else had to lead after this term.
    pub(crate) takeover: Option<(Epoch, Bound)>,
    pub(crate) measured: Vec<Measured>,
    pub(crate) broken: Vec<String>,
    /// Nobody could plan, because the database was away.
    pub(crate) outage: bool,
}

impl Cluster {
    /// Waits until nothing is overdue, ends everything in order, and judges.
    pub(crate) fn judge(&mut self, course: Course) -> Verdict {
        let Course { broke_at, healed_at, takeover, measured, broken, outage } = course;
        let mut verdict = Verdict { broken, measured, counted: BTreeMap::new() };
        self.settle();
        let settled = Timestamp::now();
        self.go_on(healed_at);
        let disabled_at = self.learn(async |store| store.clock().await);
        self.unload();
        let told: BTreeMap<&str, Vec<Told>> =
            FIRES.iter().map(|job| job.name).chain(ASKED).map(|job| (job, self.all(job))).collect();
        let witness = self.witness();
        // What has outlived its run writes five times in that time, and is looked for in the end.
        thread::sleep(Duration::from_secs(1));
        for job in &FIRES {
            rules::slots(job, &told[job.name], disabled_at, &witness, &mut verdict);
        }
        let everything: Vec<&Told> = told.values().flatten().collect();
        rules::attempts(&everything, &witness, &mut verdict);
        self.terms(&everything, &mut verdict);
        if let Some((old, bound)) = takeover {
            // The term itself is its first write: what it then gives depends on what there is to give.
            let terms = self.learn(async |store| store.terms().await);
            let next =
                terms.iter().filter(|term| term.epoch > old).map(|term| term.minted_at).min();
            match next {
                Some(next) => {
                    verdict.measured.push(Measured { bound, seconds: between(broke_at, next) });
                }
                None => verdict.broken.push("nobody else ever led".to_owned()),
            }
        }
        let across = if outage { Bound::OUTAGE } else { Bound::ACROSS };
        let fired = FIRES.iter().flat_map(|job| &told[job.name]);
        verdict.measured.push(healed(fired, healed_at));
        late(&told[FIRES[0].name], broke_at..settled, across, &mut verdict);
        self.stop_all();
        let report = self.learn(async |store| store.doctor(Timestamp::now).await);
        for check in report.checks.iter().filter(|check| !check.done || !check.findings.is_empty())
        {
            verdict.broken.push(format!("doctor: {} {:?}", check.id, check.findings));
        }
        verdict.broken.extend(self.witness().outlived(&witness));
        verdict
    }

    /// Waits until nothing is overdue.
    fn settle(&self) {
        until("nothing is overdue", || {
            let clock = self.look(async |store| store.clock().await)?;
            let runs: Option<Vec<Vec<Run>>> = FIRES.iter().map(|job| self.runs(job.name)).collect();
            let runs = runs?;
            let known = runs.iter().all(|runs| {
                runs.iter().map(|run| run.scheduled_for).max().is_some_and(|last| last > clock)
            });
            let overdue = |run: &Run| {
                let waits = !run.state.is_ended() && run.state != RunState::Running;
                waits && between(run.due_at(), clock) > 1.0
            };
            (known && !runs.iter().flatten().any(overdue)).then_some(())
        });
    }

    /// Waits until slots of every job that were planned after the heal have succeeded: all is well again.
    fn go_on(&self, healed_at: Timestamp) {
        let well = |run: &&Run| run.state == RunState::Succeeded && run.scheduled_for > healed_at;
        for job in &FIRES {
            until(&format!("{} goes on", job.name), || {
                (self.runs(job.name)?.iter().filter(well).count() >= 2).then_some(())
            });
        }
    }

    fn all(&self, job: &str) -> Vec<Told> {
        self.learn(async |store| {
            let mut told = Vec::new();
            for run in runs_of(store, job).await? {
                let all = store.executions(run.id).await?;
                told.push((run, all));
            }
            Ok(told)
        })
    }

    /// Epochs only rise, and nothing was given in a term after the next one was minted.
    fn terms(&self, runs: &[&Told], verdict: &mut Verdict) {
        let terms = self.learn(async |store| store.terms().await);
        let mut terms: Vec<_> = terms.iter().map(|term| (term.epoch, term.minted_at)).collect();
        terms.sort_unstable();
        verdict.counted.insert("terms", terms.len());
        for pair in terms.windows(2) {
            if pair[0].1 > pair[1].1 {
                verdict.broken.push(format!("term {} is older than the one before", pair[1].0));
            }
        }
        for (run, one) in runs.iter().flat_map(|(run, all)| all.iter().map(move |one| (run, one))) {
            let Some(epoch) = one.epoch else { continue };
            let since = terms.iter().find(|term| term.0 == epoch).map(|term| term.1);
            let until = terms.iter().find(|term| term.0 > epoch).map(|term| term.1);
            let within = since.is_some_and(|since| since <= one.assigned_at)
                && until.is_none_or(|until| one.assigned_at <= until);
            if !within {
                verdict.broken.push(format!(
                    "attempt {} of run {} was given in term {epoch}, which it was not just then",
                    one.attempt_no, run.id
                ));
            }
        }
    }
}

/// How long after the heal the last of what had been due before it was started or skipped.
fn healed<'a>(runs: impl Iterator<Item = &'a Told>, healed_at: Timestamp) -> Measured {
    let due = runs.filter(|(run, _)| run.scheduled_for <= healed_at);
    let seen_to = due.filter_map(|(run, all)| {
        let started = all.iter().filter_map(|one| one.started_at).min();
        started.or(run.finished_at)
    });
    let last = seen_to.max().map_or(0.0, |last| between(healed_at, last));
    Measured { bound: Bound::HEALED, seconds: last.max(0.0) }
}

/// How late runs began, before the fault and across it.
fn late(runs: &[Told], fault: Range<Timestamp>, bound: Bound, verdict: &mut Verdict) {
    let first = |all: &[Execution]| all.iter().filter_map(|one| one.started_at).min();
    let (mut healthy, mut across) = (Vec::new(), Vec::new());
    // The first ones were made after their time: the job was new.
    for (run, all) in runs.iter().skip(3) {
        let Some(started) = first(all) else { continue };
        let late = between(run.scheduled_for, started).max(0.0);
        if started < fault.start || run.scheduled_for > fault.end {
            healthy.push(late);
        } else {
            across.push(late);
        }
    }
    healthy.sort_unstable_by(f64::total_cmp);
    let place = (healthy.len() * 99).div_ceil(100).saturating_sub(1);
    for (bound, seconds) in [
        (Bound::HEALTHY, healthy.get(place).copied()),
        (bound, across.into_iter().max_by(f64::total_cmp)),
    ] {
        verdict.measured.extend(seconds.map(|seconds| Measured { bound, seconds }));
    }
}

pub(crate) fn between(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}
