//! T0 and T1c in one statement: tasks that a program submits to a node in its own process are created and claimed at
//! once, if the worker has free slots and no run that waits longer is passed over.

use tasuki_core::{JobName, LeaseToken};
use tasuki_store::{
    ClaimRequest, ClaimResult, CreatedRun, Error, Job, NewRun, PendingTask, StartedRun,
};

use super::super::store_timeout::with_timeout;
use super::claims::free_slots;
use super::{Worker, is_suspended};

impl Worker {
    /// Prepares what the first task of a declared job needs: the job version in the cache and, where the database plans
    /// statements for each connection, planned statements on one connection. For the plans it executes the statements with an
    /// empty list of tasks.
    pub(crate) async fn warm_up(&self, declared: Vec<Job>) {
        let first_name = declared.first().and_then(|job| job.name.parse().ok());
        self.jobs.insert_all(declared.into_iter().map(|job| (job.name, job.newest)).collect());
        // An error is ignored: if the database is unreachable, the first task will report it.
        let _ = with_timeout(self.prepare_statements(first_name)).await;
    }

    /// Executes, without any task, the statements that the first task will execute.
    async fn prepare_statements(&self, job_name: Option<JobName>) -> Result<(), Error> {
        let store = &self.parts.store;
        if let Some(name) = job_name {
            store.find_job(&name).await?;
        }
        let Some(lane) = self.parts.lanes.first() else { return Ok(()) };
        let token = LeaseToken::from_random(self.parts.random.next_u128());
        let lease_ttl = self.settings().lease_ttl();
        let empty_claim = ClaimRequest {
            worker: self.id(),
            token,
            lane: &lane.lane,
            max_runs: 0,
            lease_ttl,
            after: None,
        };
        store.submit_and_claim(&empty_claim, &[]).await.map(drop)
    }

    /// Creates runs for tasks, claims them and launches them. `None`: nothing was created, and the tasks must be
    /// submitted to the queue.
    pub(crate) async fn submit_and_claim(
        &self,
        tasks: &[PendingTask],
    ) -> Result<Option<Vec<CreatedRun>>, Error> {
        let Some(lane_name) = common_lane(tasks) else { return Ok(None) };
        let Some(lane) = self.parts.lanes.iter().find(|lane| lane.lane == lane_name) else {
            return Ok(None);
        };
        let sent_claim = {
            let mut state = self.state();
            let free = free_slots(&state, lane.pool) as usize;
            if is_suspended(&state) || !state.nothing_due || free < tasks.len() {
                return Ok(None);
            }
            self.register_claim(&mut state, lane.pool, tasks.len() as u32)
        };
        let runs: Vec<NewRun<'_>> = tasks.iter().map(PendingTask::new_run).collect();
        let claimed = with_timeout(
            self.parts.store.submit_and_claim(&self.claim_request(&sent_claim, lane_name), &runs),
        )
        .await;
        // The runs are returned even if they cannot be launched here: they exist and must not be created again.
        let created = |runs: &Vec<StartedRun>| {
            runs.iter().map(|claimed| CreatedRun { run: claimed.id, existed: false }).collect()
        };
        let created = claimed.as_ref().ok().filter(|runs| !runs.is_empty()).map(created);
        let claimed = self.record_claim(&sent_claim, claimed.map(ClaimResult::Runs))?;
        self.launch(sent_claim.token, claimed).await;
        Ok(created)
    }
}

/// The common lane of these tasks, if they have one and nothing else (a hold, a later instant) decides when they start.
fn common_lane(tasks: &[PendingTask]) -> Option<&str> {
    let lane = tasks.first()?.lane();
    let fits = |task: &PendingTask| task.lane() == lane && task.can_start_at_once();
    (!lane.is_empty() && tasks.iter().all(fits)).then_some(lane)
}
