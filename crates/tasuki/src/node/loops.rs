//! The loops around the ticks: they own pace, backoff and stopping, and nothing else.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tasuki_core::NodeName;
use tasuki_store::{Dialect, Error, Listener, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::leader::Leader;
use super::outage::Outage;
use super::worker::{Pulse, Worker};
use super::world::{Clock as _, Dice as _, RealClock, RealDice};
use crate::Wake;
use crate::node::coordination::coordinate::Coordinator;
use crate::node::coordination::peers::Peers;
use crate::node::executor::attempt::Mail;
use crate::node::leader::scopes::Scopes;

mod cluster;

/// How long a loop rests after its tick failed.
const REST: Duration = Duration::from_millis(200);
/// How long a claimer waits for more room than a little.
const COMPANY: Duration = Duration::from_millis(1);
/// The same where it is commands that make room.
const COMMANDS_COMPANY: Duration = Duration::from_millis(5);
/// How often scopes are asked for.
const SCOPES: Duration = Duration::from_secs(5);
/// How often a leader forgets workers; and how soon who leads since, or could not, looks whether it is to.
const FORGET: (Duration, Duration) = (Duration::from_hours(1), Duration::from_mins(1));
/// How long at most a loop waits that nobody wakes.
const LONGEST: Duration = Duration::from_secs(1);

pub(crate) struct Loops {
    pub(crate) worker: Arc<Worker>,
    pub(crate) leader: Arc<Leader>,
    pub(crate) scopes: Arc<Scopes>,
    pub(crate) store: Store,
    pub(crate) mail: Mail,
    pub(crate) wake: Wake,
    pub(crate) stopped: watch::Receiver<bool>,
    pub(crate) cluster: Cluster,
    pub(crate) outage: Outage,
}

/// What a node knows of being one of many.
pub(crate) struct Cluster {
    pub(crate) node: NodeName,
    pub(crate) address: Option<String>,
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) peers: Arc<dyn Peers>,
}

impl Loops {
    /// Starts them all. Should one end before its time, which is a fault of ours, it is told: a node with a
    /// loop missing must not look as if it worked.
    pub(crate) fn start(self, end: &watch::Sender<Option<&'static str>>) -> Vec<JoinHandle<()>> {
        let this = Arc::new(self);
        let stopped = this.stopped.clone();
        let mut loops = vec![
            this.spawn(Self::pulse),
            this.spawn(Self::start_due),
            this.spawn(Self::claim),
            this.spawn(Self::take_in),
            this.spawn(Self::renew),
            this.spawn(Self::tend),
            this.spawn(Self::report),
            this.spawn(Self::lead),
            this.spawn(Self::plan),
            this.spawn(Self::deliver),
            this.spawn(Self::recover),
            this.spawn(Self::forget),
            this.spawn(Self::listen),
            this.spawn(Self::apart),
        ];
        // SQLite takes one after the other: while one of them waits for an answer the other has the next ready.
        if this.store.dialect() == Dialect::Sqlite {
            loops.push(this.spawn(Self::report_beside));
        }
        // Alone there is nobody to look after.
        if this.cluster.address.is_some() {
            loops.push(this.spawn(Self::look_after));
            loops.push(this.spawn(Self::watch));
            loops.push(this.spawn(Self::show));
            loops.push(this.spawn(Self::hear_there));
            loops.push(this.spawn(Self::send_words));
        }
        if !this.scopes.is_empty() {
            loops.push(this.spawn(Self::scopes));
        }
        let watched = |one: JoinHandle<()>| {
            let (end, stopped) = (end.clone(), stopped.clone());
            tokio::spawn(async move {
                let ended = one.await;
                if ended.is_err() || !*stopped.borrow() {
                    let _ = end.send(Some("one of its loops has ended; the log says why"));
                }
            })
        };
        loops.into_iter().map(watched).collect()
    }

    fn spawn<F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        tokio::spawn(work(Arc::clone(self)))
    }

    /// Waits for a while or until woken. `false`: the node stops.
    async fn rest(&self, limit: Duration, woken: impl Future<Output = ()>) -> bool {
        self.rest_until(tokio::time::sleep(limit), woken).await
    }

    /// The same for who looks after what the worker carries, and has nothing to do while that is nothing.
    async fn rest_unless_quiet(&self, pace: Duration, woken: impl Future<Output = ()>) -> bool {
        self.rest_until(self.worker.carries(pace), woken).await
    }

    async fn rest_until(
        &self,
        over: impl Future<Output = ()>,
        woken: impl Future<Output = ()>,
    ) -> bool {
        let mut stopped = self.stopped.clone();
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => false,
            () = over => true,
            () = woken => true,
        }
    }

    async fn pulse(self: Arc<Self>) {
        loop {
            let wait = match self.outage.told("pulse", self.worker.pulse()).await {
                Some(Pulse::CutOff | Pulse::Alive) => {
                    self.outage.answered();
                    about(self.worker.settings().heartbeat_interval())
                }
                None => REST,
            };
            if !self.rest(wait, self.worker.looks()).await {
                return;
            }
        }
    }

    async fn start_due(self: Arc<Self>) {
        loop {
            let rested = match self.outage.told("start", self.worker.start_due()).await {
                Some(next) => self.rest_unless_quiet(until(next), self.worker.ordered()).await,
                None => self.rest(REST, self.worker.ordered()).await,
            };
            if !rested {
                return;
            }
        }
    }

    async fn claim(self: Arc<Self>) {
        let mut woken = true;
        loop {
            let next = async {
                match woken {
                    true => self.worker.claim_woken().await,
                    false => self.worker.claim().await,
                }
            };
            let wait = match self.outage.told("claim", next).await {
                Some(next) => until(next),
                None => REST,
            };
            // What has just been launched may make room at once, and then more than a little.
            let wait = if self.worker.is_crowded() { wait.max(COMPANY) } else { wait };
            let next = Instant::now() + wait;
            let enough = Instant::now() + COMMANDS_COMPANY;
            let mut stopped = self.stopped.clone();
            woken = false;
            // Nor does it help to be woken for a little.
            loop {
                let crowded = self.worker.is_crowded_with_commands();
                let until = match (woken, crowded) {
                    (true, false) => break,
                    (true, true) => enough,
                    (false, true) => next.max(enough),
                    (false, false) => next,
                };
                tokio::select! {
                    _ = stopped.wait_for(|stopped| *stopped) => return,
                    () = tokio::time::sleep_until(until) => break,
                    () = self.wake.claims_woken() => woken = true,
                }
            }
        }
    }

    /// One arrival at a time: those who come meanwhile travel together then.
    async fn take_in(self: Arc<Self>) {
        let mut door = self.wake.door();
        let mut stopped = self.stopped.clone();
        loop {
            let arrival = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => break,
                Some(arrival) = door.recv() => arrival,
            };
            let taken = self.worker.take_in(&arrival.tasks).await;
            // Who has gone away does not mind.
            let _ = arrival.answer.send(taken);
        }
        // Who stands there already is told that nobody is in.
        door.close();
        while let Some(arrival) = door.recv().await {
            let _ = arrival.answer.send(Ok(None));
        }
    }

    async fn renew(self: Arc<Self>) {
        let mut woken = false;
        loop {
            self.outage.told("renew", self.worker.renew(woken)).await;
            let wait = self.worker.settings().lease_renew() / 2;
            let mut stopped = self.stopped.clone();
            woken = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => return,
                () = self.worker.carries(wait) => false,
                () = self.wake.leases_woken() => true,
            };
        }
    }

    /// Apart from the renewals: what they wait for must not keep anything running.
    async fn tend(self: Arc<Self>) {
        loop {
            let next = self.worker.tend();
            let pace = self.worker.settings().lease_renew() / 2;
            let wait = until(next).min(pace).max(Duration::from_millis(1));
            if !self.rest_unless_quiet(wait, std::future::pending()).await {
                return;
            }
        }
    }

    async fn report(self: Arc<Self>) {
        Arc::clone(&self).report_beside().await;
        // What came in the meantime is reported too, if it can be.
        self.outage.told("report", self.worker.report_all()).await;
    }

    async fn report_beside(self: Arc<Self>) {
        loop {
            // Whoever has ended wakes us before all others that were launched with it have had their turn, and most of them
            // end in it.
            tokio::task::yield_now().await;
            let rested = match self.outage.told("report", self.worker.report()).await {
                Some(next) => self.rest_unless_quiet(until(next), self.mail.rung()).await,
                None => self.rest(REST, self.mail.rung()).await,
            };
            if !rested {
                return;
            }
        }
    }

    async fn lead(self: Arc<Self>) {
        loop {
            let settings = self.worker.settings();
            let leads = match (self.worker.is_aside(), self.leader.term()) {
                // Who drains does not stand, but goes on until what it has is settled.
                (true, None) => Some(false),
                (true, Some(_)) if self.worker.is_detached() => {
                    self.outage.told("resign", self.leader.resign()).await;
                    Some(false)
                }
                _ => self.outage.told("lead", self.leader.lead(&settings)).await,
            };
            let wait = match leads {
                Some(true) => about(settings.leader_renew()),
                Some(false) => about(settings.subleader_check()),
                None => REST,
            };
            if !self.rest(wait, self.wake.lead_woken()).await {
                return;
            }
        }
    }

    async fn plan(self: Arc<Self>) {
        loop {
            let settings = self.worker.settings();
            let wait = match self.outage.told("plan", self.leader.plan(&settings)).await {
                Some(true) => Duration::ZERO,
                Some(false) => about(settings.leader_tick()),
                None => REST,
            };
            if !self.rest(wait, self.wake.leader_woken()).await {
                return;
            }
        }
    }

    /// Each word on its way by itself: who does not answer keeps nobody else from hearing.
    async fn deliver(self: Arc<Self>) {
        loop {
            if !self.rest(Duration::MAX, self.leader.ordered()).await {
                return;
            }
            let leader = Arc::clone(&self.leader);
            tokio::spawn(async move { leader.deliver().await });
        }
    }

    async fn scopes(self: Arc<Self>) {
        loop {
            let wait = match self.outage.told("scopes", self.scopes.sync(&self.store)).await {
                Some(()) => SCOPES,
                None => REST,
            };
            if !self.rest(wait, std::future::pending()).await {
                return;
            }
        }
    }

    /// Hears what other processes tell, where the database carries it.
    async fn listen(self: Arc<Self>) {
        let mut stopped = self.stopped.clone();
        loop {
            let wait = match self.outage.told("listen", self.store.listen()).await {
                Some(Some(mut listener)) => {
                    tokio::select! {
                        _ = stopped.wait_for(|stopped| *stopped) => {}
                        _ = self.outage.told("listen", self.hear(&mut listener)) => {}
                    }
                    // A database that is silent keeps nobody from stopping.
                    let _ = tokio::time::timeout(LONGEST, listener.close()).await;
                    LONGEST
                }
                Some(None) => Duration::MAX,
                None => LONGEST,
            };
            if !self.rest(wait, std::future::pending()).await {
                return;
            }
        }
    }

    async fn hear(&self, listener: &mut Listener) -> Result<(), Error> {
        loop {
            match listener.heard().await? {
                Some(news) => self.wake.heard(news),
                // Something may have been missed.
                None => self.wake.all(),
            }
        }
    }

    /// A worker that was cut off, step by step.
    async fn apart(self: Arc<Self>) {
        loop {
            // Who is about to be somebody else gives the lead up first.
            if self.worker.is_detached() {
                self.outage.told("resign", self.leader.resign()).await;
            }
            let next = self.worker.step_apart(&*self.cluster.peers);
            let wait = match self.outage.told("go on apart", next).await {
                Some(None) => Duration::MAX,
                Some(next) => until(next),
                None => REST,
            };
            if !self.rest(wait, self.worker.parted()).await {
                return;
            }
        }
    }

    async fn recover(self: Arc<Self>) {
        loop {
            let settings = self.worker.settings();
            self.outage.told("recover", self.leader.recover(&settings)).await;
            if !self.rest(settings.recovery_interval(), self.wake.recovery_woken()).await {
                return;
            }
        }
    }

    /// Apart from recovery: people may switch that off, and nothing there is to wait for this.
    async fn forget(self: Arc<Self>) {
        loop {
            let forgot = self.outage.told("forget workers", self.leader.forget_workers()).await;
            let wait = if forgot == Some(true) { FORGET.0 } else { FORGET.1 };
            if !self.rest(wait, std::future::pending()).await {
                return;
            }
        }
    }
}

/// Until a time by our clock, or as long as a loop waits at most.
fn until(next: Option<u64>) -> Duration {
    let now = RealClock.boottime();
    let longest = about(LONGEST);
    next.map_or(longest, |at| Duration::from_micros(at.saturating_sub(now)).min(longest))
}

/// So long, or by chance up to a sixteenth less: loops that begin at the same moment, of one node or of many, would ask the
/// database in step for ever.
fn about(time: Duration) -> Duration {
    let chance = f64::from(RealDice.roll() as u16) / f64::from(u16::MAX);
    time.mul_f64(1.0 - chance / 16.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_differ_by_a_little_and_are_never_slower() {
        let second = Duration::from_secs(1);
        let some: Vec<Duration> = (0..100).map(|_| about(second)).collect();
        assert!(some.iter().all(|time| *time <= second && *time >= second * 15 / 16));
        assert!(some.iter().any(|time| *time != some[0]));
        assert_eq!(about(Duration::ZERO), Duration::ZERO);
    }
}
