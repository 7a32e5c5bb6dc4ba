//! What must hold, always and at the end.

use tasuki_core::RunState;
use tasuki_store::{Error, Run, RunFilter};

use super::world::{ClockMode, World};

impl World {
    /// Every launch followed its RUNNING commit (I10), in its time and before any cancel (I9), and nothing
    /// runs twice at once (I5, I13).
    pub(super) async fn check_launches(&mut self) -> Result<(), Error> {
        let launches = std::mem::take(&mut self.stage.inside().launches);
        if !self.is_tame() {
            return Ok(());
        }
        let doubled = self.stage.inside().doubled();
        if let Some(doubled) = doubled {
            self.stage.broken(|| doubled);
        }
        for one in launches {
            let Some(run) = self.store.run(tasuki_core::RunId(one.key.run)).await? else {
                self.stage.broken(|| format!("{:?} was launched and is no run", one.key));
                continue;
            };
            let now = self.stage.database_time();
            let in_time = run.started_at.is_some_and(|at| {
                run.due_at() <= at && run.start_by.is_none_or(|by| at < by) && at <= now
            });
            let back = self.clock == ClockMode::Back;
            let uncanceled = run.cancel_requested_at.is_none_or(|at| run.started_at <= Some(at));
            if run.state != RunState::Running
                || run.token != Some(one.token)
                || run.counters.attempt_no != one.key.attempt
            {
                self.stage.broken(|| format!("I10: {:?} was launched, but {run:?}", one.key));
            } else if !(back || in_time && uncanceled) {
                self.stage.broken(|| format!("I9: {:?} was started wrongly: {run:?}", one.key));
            }
        }
        Ok(())
    }

    /// Every process that lives is of a run that runs under its token: so none that has ended or was given
    /// to another has one (I5, I11).
    pub(super) async fn check_processes(&mut self) -> Result<(), Error> {
        let exchanges = self.stage.inside().exchanges;
        if !self.is_tame() || exchanges == std::mem::replace(&mut self.checked, exchanges) {
            return Ok(());
        }
        let alive: Vec<_> = {
            let inside = self.stage.inside();
            inside.processes.iter().map(|one| (one.run(), one.key, one.token, one.kind)).collect()
        };
        for (run, key, token, kind) in alive {
            if kind == tasuki_core::job_spec::WorkKind::Function {
                continue;
            }
            let run = self.store.run(run).await?;
            let carried = |run: &Run| run.state == RunState::Running && run.token == Some(token);
            if !run.as_ref().is_some_and(carried) {
                self.stage.broken(|| format!("I11: {key:?} is alive, but {run:?}"));
            }
        }
        Ok(())
    }

    /// What was given away since the last look was given by the newest leader (I4): nobody else has had a
    /// turn meanwhile.
    pub(super) async fn check_epoch(&mut self) -> Result<(), Error> {
        for one in self.store.given().await? {
            if !self.given.insert(one.token) {
                continue;
            }
            let run = self.store.run(one.run).await?;
            let (by, newest) = (run.and_then(|run| run.epoch), self.store.leader().await?.epoch);
            if by != Some(newest) {
                self.stage.broken(|| format!("I4: run {} was given by {by:?}", one.run));
            }
        }
        Ok(())
    }

    /// Whether the clocks agree well enough for leases to be kept.
    fn is_tame(&self) -> bool {
        self.clock != ClockMode::Wild
    }

    /// Whether nothing is left to do.
    pub(super) async fn is_over(&self) -> Result<bool, Error> {
        let idle = self.stage.inside().processes.is_empty()
            && self.hosts.iter().all(|host| host.life.as_ref().is_some_and(|l| l.worker.is_idle()));
        Ok(idle && self.store.lanes().await?.is_empty() && self.left().await?.is_empty())
    }

    /// What is left to do, in words.
    pub(super) async fn left(&self) -> Result<String, Error> {
        let mut left = String::new();
        for lane in self.store.lanes().await? {
            left.push_str(&format!("something waits in lane {lane:?}; "));
        }
        let mut ids: Vec<_> = self.ids.clone();
        ids.extend(self.hosts.iter().filter_map(|host| Some(host.life.as_ref()?.worker.id())));
        for worker in &ids {
            let leases = self.store.leases_of(*worker).await?;
            if !leases.is_empty() {
                left.push_str(&format!("{leases:?}; "));
            }
        }
        if !self.store.open_events(1).await?.is_empty() {
            left.push_str("an event is open; ");
        }
        for host in &self.hosts {
            match &host.life {
                None => left.push_str("a node is down; "),
                Some(life) if !life.worker.is_idle() => left.push_str("a worker is not idle; "),
                Some(_) => {}
            }
        }
        let runs = self.store.runs(&RunFilter::default(), None, 200).await?.runs;
        for run in runs.into_iter().filter(|run| !run.state.is_ended()) {
            let Run { id, state, worker, counters, .. } = run;
            left.push_str(&format!("run {id} is {state} {worker:?} {counters:?}; "));
        }
        Ok(left)
    }

    /// Nothing is left over, and the doctor is content.
    pub(super) async fn check_the_end(&mut self) -> Result<(), Error> {
        let alive: Vec<_> =
            self.stage.inside().processes.iter().map(|process| process.key).collect();
        if !alive.is_empty() {
            self.stage.broken(|| format!("still alive at the end: {alive:?}"));
        }
        let kept: Vec<_> = {
            let inside = self.stage.inside();
            let lives = |id| {
                let mut lives = self.hosts.iter().filter_map(|host| host.life.as_ref());
                lives.any(|life| life.id == id)
            };
            inside.spool.keys().filter(|(id, _)| lives(*id)).map(|(_, key)| *key).collect()
        };
        if !kept.is_empty() {
            self.stage.broken(|| format!("recorded, but never forgotten: {kept:?}"));
        }
        for run in self.store.runs(&RunFilter::default(), None, 200).await?.runs {
            if run.reason.as_deref() == Some("MAX_RELEASES") {
                self.stage.broken(|| format!("handed round for ever: {run:?}"));
            }
        }
        let report = self.store.doctor(|| self.stage.database_time()).await?;
        // Where the clock went back, what came later may have an earlier time.
        let went_back = matches!(self.clock, ClockMode::Back | ClockMode::Wild);
        let findings: Vec<String> = report
            .findings()
            .filter(|(id, _)| !(went_back && matches!(*id, "I4" | "I14")))
            .map(|(id, one)| format!("{id}: {} {:?}", one.what, one.examples))
            .collect();
        if !findings.is_empty() {
            self.stage.broken(|| format!("the doctor finds {findings:?}"));
        }
        Ok(())
    }
}
