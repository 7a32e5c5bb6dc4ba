//! Random load: a client that acts as worker, leader and operator in random order, and records what the database
//! acknowledged.

use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{AttemptErrorCode, Epoch, LeaseToken, RunId, RunState, WorkerId};
use tasuki_store::{
    AssignRequest, AttemptReport, AttemptResult, ClaimRequest, ClaimResult, Error, JobCreateResult,
    JobDefinition, JobKind, JobVersion, JobVersionSpec, NewRun, NewWorker, Outcome,
    StateAfterAttempt, Store, Trigger, Writer,
};

use crate::fixtures::failed_result;

const SHORT_TTL: Duration = Duration::from_millis(200);

/// A small pseudo-random number generator (a linear congruential generator).
pub(crate) struct TestRandom(pub(crate) u64);

impl TestRandom {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn token(&mut self) -> LeaseToken {
        let mut part = || u128::from(self.below(u64::from(u32::MAX)));
        LeaseToken::from_random(part() << 96 | part() << 64 | part() << 32 | part())
    }
}

/// Writes that the database has acknowledged. They must not be lost.
#[derive(Default)]
pub(crate) struct Acknowledged {
    pub(crate) created: Vec<RunId>,
    pub(crate) reported_ends: Vec<ReportedEnd>,
    pub(crate) epochs: Vec<Epoch>,
}

/// An attempt whose report was applied.
pub(crate) struct ReportedEnd {
    pub(crate) run: RunId,
    pub(crate) token: LeaseToken,
    pub(crate) finish: AttemptResult,
    pub(crate) state: RunState,
}

/// A client that acts as leader, worker and operator.
pub(crate) struct RandomLoad {
    store: Store,
    worker: WorkerId,
    epoch: Epoch,
    jobs: Vec<JobVersion>,
    random: TestRandom,
    pub(crate) acknowledged: Acknowledged,
    /// Number of calls that got no response.
    pub(crate) unanswered_calls: u64,
}

impl RandomLoad {
    pub(crate) async fn new(url: &str) -> Result<Self, Error> {
        let store = Store::open(url, 2).await?;
        let mut random = TestRandom(Timestamp::now().as_nanosecond() as u64);
        let worker = WorkerId::from_bytes(*random.token().as_bytes());
        let new = NewWorker {
            id: worker,
            node: "node".parse()?,
            pid: Some(std::process::id()),
            address: None,
            labels: None,
            slots: 1_000,
            function_slots: 1_000,
        };
        store.register_worker(&new).await?;
        let mut load = Self {
            store,
            worker,
            epoch: Epoch(0),
            jobs: vec![],
            random,
            acknowledged: Acknowledged::default(),
            unanswered_calls: 0,
        };
        for (lane, concurrency) in [
            ("q", ConcurrencyPolicy::Allow),
            ("q", ConcurrencyPolicy::Forbid),
            ("", ConcurrencyPolicy::Allow),
            ("", ConcurrencyPolicy::Forbid),
        ] {
            let spec = JobVersionSpec {
                kind: JobKind::Function,
                spec: "{}".to_owned(),
                lane: lane.to_owned(),
                concurrency,
                max_attempts: 3,
                max_releases: 3,
                backoff: Duration::from_millis(1),
                backoff_cap: Duration::from_millis(5),
                jitter_percent: 0,
                retry_lost: true,
                labels: Default::default(),
            };
            let name = format!("{worker} {}", load.jobs.len()).parse()?;
            let definition = JobDefinition { trigger: Trigger::Task, enabled: true, spec };
            match load.store.create_job("test", &name, &definition, None).await? {
                JobCreateResult::Created(job) => load.jobs.push(job.newest),
                JobCreateResult::NameTaken => unreachable!("the name contains the worker's id"),
            }
        }
        Ok(load)
    }

    /// Runs one random operation. A lost race or an outdated term is not an error of the test.
    pub(crate) async fn run_random_operation(&mut self) -> Result<(), Error> {
        let index = self.random.below(self.acknowledged.created.len().max(1) as u64) as usize;
        let run = self.acknowledged.created.get(index).copied().unwrap_or(RunId(1));
        match self.random.below(9) {
            0 | 1 => {
                let job = &self.jobs[self.random.below(4) as usize];
                let soon = Timestamp::now() + jiff::SignedDuration::from_secs(1);
                let expires_at = (self.random.below(4) == 0).then_some(soon);
                let new: Vec<NewRun<'_>> =
                    (0..3).map(|_| NewRun { expires_at, ..NewRun::task(job) }).collect();
                let created = self.store.create_or_find_runs(Writer::Api, &new).await?;
                self.acknowledged.created.extend(created.iter().map(|one| one.run));
            }
            2 | 3 => self.claim_and_report().await?,
            4 | 5 => self.assign_and_start().await?,
            6 => drop(self.store.cancel(Writer::Api, run, "test", None).await?),
            7 => drop(self.store.retry_manually(run, "test", None).await?),
            _ => self.act_as_leader(run).await?,
        }
        Ok(())
    }

    async fn claim_and_report(&mut self) -> Result<(), Error> {
        let token = self.random.token();
        let batch = ClaimRequest {
            worker: self.worker,
            token,
            lane: "q",
            max_runs: 4,
            lease_ttl: SHORT_TTL,
            after: None,
        };
        let ClaimResult::Runs(runs) = self.store.claim(&batch).await? else { return Ok(()) };
        self.report_some(token, runs.iter().map(|run| run.id).collect()).await
    }

    /// Reports some runs as succeeded, some as failed, and leaves the others running.
    async fn report_some(&mut self, token: LeaseToken, runs: Vec<RunId>) -> Result<(), Error> {
        for run in runs {
            let finish = match self.random.below(4) {
                0 => continue,
                1 => failed_result(AttemptErrorCode::UNEXPECTED_ERROR),
                _ => AttemptResult::default(),
            };
            if let Some(StateAfterAttempt { state }) =
                self.report(token, run, &finish).await?.into_applied()
            {
                self.acknowledged.reported_ends.push(ReportedEnd { run, token, finish, state });
            }
        }
        Ok(())
    }

    /// Repeats a report until there is a response: after a connection error the worker does not know whether the
    /// report was applied.
    async fn report(
        &mut self,
        token: LeaseToken,
        run: RunId,
        finish: &AttemptResult,
    ) -> Result<Outcome<StateAfterAttempt>, Error> {
        loop {
            let report = AttemptReport::new(token, run, finish.clone());
            match self.store.finish(&[report], &[token]).await {
                Err(error) if error.is_unavailable() => self.unanswered_calls += 1,
                answer => return answer.map(|mut outcomes| outcomes.remove(0)),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn assign_and_start(&mut self) -> Result<(), Error> {
        let due_runs = self.store.list_due_in_lane("", Timestamp::now(), 4).await?;
        let token = self.random.token();
        let batch = AssignRequest {
            epoch: self.epoch,
            worker: self.worker,
            token,
            runs: &due_runs,
            assign_ahead: SHORT_TTL,
            reassign_after: SHORT_TTL,
        };
        let assigned = self.store.assign(&batch).await?;
        if self.random.below(4) == 0 {
            if let Some(run) = assigned.first() {
                drop(self.store.release(token, *run).await?);
            }
            return Ok(());
        }
        let started = self.store.start(self.worker, token, &assigned, SHORT_TTL).await?;
        let running = started.into_iter().filter_map(|one| Some(one.into_applied()?.id)).collect();
        self.report_some(token, running).await
    }

    async fn act_as_leader(&mut self, run: RunId) -> Result<(), Error> {
        let seen = self.store.get_leader_record().await?.epoch;
        if let Some(epoch) = self.store.take_leadership(self.worker, seen, seen, SHORT_TTL).await? {
            self.epoch = epoch;
            self.acknowledged.epochs.push(epoch);
        }
        for lease in self.store.list_expired_leases(Duration::ZERO, 4).await? {
            self.store.recover(self.epoch, &lease, Duration::ZERO, 0).await?;
        }
        drop(self.store.expire_waiting_run(self.epoch, run).await?);
        Ok(())
    }

    pub(crate) async fn run_operations(&mut self, count: u64) {
        for _ in 0..count {
            match self.run_random_operation().await {
                Err(Error::Fenced(_)) => {}
                Err(error) if error.is_contention() => {}
                answer => answer.unwrap(),
            }
        }
    }
}

/// Asserts that the doctor has no findings.
pub(crate) async fn assert_doctor_clean(store: &Store) {
    let report = store.check_invariants(Timestamp::now).await.unwrap();
    let findings: Vec<String> = report
        .findings()
        .map(|(id, one)| format!("{id}: {} {:?}", one.problem, one.examples))
        .collect();
    assert_eq!(findings, [] as [String; 0]);
}
