//! Many jobs that all fire every second: every slot runs exactly once.
//!
//! With `TASUKI_LONG=1` the test is larger: 1,000 jobs for 60 seconds. The printed figures are measurements, not limits.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tasuki::HandlerRegistry;
use tasuki_core::work_spec::{WorkAction, WorkSpec};
use tasuki_core::{JobId, RunState};
use tasuki_store::{JobCreateResult, JobDefinition, Run, RunFilter};

use crate::node_fixture::{NodeFixture, every_trigger, spec};

const SECOND: SignedDuration = SignedDuration::from_secs(1);

fn job_count_and_seconds() -> (usize, i64) {
    match std::env::var_os("TASUKI_LONG") {
        Some(_) => (1_000, 60),
        None => (200, 10),
    }
}

/// The next full second.
fn full_second(after: Timestamp) -> Timestamp {
    Timestamp::from_second(after.as_second() + 1).unwrap()
}

impl NodeFixture {
    /// Creates jobs that all fire for the first time at the same instant.
    async fn create_every_second_jobs(&self, count: usize, first: Timestamp) -> Vec<JobId> {
        let work = WorkSpec::new(WorkAction::Function("tick".to_owned()));
        let trigger = every_trigger("1s", None);
        let definition = JobDefinition { trigger, enabled: true, spec: spec(&work) };
        let mut jobs = Vec::new();
        for number in 0..count {
            let name = format!("metronome {number}").parse().unwrap();
            let made = self.store.create_job("test", &name, &definition, Some(first)).await;
            let JobCreateResult::Created(job) = made.unwrap() else { panic!("{name} is taken") };
            jobs.push(job.id);
        }
        jobs
    }

    /// Lists the runs of a job whose slots are in a time window.
    async fn list_runs_in_window(&self, job: JobId, from: Timestamp, to: Timestamp) -> Vec<Run> {
        let filter = RunFilter { job: Some(job), ..RunFilter::default() };
        let page = self.store.list_runs(&filter, None, 200).await.unwrap();
        let mut runs = page.runs;
        runs.retain(|run| from <= run.scheduled_for && run.scheduled_for < to);
        runs
    }
}

/// CPU time that this process has used, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

#[tokio::test(flavor = "multi_thread")]
async fn many_every_second_jobs_run_each_slot_exactly_once() {
    let (count, seconds) = job_count_and_seconds();
    let fixture = NodeFixture::new().await;
    let clock = fixture.store.read_clock().await.unwrap();
    let jobs = fixture
        .create_every_second_jobs(count, full_second(clock) + SignedDuration::from_secs(1))
        .await;
    let mut functions = HandlerRegistry::default();
    functions.register("tick", |(), _| async { Ok(()) });
    let node = fixture.start_functions_only_node(functions).await;

    // Slots that became due while the jobs were created run first and are not counted.
    let from = full_second(fixture.store.read_clock().await.unwrap()) + 3 * SECOND;
    let to = from + SECOND * i32::try_from(seconds).unwrap();
    let mut used = None;
    let timeout = Duration::from_secs(120 + 2 * seconds as u64);
    let all_fired = async {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let clock = fixture.store.read_clock().await.unwrap();
            if clock > from && used.is_none() {
                used = Some((cpu_seconds(), clock));
            }
            if clock >= to {
                return clock;
            }
        }
    };
    let fired = tokio::time::timeout(timeout, all_fired).await.expect("the window ends in time");
    let (before, window_start) = used.expect("the window began");
    let share = (cpu_seconds() - before) / (fired.duration_since(window_start).as_secs_f64());

    let mut lateness = Vec::new();
    for job in jobs {
        let runs = fixture
            .wait_until(&format!("all slots of job {job} have ended"), async || {
                let runs = fixture.list_runs_in_window(job, from, to).await;
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
    fixture.finish().await;
}
