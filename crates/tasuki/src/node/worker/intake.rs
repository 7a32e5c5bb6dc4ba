//! T0 and T1c at once: what is submitted in this process is carried here from the moment it is there, if there is room
//! and nobody who waits is passed over.

use tasuki_core::{JobName, LeaseToken};
use tasuki_store::{ClaimBatch, ClaimResult, Created, Dialect, Error, Job, NewRun, Taken, Task};

use super::super::within::within;
use super::claims::free;
use super::{Worker, is_aside};

impl Worker {
    /// What the first task of a job that was declared here will need: what its runs are made of, and that PostgreSQL has
    /// planned, on one session, what it will be asked and told then. It is told the same of no task.
    pub(crate) async fn rehearse(&self, declared: Vec<Job>) {
        let asked = declared.first().and_then(|job| job.name.parse().ok());
        self.recipes.learn(declared.into_iter().map(|job| (job.name, job.newest)).collect());
        if self.parts.store.dialect() == Dialect::Postgres {
            // Where it does not answer, the first task will find out.
            let _ = within(self.say_of_none(asked)).await;
        }
    }

    async fn say_of_none(&self, asked: Option<JobName>) -> Result<(), Error> {
        let store = &self.parts.store;
        if let Some(name) = asked {
            store.job(&name).await?;
        }
        let Some(source) = self.parts.lanes.first() else { return Ok(()) };
        let token = LeaseToken::from_random(self.parts.dice.roll());
        let lease_ttl = self.settings().lease_ttl();
        let none = ClaimBatch { worker: self.id(), token, lane: &source.lane, most: 0, lease_ttl };
        store.take_in(&none, &[]).await.map(drop)
    }

    /// Makes runs of tasks, and carries them. `None`, and nothing was made: they have to wait for their turn.
    pub(crate) async fn take_in(&self, tasks: &[Task]) -> Result<Option<Vec<Created>>, Error> {
        let Some(lane) = common_lane(tasks) else { return Ok(None) };
        let Some(source) = self.parts.lanes.iter().find(|source| source.lane == lane) else {
            return Ok(None);
        };
        let asked = {
            let mut state = self.state();
            let room = free(&state, source.pool) as usize;
            if is_aside(&state) || !state.calm || room < tasks.len() {
                return Ok(None);
            }
            self.ask(&mut state, source.pool, tasks.len() as u32)
        };
        let runs: Vec<NewRun<'_>> = tasks.iter().map(Task::run).collect();
        let taken = within(self.parts.store.take_in(&self.batch(&asked, lane), &runs)).await;
        // Whatever becomes of them here: once they are made, nobody may make them again.
        let made = |runs: &Vec<Taken>| {
            runs.iter().map(|taken| Created { run: taken.id, existed: false }).collect()
        };
        let made = taken.as_ref().ok().filter(|runs| !runs.is_empty()).map(made);
        let taken = self.hear_of(&asked, taken.map(ClaimResult::Runs))?;
        self.launch(asked.token, taken).await;
        Ok(made)
    }
}

/// The lane that all these tasks wait in, if nothing else decides when they start.
fn common_lane(tasks: &[Task]) -> Option<&str> {
    let lane = tasks.first()?.lane();
    let fit = |task: &Task| task.lane() == lane && task.is_plain();
    (!lane.is_empty() && tasks.iter().all(fit)).then_some(lane)
}
