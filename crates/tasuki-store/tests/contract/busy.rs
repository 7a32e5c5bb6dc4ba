//! A load that does a bit of everything, and remembers what it was told.

use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::{Epoch, ErrorCode, LeaseToken, RunId, RunState, WorkerId};
use tasuki_store::{
    AssignBatch, Writer, ClaimBatch, ClaimResult, Error, AttemptResult, Finished, JobCreated, JobDefinition,
    JobKind, JobSpec, JobVersion, NewRun, NewWorker, Outcome, Store, Trigger,
};

use crate::given::failed;

const SHORT: Duration = Duration::from_millis(200);

/// Numbers that differ from process to process and look like chance.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn token(&mut self) -> LeaseToken {
        let mut part = || u128::from(self.roll(u64::from(u32::MAX)));
        LeaseToken::from_random(part() << 96 | part() << 64 | part() << 32 | part())
    }
}

/// What the database has said is so, and what must be so ever after.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) made: Vec<RunId>,
    pub(crate) ended: Vec<End>,
    pub(crate) minted: Vec<Epoch>,
}

/// An attempt whose end was reported and applied.
pub(crate) struct End {
    pub(crate) run: RunId,
    pub(crate) token: LeaseToken,
    pub(crate) finish: AttemptResult,
    pub(crate) state: RunState,
}

/// One who does a bit of everything: leader, worker and operator.
pub(crate) struct Busy {
    store: Store,
    worker: WorkerId,
    epoch: Epoch,
    jobs: Vec<JobVersion>,
    dice: Dice,
    pub(crate) told: Told,
    /// How often a report got no answer and was made again.
    pub(crate) unanswered: u64,
}

impl Busy {
    pub(crate) async fn new(url: &str) -> Result<Self, Error> {
        let store = Store::open(url, 2).await?;
        let mut dice = Dice(Timestamp::now().as_nanosecond() as u64);
        let worker = WorkerId::from_bytes(*dice.token().as_bytes());
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
        let mut busy = Self {
            store,
            worker,
            epoch: Epoch(0),
            jobs: vec![],
            dice,
            told: Told::default(),
            unanswered: 0,
        };
        for (lane, concurrency) in [
            ("q", ConcurrencyPolicy::Allow),
            ("q", ConcurrencyPolicy::Forbid),
            ("", ConcurrencyPolicy::Allow),
            ("", ConcurrencyPolicy::Forbid),
        ] {
            let spec = JobSpec {
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
            let name = format!("{worker} {}", busy.jobs.len()).parse()?;
            let definition = JobDefinition { trigger: Trigger::Task, enabled: true, spec };
            match busy.store.create_job("test", &name, &definition, None).await? {
                JobCreated::Made(job) => busy.jobs.push(job.newest),
                JobCreated::NameTaken => unreachable!("a worker's id is its own"),
            }
        }
        Ok(busy)
    }

    /// One move of some kind. A lost race or a superseded term is a normal day.
    pub(crate) async fn move_something(&mut self) -> Result<(), Error> {
        let known = self.dice.roll(self.told.made.len().max(1) as u64) as usize;
        let known = self.told.made.get(known).copied().unwrap_or(RunId(1));
        match self.dice.roll(9) {
            0 | 1 => {
                let job = &self.jobs[self.dice.roll(4) as usize];
                let soon = Timestamp::now() + jiff::SignedDuration::from_secs(1);
                let expires_at = (self.dice.roll(4) == 0).then_some(soon);
                let new: Vec<NewRun<'_>> =
                    (0..3).map(|_| NewRun { expires_at, ..NewRun::task(job) }).collect();
                let made = self.store.create(Writer::Api, &new).await?;
                self.told.made.extend(made.iter().map(|one| one.run));
            }
            2 | 3 => self.claim().await?,
            4 | 5 => self.assign().await?,
            6 => drop(self.store.cancel(Writer::Api, known, "test", None).await?),
            7 => drop(self.store.retry(known, "test", None).await?),
            _ => self.lead(known).await?,
        }
        Ok(())
    }

    async fn claim(&mut self) -> Result<(), Error> {
        let token = self.dice.token();
        let batch = ClaimBatch { worker: self.worker, token, lane: "q", most: 4, lease_ttl: SHORT };
        let ClaimResult::Runs(runs) = self.store.claim(&batch).await? else { return Ok(()) };
        self.end(token, runs.iter().map(|run| run.id).collect()).await
    }

    /// Ends some well, some badly, and forgets some.
    async fn end(&mut self, token: LeaseToken, runs: Vec<RunId>) -> Result<(), Error> {
        for run in runs {
            let finish = match self.dice.roll(4) {
                0 => continue,
                1 => failed(ErrorCode::UNEXPECTED_ERROR),
                _ => AttemptResult::default(),
            };
            if let Some(Finished { state }) = self.report(token, run, &finish).await?.applied() {
                self.told.ended.push(End { run, token, finish, state });
            }
        }
        Ok(())
    }

    /// Reports an end until there is an answer: a worker whose database was away knows no more than
    /// that it may have been heard.
    async fn report(
        &mut self,
        token: LeaseToken,
        run: RunId,
        finish: &AttemptResult,
    ) -> Result<Outcome<Finished>, Error> {
        loop {
            match self.store.finish(token, run, finish).await {
                Err(error) if error.is_unavailable() => self.unanswered += 1,
                answer => return answer,
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn assign(&mut self) -> Result<(), Error> {
        let wanted = self.store.due("", Timestamp::now(), 4).await?;
        let token = self.dice.token();
        let batch = AssignBatch {
            epoch: self.epoch,
            worker: self.worker,
            token,
            runs: &wanted,
            assign_ahead: SHORT,
            reassign_after: SHORT,
        };
        let given = self.store.assign(&batch).await?;
        if self.dice.roll(4) == 0 {
            if let Some(run) = given.first() {
                drop(self.store.release(token, *run).await?);
            }
            return Ok(());
        }
        let started = self.store.start(self.worker, token, &given, SHORT).await?;
        let running = started.into_iter().filter_map(|one| Some(one.applied()?.id)).collect();
        self.end(token, running).await
    }

    async fn lead(&mut self, known: RunId) -> Result<(), Error> {
        let seen = self.store.leader().await?.epoch;
        if let Some(epoch) = self.store.mint(self.worker, seen, seen, SHORT).await? {
            self.epoch = epoch;
            self.told.minted.push(epoch);
        }
        for lease in self.store.lapsed(Duration::ZERO, 4).await? {
            self.store.recover(self.epoch, &lease, Duration::ZERO, 0).await?;
        }
        drop(self.store.expire(self.epoch, known).await?);
        Ok(())
    }

    pub(crate) async fn work(&mut self, moves: u64) {
        for _ in 0..moves {
            match self.move_something().await {
                Err(Error::Fenced(_)) => {}
                Err(error) if error.is_contention() => {}
                answer => answer.unwrap(),
            }
        }
    }
}

/// The doctor finds nothing.
pub(crate) async fn assert_clean(store: &Store) {
    let report = store.doctor(Timestamp::now).await.unwrap();
    let findings: Vec<String> = report
        .findings()
        .map(|(id, one)| format!("{id}: {} {:?}", one.what, one.examples))
        .collect();
    assert_eq!(findings, [] as [String; 0]);
}
