//! The loops of a node. Each loop calls one tick function again and again; the loop decides only when to call it, how
//! long to wait after a failure, and when to stop.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tasuki_core::NodeName;
use tasuki_store::{Error, NotificationListener, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::clock_and_random::{Clock as _, OsRandom, Random as _, RealClock};
use super::leader::Leader;
use super::outage_log::OutageLog;
use super::worker::{HeartbeatResult, Worker};
use crate::Wakeups;
use crate::node::coordination::coordinator_trait::Coordinator;
use crate::node::coordination::node_rpc::Peers;
use crate::node::executor::attempt_input_and_result::CompletionQueue;
use crate::node::leader::job_scope_providers::RunScopeProviders;

mod cluster_only;

/// Time that a loop waits after its tick failed.
const BACKOFF: Duration = Duration::from_millis(200);
/// Minimum wait between two claims while nearly all slots are occupied, so that one claim fills several slots.
const CLAIM_BATCH_DELAY: Duration = Duration::from_millis(1);
/// The same while nearly all command slots are occupied.
const COMMAND_CLAIM_BATCH_DELAY: Duration = Duration::from_millis(5);
/// Interval between two synchronisations of scopes with their providers.
const SCOPE_SYNC_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which the leader deletes rows of old workers.
const PRUNE_INTERVAL: Duration = Duration::from_hours(1);
/// Interval at which a worker that is not leader, or whose pruning failed, tries again.
const PRUNE_RETRY_INTERVAL: Duration = Duration::from_mins(1);
/// Maximum time that a loop waits without a wake-up.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Everything that the loops of a node share.
pub(crate) struct Loops {
    pub(crate) worker: Arc<Worker>,
    pub(crate) leader: Arc<Leader>,
    pub(crate) scopes: Arc<RunScopeProviders>,
    pub(crate) store: Store,
    pub(crate) completions: CompletionQueue,
    pub(crate) wakeups: Wakeups,
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) cluster: ClusterContext,
    pub(crate) outage_log: OutageLog,
}

/// What a node needs to take part in a cluster.
pub(crate) struct ClusterContext {
    pub(crate) node: NodeName,
    pub(crate) address: Option<String>,
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) peers: Arc<dyn Peers>,
}

impl Loops {
    /// Starts all loops. If a loop ends before the node stops, which is a bug, `end` receives the reason: a node without
    /// one of its loops must not appear to work.
    pub(crate) fn start(self, end: &watch::Sender<Option<&'static str>>) -> Vec<JoinHandle<()>> {
        let this = Arc::new(self);
        let stop = this.stop.clone();
        let mut loops = vec![
            this.spawn(Self::heartbeat_loop),
            this.spawn(Self::start_loop),
            this.spawn(Self::claim_loop),
            this.spawn(Self::local_submit_loop),
            this.spawn(Self::renew_loop),
            this.spawn(Self::deadline_loop),
            this.spawn(Self::report_loop),
            this.spawn(Self::election_loop),
            this.spawn(Self::planner_loop),
            this.spawn(Self::order_loop),
            this.spawn(Self::recover_loop),
            this.spawn(Self::prune_workers_loop),
            this.spawn(Self::database_notification_loop),
            this.spawn(Self::continuation_loop),
        ];
        // A node without an address has no other nodes to coordinate with.
        if this.cluster.address.is_some() {
            loops.push(this.spawn(Self::failure_detector_loop));
            loops.push(this.spawn(Self::leader_check_loop));
            loops.push(this.spawn(Self::presence_loop));
            loops.push(this.spawn(Self::coordinator_notification_loop));
            loops.push(this.spawn(Self::hint_loop));
        }
        if !this.scopes.is_empty() {
            loops.push(this.spawn(Self::scope_loop));
        }
        let supervise = |handle: JoinHandle<()>| {
            let (end, stop) = (end.clone(), stop.clone());
            tokio::spawn(async move {
                let ended = handle.await;
                if ended.is_err() || !*stop.borrow() {
                    let _ =
                        end.send(Some("one of the node's loops ended unexpectedly; see the log"));
                }
            })
        };
        loops.into_iter().map(supervise).collect()
    }

    fn spawn<F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        tokio::spawn(work(Arc::clone(self)))
    }

    /// Waits until `limit` has passed or `woken` completes. `false`: the node stops.
    async fn wait(&self, limit: Duration, woken: impl Future<Output = ()>) -> bool {
        self.wait_for(tokio::time::sleep(limit), woken).await
    }

    /// The same for loops that check leased runs: while the worker holds no runs, only `woken` ends the wait.
    async fn wait_while_leased(&self, limit: Duration, woken: impl Future<Output = ()>) -> bool {
        self.wait_for(self.worker.wait_interval_or_next_lease(limit), woken).await
    }

    async fn wait_for(
        &self,
        timer: impl Future<Output = ()>,
        woken: impl Future<Output = ()>,
    ) -> bool {
        let mut stop = self.stop.clone();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => false,
            () = timer => true,
            () = woken => true,
        }
    }

    async fn heartbeat_loop(self: Arc<Self>) {
        loop {
            let wait = match self
                .outage_log
                .run_and_log_failure("heartbeat", self.worker.heartbeat())
                .await
            {
                Some(HeartbeatResult::DeclaredDead | HeartbeatResult::Alive) => {
                    self.outage_log.record_heartbeat_success();
                    with_jitter(self.worker.settings().heartbeat_interval())
                }
                None => BACKOFF,
            };
            if !self.wait(wait, self.worker.wait_for_heartbeat_request()).await {
                return;
            }
        }
    }

    async fn start_loop(self: Arc<Self>) {
        loop {
            let continues = match self
                .outage_log
                .run_and_log_failure("start", self.worker.start_due())
                .await
            {
                Some(next) => {
                    self.wait_while_leased(time_until(next), self.worker.wait_for_start_request())
                        .await
                }
                None => self.wait(BACKOFF, self.worker.wait_for_start_request()).await,
            };
            if !continues {
                return;
            }
        }
    }

    async fn claim_loop(self: Arc<Self>) {
        let mut woken = true;
        loop {
            let next = async {
                match woken {
                    true => self.worker.claim_after_wakeup().await,
                    false => self.worker.claim_and_launch().await,
                }
            };
            let wait = match self.outage_log.run_and_log_failure("claim", next).await {
                Some(next) => time_until(next),
                None => BACKOFF,
            };
            // Attempts that were just launched may end immediately and free more slots: wait for them.
            let wait =
                if self.worker.is_nearly_full() { wait.max(CLAIM_BATCH_DELAY) } else { wait };
            if wait.is_zero() && !*self.stop.borrow() {
                // The timer of the loop below would round up to a millisecond.
                tokio::task::yield_now().await;
                woken = false;
                continue;
            }
            let next = Instant::now() + wait;
            let next_command_claim = Instant::now() + COMMAND_CLAIM_BATCH_DELAY;
            let mut stop = self.stop.clone();
            woken = false;
            // While command slots are nearly full, a wake-up does not end the wait early either.
            loop {
                let nearly_full = self.worker.is_nearly_full_of_commands();
                let until = match (woken, nearly_full) {
                    (true, false) => break,
                    (true, true) => next_command_claim,
                    (false, true) => next.max(next_command_claim),
                    (false, false) => next,
                };
                tokio::select! {
                    _ = stop.wait_for(|stop| *stop) => return,
                    () = tokio::time::sleep_until(until) => break,
                    () = self.wakeups.wait_for_claim_wakeup() => woken = true,
                }
            }
        }
    }

    /// Handles one local submit request at a time. Tasks submitted meanwhile are combined into the next request.
    async fn local_submit_loop(self: Arc<Self>) {
        let mut requests = self.wakeups.local_submit_sender().open();
        let mut stop = self.stop.clone();
        loop {
            let request = tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                Some(request) = requests.recv() => request,
            };
            let created = self.worker.submit_and_claim(&request.tasks).await;
            // An error means that the caller no longer waits.
            let _ = request.reply.send(created);
        }
        // The node stops: requests that are already queued are declined.
        requests.close();
        while let Some(request) = requests.recv().await {
            let _ = request.reply.send(Ok(None));
        }
    }

    async fn renew_loop(self: Arc<Self>) {
        let mut woken = false;
        loop {
            self.outage_log.run_and_log_failure("renew", self.worker.renew(woken)).await;
            let wait = self.worker.settings().lease_renew() / 2;
            let mut stop = self.stop.clone();
            woken = tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = self.worker.wait_interval_or_next_lease(wait) => false,
                () = self.wakeups.wait_for_renew_wakeup() => true,
            };
        }
    }

    /// Stops attempts at their deadlines. Separate from the renew loop, because a slow renewal must not let an attempt
    /// run longer.
    async fn deadline_loop(self: Arc<Self>) {
        loop {
            let next = self.worker.enforce_deadlines();
            let interval = self.worker.settings().lease_renew() / 2;
            let wait = time_until(next).min(interval).max(Duration::from_millis(1));
            if !self.wait_while_leased(wait, std::future::pending()).await {
                return;
            }
        }
    }

    async fn report_loop(self: Arc<Self>) {
        loop {
            // The first attempt that ends wakes this loop before the other attempts of its batch were polled. Most of
            // them end at that poll, so yielding makes the batch larger.
            tokio::task::yield_now().await;
            let continues = match self
                .outage_log
                .run_and_log_failure("report", self.worker.report())
                .await
            {
                Some(next) => {
                    self.wait_while_leased(time_until(next), self.completions.wait_for_completion())
                        .await
                }
                None => self.wait(BACKOFF, self.completions.wait_for_completion()).await,
            };
            if !continues {
                break;
            }
        }
        // The node stops: report what has ended since, if possible.
        self.outage_log.run_and_log_failure("report", self.worker.report_all()).await;
    }

    async fn election_loop(self: Arc<Self>) {
        loop {
            let settings = self.worker.settings();
            let is_leader = match (self.worker.is_suspended(), self.leader.active_epoch()) {
                // A draining worker does not try to become leader. If it is leader, it remains so until it stops.
                (true, None) => Some(false),
                (true, Some(_)) if self.worker.is_detached() => {
                    self.outage_log.run_and_log_failure("resign", self.leader.resign()).await;
                    Some(false)
                }
                _ => {
                    self.outage_log
                        .run_and_log_failure("elect", self.leader.elect_or_renew(&settings))
                        .await
                }
            };
            let wait = match is_leader {
                Some(true) => with_jitter(settings.leader_renew()),
                Some(false) => with_jitter(settings.subleader_check()),
                None => BACKOFF,
            };
            if !self.wait(wait, self.wakeups.wait_for_election_wakeup()).await {
                return;
            }
        }
    }

    async fn planner_loop(self: Arc<Self>) {
        loop {
            let settings = self.worker.settings();
            let wait = match self
                .outage_log
                .run_and_log_failure("plan", self.leader.plan(&settings))
                .await
            {
                Some(true) => Duration::ZERO,
                Some(false) => with_jitter(settings.leader_tick()),
                None => BACKOFF,
            };
            if !self.wait(wait, self.wakeups.wait_for_planner_wakeup()).await {
                return;
            }
        }
    }

    /// Sends queued orders, each batch in its own task: a worker that does not respond delays no later orders.
    async fn order_loop(self: Arc<Self>) {
        loop {
            if !self.wait(Duration::MAX, self.leader.wait_for_queued_order()).await {
                return;
            }
            let leader = Arc::clone(&self.leader);
            tokio::spawn(async move { leader.send_orders().await });
        }
    }

    async fn scope_loop(self: Arc<Self>) {
        loop {
            let wait = match self
                .outage_log
                .run_and_log_failure(
                    "scopes",
                    self.scopes.sync_stored_schedule_cursors(&self.store),
                )
                .await
            {
                Some(()) => SCOPE_SYNC_INTERVAL,
                None => BACKOFF,
            };
            if !self.wait(wait, std::future::pending()).await {
                return;
            }
        }
    }

    /// Receives notifications of other processes, if the database delivers them.
    async fn database_notification_loop(self: Arc<Self>) {
        let mut stop = self.stop.clone();
        loop {
            let wait = match self
                .outage_log
                .run_and_log_failure("listen", self.store.listen())
                .await
            {
                Some(Some(mut listener)) => {
                    tokio::select! {
                        _ = stop.wait_for(|stop| *stop) => {}
                        _ = self.outage_log.run_and_log_failure("listen", self.receive_notifications(&mut listener)) => {}
                    }
                    // An unresponsive database must not prevent the node from stopping.
                    let _ = tokio::time::timeout(MAX_WAIT, listener.close()).await;
                    MAX_WAIT
                }
                Some(None) => Duration::MAX,
                None => MAX_WAIT,
            };
            if !self.wait(wait, std::future::pending()).await {
                return;
            }
        }
    }

    async fn receive_notifications(
        &self,
        listener: &mut NotificationListener,
    ) -> Result<(), Error> {
        loop {
            match listener.receive().await? {
                Some(notification) => self.wakeups.on_notification(notification),
                // Notifications may have been lost.
                None => self.wakeups.wake_all(),
            }
        }
    }

    /// Advances the continuation of a detached worker, step by step.
    async fn continuation_loop(self: Arc<Self>) {
        loop {
            // The worker is about to register under a new id: it resigns as leader first.
            if self.worker.is_detached() {
                self.outage_log.run_and_log_failure("resign", self.leader.resign()).await;
            }
            let next = self.worker.step_detach_procedure(&*self.cluster.peers);
            let wait = match self.outage_log.run_and_log_failure("continue detached", next).await {
                Some(None) => Duration::MAX,
                Some(next) => time_until(next),
                None => BACKOFF,
            };
            if !self.wait(wait, self.worker.wait_for_detach()).await {
                return;
            }
        }
    }

    async fn recover_loop(self: Arc<Self>) {
        loop {
            let settings = self.worker.settings();
            self.outage_log.run_and_log_failure("recover", self.leader.recover(&settings)).await;
            if !self
                .wait(settings.recovery_interval(), self.wakeups.wait_for_recovery_wakeup())
                .await
            {
                return;
            }
        }
    }

    /// Deletes rows of old workers. Separate from recovery, which a setting can switch off and which must not wait
    /// for this.
    async fn prune_workers_loop(self: Arc<Self>) {
        loop {
            let pruned = self
                .outage_log
                .run_and_log_failure("prune workers", self.leader.prune_workers())
                .await;
            let wait = if pruned == Some(true) { PRUNE_INTERVAL } else { PRUNE_RETRY_INTERVAL };
            if !self.wait(wait, std::future::pending()).await {
                return;
            }
        }
    }
}

/// Time until an instant of the boottime clock, in microseconds; at most about [`MAX_WAIT`].
fn time_until(next: Option<u64>) -> Duration {
    let now = RealClock.boottime();
    let max_wait = with_jitter(MAX_WAIT);
    next.map_or(max_wait, |at| Duration::from_micros(at.saturating_sub(now)).min(max_wait))
}

/// Shortens a wait by a random share of up to 1/16. Otherwise loops that start at the same moment, in one node or in
/// several, would query the database at the same moments forever.
fn with_jitter(time: Duration) -> Duration {
    let random = f64::from(OsRandom.next_u128() as u16) / f64::from(u16::MAX);
    time.mul_f64(1.0 - random / 16.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_shortens_a_wait_by_at_most_a_sixteenth() {
        let second = Duration::from_secs(1);
        let waits: Vec<Duration> = (0..100).map(|_| with_jitter(second)).collect();
        assert!(waits.iter().all(|wait| *wait <= second && *wait >= second * 15 / 16));
        assert!(waits.iter().any(|wait| *wait != waits[0]));
        assert_eq!(with_jitter(Duration::ZERO), Duration::ZERO);
    }
}
