//! Many jobs that all fire every second: no slot is missing, none is doubled.
//!
//! With `TASUKI_LONG=1` in full: 1,000 jobs for 60 seconds. What it prints are figures, not promises.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki::Functions;
use tasuki_core::job_spec::{What, Work};
use tasuki_core::{JobId, RunState};
use tasuki_store::{JobCreated, JobDefinition, Run, RunFilter};

use crate::place::{Place, every, spec};

const SECOND: SignedDuration = SignedDuration::from_secs(1);

fn size() -> (usize, i64) {
    match std::env::var_os("TASUKI_LONG") {
        Some(_) => (1_000, 60),
        None => (200, 10),
    }
}

/// The next full second.
fn full_second(after: Timestamp) -> Timestamp {
    Timestamp::from_second(after.as_second() + 1).unwrap()
}

impl Place {
    /// Jobs that all fire for the first time at one instant.
    async fn metronomes(&self, count: usize, first: Timestamp) -> Vec<JobId> {
        let work = Work::new(What::Function("tick".to_owned()));
        let trigger = every("1s", None);
        let definition = JobDefinition { trigger, enabled: true, spec: spec(&work) };
        let mut jobs = Vec::new();
        for number in 0..count {
            let name = format!("metronome {number}").parse().unwrap();
            let made = self.store.create_job("test", &name, &definition, Some(first)).await;
            let JobCreated::Made(job) = made.unwrap() else { panic!("{name} is taken") };
            jobs.push(job.id);
        }
        jobs
    }

    /// What a job has for the slots of a window.
    async fn within(&self, job: JobId, from: Timestamp, to: Timestamp) -> Vec<Run> {
        let filter = RunFilter { job: Some(job), ..RunFilter::default() };
        let page = self.store.runs(&filter, None, 200).await.unwrap();
        let mut runs = page.runs;
        runs.retain(|run| from <= run.scheduled_for && run.scheduled_for < to);
        runs
    }
}

/// The CPU time this process has used, in seconds.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_that_fire_every_second_miss_no_slot_and_double_none() {
    let (count, seconds) = size();
    let place = Place::new().await;
    let clock = place.store.clock().await.unwrap();
    let jobs = place.metronomes(count, full_second(clock) + SignedDuration::from_secs(1)).await;
    let mut functions = Functions::default();
    functions.add("tick", |(), _| async { Ok(()) });
    let node = place.functions_only(functions).await;

    // What came due while the jobs were made is worked off first.
    let from = full_second(place.store.clock().await.unwrap()) + 3 * SECOND;
    let to = from + SECOND * i32::try_from(seconds).unwrap();
    let mut used = None;
    let patience = Duration::from_secs(120 + 2 * seconds as u64);
    let all_fired = async {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let clock = place.store.clock().await.unwrap();
            if clock > from && used.is_none() {
                used = Some((cpu(), clock));
            }
            if clock >= to {
                return clock;
            }
        }
    };
    let fired = tokio::time::timeout(patience, all_fired).await.expect("time goes on");
    let (before, since) = used.expect("the window began");
    let share = (cpu() - before) / (fired.duration_since(since).as_secs_f64());

    let mut lateness = Vec::new();
    for job in jobs {
        let runs = place
            .until(&format!("all slots of job {job} have ended"), async || {
                let runs = place.within(job, from, to).await;
                let ended = runs.iter().all(|run| run.state.is_ended());
                (ended && runs.len() >= seconds as usize).then_some(runs)
            })
            .await;
        let mut slots: BTreeMap<Timestamp, Vec<RunState>> = BTreeMap::new();
        for run in &runs {
            slots.entry(run.scheduled_for).or_default().push(run.state);
            lateness.push(run.started_at.unwrap().duration_since(run.scheduled_for).as_micros());
        }
        for second in 0..seconds {
            let slot = from + SECOND * i32::try_from(second).unwrap();
            let found = slots.remove(&slot).unwrap_or_default();
            assert_eq!(found, [RunState::Succeeded], "job {job}, slot {slot}");
        }
        assert_eq!(slots, BTreeMap::new(), "nothing between the seconds");
    }
    lateness.sort_unstable();
    let share_of = |percent: usize| lateness[(lateness.len() - 1) * percent / 100] as f64 / 1e3;
    println!(
        "{count} jobs every second: started {} late by p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms; {:.0} % of a core",
        lateness.len(),
        share_of(50),
        share_of(99),
        share_of(100),
        share * 100.0,
    );
    node.stop().await;
    place.end().await;
}
