//! Ticks and acts are driven: each until it is done or waits on a line, one at a time, so that the order of
//! everything is the seed's.

use std::future::poll_fn;
use std::task::Poll;

use tasuki_store::Error;

use super::host::{Pending, Tick};
use super::people::Act;
use super::stage::HOSTS;
use super::world::World;
use crate::node::world::Pulse;

impl World {
    /// Starts a tick, or goes on with the one of its kind that is under way.
    pub(super) async fn tick(&mut self, host: usize, tick: Tick) -> Result<(), Error> {
        let up = self.hosts[host].is_up();
        let Some(life) = self.hosts[host].life.as_mut().filter(|_| up) else { return Ok(()) };
        let alone = matches!(tick, Tick::Claim | Tick::TakeIn);
        let twice = self.twice && !alone && self.stage.draw(|rng| rng.chance(500));
        let under_way = life.ticks.iter().position(|(kind, _)| *kind == tick && !twice);
        let one = match under_way {
            Some(index) => life.ticks.swap_remove(index),
            None => (tick, life.tick(tick)),
        };
        let goes_on = if under_way.is_some() { " goes on" } else { "" };
        self.stage.tell(|| format!("node {host}: {tick:?}{goes_on}"));
        self.drive_tick(host, one).await
    }

    pub(super) async fn resume(&mut self) -> Result<(), Error> {
        let mut waiting = Vec::new();
        for host in self.hosts.iter().filter(|host| host.is_up()) {
            let ticks = host.life.iter().flat_map(|life| &life.ticks);
            waiting.extend(ticks.enumerate().map(|(index, _)| (host.index, index)));
        }
        waiting.extend((0..self.acts.len()).map(|index| (HOSTS, index)));
        if waiting.is_empty() {
            return Ok(());
        }
        let (host, index) = self.stage.draw(|rng| rng.pick(&waiting));
        if host == HOSTS {
            let one = self.acts.swap_remove(index);
            return self.drive_act(one).await;
        }
        let life = self.hosts[host].life.as_mut().expect("it waits there");
        let one = life.ticks.swap_remove(index);
        self.stage.tell(|| format!("node {host}: {:?} goes on", one.0));
        self.drive_tick(host, one).await
    }

    pub(super) async fn drive_tick(
        &mut self,
        host: usize,
        (tick, mut doing): (Tick, Pending<Pulse>),
    ) -> Result<(), Error> {
        // Whatever is found lapsed may be renewed before it is taken.
        let slowness = self.stage.inside().slowness;
        if tick == Tick::Recover && slowness > 0 {
            self.stage.inside().slowness = 300;
        }
        let driven = self.drive(&mut doing).await;
        self.stage.inside().slowness = slowness;
        match driven {
            None => {
                if let Some(life) = self.hosts[host].life.as_mut() {
                    life.ticks.push((tick, doing));
                }
            }
            Some(Ok(Pulse::Alive | Pulse::CutOff)) => {}
            Some(told) => drop(self.excuse(&format!("{tick:?} on node {host}"), told)),
        }
        self.check_launches().await?;
        match tick {
            Tick::Plan => {
                self.check_epoch().await?;
                self.check_processes().await
            }
            Tick::Recover | Tick::Report => self.check_processes().await,
            // None of these ends a run.
            Tick::Pulse
            | Tick::StartDue
            | Tick::Claim
            | Tick::TakeIn
            | Tick::Renew
            | Tick::RenewAll
            | Tick::Tend
            | Tick::Lead
            | Tick::Resign
            | Tick::LookAfter
            | Tick::Watch
            | Tick::Apart => Ok(()),
        }
    }

    pub(super) async fn drive_act(
        &mut self,
        (act, mut doing): (Act, Pending<()>),
    ) -> Result<(), Error> {
        match self.drive(&mut doing).await {
            None => self.acts.push((act, doing)),
            Some(told) => drop(self.excuse(&format!("{act:?}"), told)),
        }
        self.check_processes().await
    }

    /// What is lost on a line is nobody's fault; any other error is.
    pub(super) fn excuse<T>(&self, who: &str, told: Result<T, Error>) -> Option<T> {
        match told {
            Ok(told) => Some(told),
            Err(error) if error.is_unavailable() && !self.healed => {
                self.stage.tell(|| format!("{who}: no answer"));
                None
            }
            Err(error) => {
                self.stage.broken(|| format!("{who}: {error}"));
                None
            }
        }
    }

    /// Polls until it is done, or waits on a line. Only one thing is driven at a time, so that the order of
    /// everything is the seed's.
    pub(super) async fn drive<T>(&self, doing: &mut Pending<T>) -> Option<Result<T, Error>> {
        poll_fn(|context| match doing.as_mut().poll(context) {
            Poll::Ready(told) => Poll::Ready(Some(told)),
            Poll::Pending if self.stage.take_parked() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// The same, however often it waits.
    pub(super) async fn through<T>(&self, mut doing: Pending<T>) -> Result<T, Error> {
        loop {
            if let Some(told) = self.drive(&mut doing).await {
                return told;
            }
        }
    }
}
