//! Second phase of a simulation: without further faults, all nodes run until no work is left.

use tasuki_store::Error;

use super::host::Tick;
use super::state::SECOND;
use super::steps::Simulation;

/// Time after the last fault in which all work must be finished.
const WIND_DOWN_LIMIT: u64 = 300 * SECOND;

impl Simulation {
    /// Ends all faults, resumes everything that is paused, and disables all jobs.
    pub(super) async fn end_faults(&mut self) -> Result<(), Error> {
        self.state.log(|| "the faults are over".to_owned());
        {
            let inner = &mut *self.state.lock();
            inner.no_faults = true;
            inner.shorten_processes();
        }
        for host in &mut self.hosts {
            host.stopped_until = None;
            self.state.lock().frozen[host.index] = false;
        }
        while let Some(pending) = self.user_actions.pop() {
            self.drive_user_action(pending).await?;
        }
        for host in 0..self.hosts.len() {
            while let Some(pending) = self.hosts[host]
                .incarnation
                .as_mut()
                .and_then(|incarnation| incarnation.ticks.pop())
            {
                self.drive_tick(host, pending).await?;
            }
        }
        self.faults_over = true;
        let settings = self.store.load_settings().await?;
        let changes = [("recovery_enabled", "true")];
        let _ = self.store.change_settings("user", settings.version, &changes).await?;
        for job in self.store.list_jobs(None, 50).await? {
            if job.deleted_at.is_none() {
                let _ = self.store.disable_job("user", job.expected_version()).await?;
            }
        }
        Ok(())
    }

    /// Runs all nodes until no work is left.
    pub(super) async fn wind_down(&mut self) -> Result<(), Error> {
        let since = self.state.now();
        let mut round = 0;
        loop {
            round += 1;
            self.advance(1_200_000);
            for host in 0..self.hosts.len() {
                self.start_or_stop_node(host).await?;
                for (every, tick) in [
                    (2, Tick::Heartbeat),
                    (2, Tick::StepDetached),
                    (3, Tick::CheckLeader),
                    (1, Tick::ElectOrRenew),
                    (3, Tick::CheckWorkers),
                    (2, Tick::Recover),
                    (1, Tick::Plan),
                ] {
                    if round % every == 0 {
                        self.tick(host, tick).await?;
                    }
                }
            }
            while !self.state.lock().orders_in_flight.is_empty() {
                self.deliver_order();
            }
            for host in 0..self.hosts.len() {
                for (every, tick) in [
                    (1, Tick::StartDue),
                    (2, Tick::Claim),
                    (1, Tick::Renew),
                    (1, Tick::EnforceDeadlines),
                    (1, Tick::Report),
                ] {
                    if round % every == 0 {
                        self.tick(host, tick).await?;
                    }
                }
            }
            if self.state.has_failed() {
                return Ok(());
            }
            if self.is_finished().await? {
                // Completions that nothing waits for may still be queued.
                for host in 0..self.hosts.len() {
                    self.tick(host, Tick::Report).await?;
                }
                return Ok(());
            }
            if self.state.now() > since + WIND_DOWN_LIMIT {
                let remaining = self.describe_remaining_work().await?;
                self.state.fail(|| format!("not finished after five minutes: {remaining}"));
                return Ok(());
            }
        }
    }
}
