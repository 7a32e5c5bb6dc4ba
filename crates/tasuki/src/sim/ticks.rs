//! Polls ticks and user actions, one at a time, each until it is done or pauses. So the seed decides the order of
//! everything.

use std::future::poll_fn;
use std::task::Poll;

use tasuki_store::Error;

use super::host::{PendingFuture, Tick};
use super::state::HOSTS;
use super::steps::Simulation;
use super::user_actions::UserAction;
use crate::node::worker::HeartbeatResult;

impl Simulation {
    /// Starts a tick, or continues a pending tick of the same kind.
    pub(super) async fn tick(&mut self, host: usize, tick: Tick) -> Result<(), Error> {
        let up = self.hosts[host].is_up();
        let Some(incarnation) = self.hosts[host].incarnation.as_mut().filter(|_| up) else {
            return Ok(());
        };
        let exclusive = matches!(tick, Tick::Claim | Tick::LocalSubmit);
        let overlapping =
            self.overlapping_ticks && !exclusive && self.state.draw(|rng| rng.chance(500));
        let pending_index =
            incarnation.ticks.iter().position(|(kind, _)| *kind == tick && !overlapping);
        let pending = match pending_index {
            Some(index) => incarnation.ticks.swap_remove(index),
            None => (tick, incarnation.tick(tick)),
        };
        let suffix = if pending_index.is_some() { " continues" } else { "" };
        self.state.log(|| format!("node {host}: {tick:?}{suffix}"));
        self.drive_tick(host, pending).await
    }

    pub(super) async fn resume_pending(&mut self) -> Result<(), Error> {
        let mut waiting = Vec::new();
        for host in self.hosts.iter().filter(|host| host.is_up()) {
            let ticks = host.incarnation.iter().flat_map(|incarnation| &incarnation.ticks);
            waiting.extend(ticks.enumerate().map(|(index, _)| (host.index, index)));
        }
        waiting.extend((0..self.user_actions.len()).map(|index| (HOSTS, index)));
        if waiting.is_empty() {
            return Ok(());
        }
        let (host, index) = self.state.draw(|rng| rng.pick(&waiting));
        if host == HOSTS {
            let pending = self.user_actions.swap_remove(index);
            return self.drive_user_action(pending).await;
        }
        let incarnation = self.hosts[host].incarnation.as_mut().expect("a tick is pending there");
        let pending = incarnation.ticks.swap_remove(index);
        self.state.log(|| format!("node {host}: {:?} continues", pending.0));
        self.drive_tick(host, pending).await
    }

    pub(super) async fn drive_tick(
        &mut self,
        host: usize,
        (tick, mut future): (Tick, PendingFuture<HeartbeatResult>),
    ) -> Result<(), Error> {
        // More pauses during recovery, so that a lease found expired may be renewed before it is deleted.
        let pause_per_mille = self.state.lock().pause_per_mille;
        if tick == Tick::Recover && pause_per_mille > 0 {
            self.state.lock().pause_per_mille = 300;
        }
        let result = self.drive_until_pause(&mut future).await;
        self.state.lock().pause_per_mille = pause_per_mille;
        match result {
            None => {
                if let Some(incarnation) = self.hosts[host].incarnation.as_mut() {
                    incarnation.ticks.push((tick, future));
                }
            }
            Some(Ok(HeartbeatResult::Alive | HeartbeatResult::DeclaredDead)) => {}
            Some(result) => {
                let _ = self.ignore_unavailable(&format!("{tick:?} on node {host}"), result);
            }
        }
        self.check_launches().await?;
        match tick {
            Tick::Plan => {
                self.check_assignment_epochs().await?;
                self.check_processes().await
            }
            Tick::Recover | Tick::Report => self.check_processes().await,
            // None of these ends a run.
            Tick::Heartbeat
            | Tick::StartDue
            | Tick::Claim
            | Tick::LocalSubmit
            | Tick::Renew
            | Tick::RenewAll
            | Tick::EnforceDeadlines
            | Tick::ElectOrRenew
            | Tick::Resign
            | Tick::CheckWorkers
            | Tick::CheckLeader
            | Tick::StepDetached => Ok(()),
        }
    }

    pub(super) async fn drive_user_action(
        &mut self,
        (action, mut future): (UserAction, PendingFuture<()>),
    ) -> Result<(), Error> {
        match self.drive_until_pause(&mut future).await {
            None => self.user_actions.push((action, future)),
            Some(result) => drop(self.ignore_unavailable(&format!("{action:?}"), result)),
        }
        self.check_processes().await
    }

    /// Ignores errors caused by simulated faults; any other error is a failure of the simulation.
    pub(super) fn ignore_unavailable<T>(&self, what: &str, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(result) => Some(result),
            Err(error) if error.is_unavailable() && !self.faults_over => {
                self.state.log(|| format!("{what}: no response"));
                None
            }
            Err(error) => {
                self.state.fail(|| format!("{what}: {error}"));
                None
            }
        }
    }

    /// Polls a future until it is done, or until it pauses (`None`). Only one future is driven at a time, so that the seed
    /// decides the order of everything.
    pub(super) async fn drive_until_pause<T>(
        &self,
        future: &mut PendingFuture<T>,
    ) -> Option<Result<T, Error>> {
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if self.state.take_paused() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Polls a future until it is done, through all pauses.
    pub(super) async fn drive_to_end<T>(&self, mut future: PendingFuture<T>) -> Result<T, Error> {
        loop {
            if let Some(result) = self.drive_until_pause(&mut future).await {
                return result;
            }
        }
    }
}
