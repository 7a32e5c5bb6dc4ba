//! Invariants of a simulation: some are checked after each step, others at the end.

use tasuki_core::RunState;
use tasuki_store::{Error, Run, RunFilter};

use super::steps::{ClockMode, Simulation};

impl Simulation {
    /// Checks new launches: each came after the commit of RUNNING (I10), within its start window and before any cancel
    /// request (I9), and nothing runs twice at the same time (I5, I13).
    pub(super) async fn check_launches(&mut self) -> Result<(), Error> {
        let launches = std::mem::take(&mut self.state.lock().new_launches);
        if !self.can_rely_on_leases() {
            return Ok(());
        }
        let duplicate = self.state.lock().find_duplicate_process();
        if let Some(duplicate) = duplicate {
            self.state.fail(|| duplicate);
        }
        for launch in launches {
            let Some(run) = self.store.find_run(tasuki_core::RunId(launch.key.run)).await? else {
                self.state
                    .fail(|| format!("{:?} was launched, but its run does not exist", launch.key));
                continue;
            };
            let now = self.state.database_time();
            let in_time = run.started_at.is_some_and(|at| {
                run.due_at() <= at && run.start_by.is_none_or(|start_by| at < start_by) && at <= now
            });
            let clock_goes_back = self.clock == ClockMode::BackwardJumps;
            let not_canceled = run.cancel_requested_at.is_none_or(|at| run.started_at <= Some(at));
            if run.state != RunState::Running
                || run.token != Some(launch.token)
                || run.counters.attempt_no != launch.key.attempt
            {
                self.state.fail(|| format!("I10: {:?} was launched, but {run:?}", launch.key));
            } else if !(clock_goes_back || in_time && not_canceled) {
                self.state.fail(|| format!("I9: {:?} was started wrongly: {run:?}", launch.key));
            }
        }
        Ok(())
    }

    /// Checks that every living process belongs to a RUNNING run with the same token. So no run that has ended or was
    /// assigned to another worker has a process (I5, I11).
    pub(super) async fn check_processes(&mut self) -> Result<(), Error> {
        let exchanges = self.state.lock().exchanges;
        if !self.can_rely_on_leases()
            || exchanges == std::mem::replace(&mut self.checked_exchanges, exchanges)
        {
            return Ok(());
        }
        let alive: Vec<_> = {
            let inner = self.state.lock();
            inner
                .processes
                .iter()
                .map(|process| (process.run(), process.key, process.token, process.kind))
                .collect()
        };
        for (run, key, token, kind) in alive {
            if kind == tasuki_core::work_spec::WorkKind::Function {
                continue;
            }
            let run = self.store.find_run(run).await?;
            let is_leased = |run: &Run| run.state == RunState::Running && run.token == Some(token);
            if !run.as_ref().is_some_and(is_leased) {
                self.state.fail(|| format!("I11: {key:?} is alive, but {run:?}"));
            }
        }
        Ok(())
    }

    /// Checks that the newest leader made all assignments since the last check (I4). No other tick ran in between.
    pub(super) async fn check_assignment_epochs(&mut self) -> Result<(), Error> {
        for assignment in self.store.list_assigned_runs_of_all_workers().await? {
            if !self.seen_tokens.insert(assignment.token) {
                continue;
            }
            let run = self.store.find_run(assignment.run).await?;
            let (assigned_by, newest) =
                (run.and_then(|run| run.epoch), self.store.get_leader_record().await?.epoch);
            if assigned_by != Some(newest) {
                self.state
                    .fail(|| format!("I4: run {} was assigned by {assigned_by:?}", assignment.run));
            }
        }
        Ok(())
    }

    /// Whether the clocks agree well enough for leases to be reliable.
    fn can_rely_on_leases(&self) -> bool {
        self.clock != ClockMode::LargeJumps
    }

    /// Whether no work is left.
    pub(super) async fn is_finished(&self) -> Result<bool, Error> {
        let idle = self.state.lock().processes.is_empty()
            && self.hosts.iter().all(|host| {
                host.incarnation.as_ref().is_some_and(|incarnation| incarnation.worker.is_idle())
            });
        Ok(idle
            && self.store.list_waiting_lanes().await?.is_empty()
            && self.describe_remaining_work().await?.is_empty())
    }

    /// Describes the work that is left; empty if there is none.
    pub(super) async fn describe_remaining_work(&self) -> Result<String, Error> {
        let mut remaining = String::new();
        for lane in self.store.list_waiting_lanes().await? {
            remaining.push_str(&format!("a run waits in lane {lane:?}; "));
        }
        let mut ids: Vec<_> = self.worker_ids.clone();
        ids.extend(
            self.hosts.iter().filter_map(|host| Some(host.incarnation.as_ref()?.worker.id())),
        );
        for worker in &ids {
            let leases = self.store.list_leases_of_worker(*worker).await?;
            if !leases.is_empty() {
                remaining.push_str(&format!("{leases:?}; "));
            }
        }
        if !self.store.list_unprocessed_events(1).await?.is_empty() {
            remaining.push_str("an event is unprocessed; ");
        }
        for host in &self.hosts {
            match &host.incarnation {
                None => remaining.push_str("a node is down; "),
                Some(incarnation) if !incarnation.worker.is_idle() => {
                    remaining.push_str("a worker is not idle; ");
                }
                Some(_) => {}
            }
        }
        let runs = self.store.list_runs(&RunFilter::default(), None, 200).await?.runs;
        for run in runs.into_iter().filter(|run| !run.state.is_ended()) {
            let Run { id, state, worker, counters, .. } = run;
            remaining.push_str(&format!("run {id} is {state} {worker:?} {counters:?}; "));
        }
        Ok(remaining)
    }

    /// Checks the end state: no process, no recorded exit, and no finding of the database check is left.
    pub(super) async fn check_end_state(&mut self) -> Result<(), Error> {
        let alive: Vec<_> = self.state.lock().processes.iter().map(|process| process.key).collect();
        if !alive.is_empty() {
            self.state.fail(|| format!("still alive at the end: {alive:?}"));
        }
        let recorded: Vec<_> = {
            let inner = self.state.lock();
            let is_alive = |id| {
                let mut incarnations =
                    self.hosts.iter().filter_map(|host| host.incarnation.as_ref());
                incarnations.any(|incarnation| incarnation.id == id)
            };
            inner
                .recorded_exits
                .keys()
                .filter(|(id, _)| is_alive(*id))
                .map(|(_, key)| *key)
                .collect()
        };
        if !recorded.is_empty() {
            self.state.fail(|| format!("recorded exits that were never removed: {recorded:?}"));
        }
        for run in self.store.list_runs(&RunFilter::default(), None, 200).await?.runs {
            if run.reason.as_deref() == Some("MAX_RELEASES") {
                self.state.fail(|| format!("assigned again and again: {run:?}"));
            }
        }
        let report = self.store.check_invariants(|| self.state.database_time()).await?;
        // If the clock went back, a later event may have an earlier time.
        let went_back = matches!(self.clock, ClockMode::BackwardJumps | ClockMode::LargeJumps);
        let findings: Vec<String> = report
            .findings()
            .filter(|(id, _)| !(went_back && matches!(*id, "I4" | "I14")))
            .map(|(id, finding)| format!("{id}: {} {:?}", finding.problem, finding.examples))
            .collect();
        if !findings.is_empty() {
            self.state.fail(|| format!("the database check finds {findings:?}"));
        }
        Ok(())
    }
}
