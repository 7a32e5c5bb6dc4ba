//! After the last fault: everything goes on, until nothing is left to do.

use tasuki_store::Error;

use super::host::Tick;
use super::stage::SECOND;
use super::world::World;

/// How long after the last fault everything must have come to an end.
const LONGEST: u64 = 300 * SECOND;

impl World {
    /// The faults are over: everything goes on, and nothing new is asked for.
    pub(super) async fn heal(&mut self) -> Result<(), Error> {
        self.stage.tell(|| "the faults are over".to_owned());
        {
            let inside = &mut *self.stage.inside();
            inside.calm = true;
            inside.hurry();
        }
        for host in &mut self.hosts {
            host.stopped_until = None;
            self.stage.inside().frozen[host.index] = false;
        }
        while let Some(one) = self.acts.pop() {
            self.drive_act(one).await?;
        }
        for host in 0..self.hosts.len() {
            while let Some(one) = self.hosts[host].life.as_mut().and_then(|life| life.ticks.pop()) {
                self.drive_tick(host, one).await?;
            }
        }
        self.healed = true;
        let seen = self.store.settings().await?;
        let on = [("recovery_enabled", "true")];
        let _ = self.store.change_settings("somebody", seen.version, &on).await?;
        for job in self.store.jobs(None, 50).await? {
            if job.deleted_at.is_none() {
                let _ = self.store.disable_job("somebody", job.seen()).await?;
            }
        }
        Ok(())
    }

    /// Everybody runs, until nothing is left to do.
    pub(super) async fn wind_down(&mut self) -> Result<(), Error> {
        let since = self.stage.now();
        let mut round = 0;
        loop {
            round += 1;
            self.pass(1_200_000);
            for host in 0..self.hosts.len() {
                self.boot(host).await?;
                for (every, tick) in [
                    (2, Tick::Pulse),
                    (2, Tick::Apart),
                    (3, Tick::Watch),
                    (1, Tick::Lead),
                    (3, Tick::LookAfter),
                    (2, Tick::Recover),
                    (1, Tick::Plan),
                ] {
                    if round % every == 0 {
                        self.tick(host, tick).await?;
                    }
                }
            }
            while !self.stage.inside().letters.is_empty() {
                self.deliver();
            }
            for host in 0..self.hosts.len() {
                for (every, tick) in [
                    (1, Tick::StartDue),
                    (2, Tick::Claim),
                    (1, Tick::Renew),
                    (1, Tick::Tend),
                    (1, Tick::Report),
                ] {
                    if round % every == 0 {
                        self.tick(host, tick).await?;
                    }
                }
            }
            if self.stage.is_broken() {
                return Ok(());
            }
            if self.is_over().await? {
                // What nobody waits for any more may still be in the mail.
                for host in 0..self.hosts.len() {
                    self.tick(host, Tick::Report).await?;
                }
                return Ok(());
            }
            if self.stage.now() > since + LONGEST {
                let left = self.left().await?;
                self.stage.broken(|| format!("not over after five minutes: {left}"));
                return Ok(());
            }
        }
    }
}
