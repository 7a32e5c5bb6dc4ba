//! T3: renews the leases of the worker, applies what the answers require, and stops attempts whose limits have passed.

use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::exit::AttemptStopReason;
use tasuki_core::{AttemptErrorCode, LeaseToken, RunId};
use tasuki_store::{Error, RenewResult, StartedRun};

use super::super::store_timeout::with_timeout;
use super::{Worker, drop_lease_if_empty, running_attempts};
use crate::node::executor::attempt_input_and_result;
use crate::node::worker::lease_table::{
    ClaimStatus, LeaseWithRuns, LocalRunState, PendingReport, RenewalAction, renewal_actions,
};
use crate::spawner::AttemptKey;

/// How long, in microseconds, a claim that was given up may still take effect.
const LATE_CLAIM_TTL_MICROS: u64 = 600_000_000;

impl Worker {
    /// Renews the leases that are due (or all of them) and applies what the answers require.
    pub(crate) async fn renew(&self, all: bool) -> Result<(), Error> {
        let sent_at = self.parts.clock.boottime();
        let settings = self.settings();
        let interval = settings.lease_renew().as_micros() as u64;
        let tokens: Vec<LeaseToken> = {
            let state = self.state();
            let is_due = |lease: &LeaseWithRuns| {
                all || lease.claim == ClaimStatus::Unanswered
                    || lease.renewed_at.is_none_or(|renewed_at| sent_at >= renewed_at + interval)
                    || lease
                        .runs
                        .values()
                        .any(|status| matches!(status, LocalRunState::Unconfirmed))
            };
            let due = state.leases.iter().filter(|(_, lease)| {
                lease.needs_renewal() && lease.claim != ClaimStatus::Sent && is_due(lease)
            });
            due.map(|(token, _)| *token).collect()
        };
        if tokens.is_empty() {
            return Ok(());
        }
        let renewal = self.parts.store.renew(self.id(), &tokens, settings.lease_ttl());
        let answers = with_timeout(renewal).await?;
        for (token, answer) in tokens.into_iter().zip(answers) {
            match answer {
                RenewResult::Gone => self.drop_lease(token),
                RenewResult::Held { runs, .. } => {
                    let until = sent_at + settings.sigkill_after_last_renewal().as_micros() as u64;
                    self.parts.executor.set_lease_deadline(token, until);
                    let actions = {
                        let mut state = self.state();
                        let Some(lease) = state.leases.get_mut(&token) else { continue };
                        lease.renewed_at = Some(sent_at);
                        renewal_actions(lease, sent_at, &runs)
                    };
                    self.apply_actions(token, actions).await;
                }
            }
        }
        Ok(())
    }

    /// Stops attempts whose timeout or maximum silence has passed, and all attempts of a lease that could not be
    /// renewed in time. Those are killed at the latest when the lease ends. Returns when to check again, by the local
    /// clock.
    pub(crate) fn enforce_deadlines(&self) -> Option<u64> {
        let now = self.parts.clock.boottime();
        let mut state = self.state();
        let sigterm_after_last_renewal =
            state.settings.sigterm_after_last_renewal().as_micros() as u64;
        let sigkill_after_last_renewal =
            state.settings.sigkill_after_last_renewal().as_micros() as u64;
        let mut next: Option<u64> = None;
        for lease in state.leases.values_mut() {
            let stop_at =
                lease.renewed_at.map(|renewed_at| renewed_at + sigterm_after_last_renewal);
            let must_stop = stop_at.is_some_and(|at| at <= now);
            let lease_ends_at =
                lease.renewed_at.map(|renewed_at| renewed_at + sigkill_after_last_renewal);
            let lease_ended = lease_ends_at.is_some_and(|at| at <= now);
            for running in running_attempts(lease) {
                // The lease has ended and another worker may get the run soon, so there is no time for a grace.
                if lease_ended {
                    running.stop_grace = Duration::ZERO;
                }
                let reason =
                    running.timeout_reason(now).or(must_stop.then_some(AttemptStopReason::Silence));
                if let Some(reason) = reason {
                    self.stop(running, reason);
                }
                let lease_check_at = if must_stop { lease_ends_at } else { stop_at };
                let checks = [running.next_check_at(), lease_check_at.filter(|_| !lease_ended)];
                next = checks.into_iter().chain([next]).flatten().min();
            }
        }
        next
    }

    /// Applies the actions that a renewal requires.
    async fn apply_actions(&self, token: LeaseToken, actions: Vec<RenewalAction>) {
        let mut launches = Vec::new();
        let mut not_running = Vec::new();
        for action in actions {
            match action {
                RenewalAction::Stop(run) => {
                    let mut state = self.state();
                    let lease = state.leases.get_mut(&token);
                    if let Some(LocalRunState::Running(running)) =
                        lease.and_then(|l| l.runs.get_mut(&run))
                    {
                        self.stop(running, AttemptStopReason::Cancel);
                    }
                }
                RenewalAction::DropRun(run) => self.drop_run(token, run),
                RenewalAction::Launch(run, canceled) => launches.push((run, canceled)),
                RenewalAction::WaitAgain(run) => {
                    let not_before = self.parts.clock.boottime();
                    let waiting = LocalRunState::Waiting { due_at: Timestamp::MIN, not_before };
                    self.set_status(token, run, waiting);
                    self.start_wakeup.notify_one();
                }
                RenewalAction::ReportNotRunning(run) => not_running.push(run),
            }
        }
        if launches.is_empty() && not_running.is_empty() {
            self.mark_claim_answered(token);
            return;
        }
        let Ok(running) = with_timeout(self.parts.store.list_started_runs_of_lease(token)).await
        else {
            return;
        };
        for run in running {
            let due = launches.iter().find(|(id, _)| *id == run.id);
            match due {
                Some(_) if !self.mark_starting_if_unconfirmed(token, run.id) => {}
                Some((_, false)) => self.launch(token, vec![run]).await,
                Some((_, true)) => {
                    self.report_not_running(token, &run, AttemptStopReason::Cancel.error_code());
                }
                None if not_running.contains(&run.id) => {
                    self.report_not_running(token, &run, AttemptErrorCode::HEARTBEAT_TIMEOUT);
                }
                None => {}
            }
        }
        self.mark_claim_answered(token);
    }

    /// Marks an unconfirmed run as starting, so that only one task launches or ends it. `false`: another task was
    /// first.
    fn mark_starting_if_unconfirmed(&self, token: LeaseToken, run: RunId) -> bool {
        let mut state = self.state();
        let Some(lease) = state.leases.get_mut(&token) else { return false };
        let unconfirmed = match lease.runs.get(&run) {
            Some(status) => matches!(status, LocalRunState::Unconfirmed),
            None => lease.claim == ClaimStatus::Unanswered && !lease.reported.contains_key(&run),
        };
        if unconfirmed {
            lease.set_run_status(run, LocalRunState::Starting);
        }
        unconfirmed
    }

    /// Marks the claim of a lease as answered: its runs are known now.
    fn mark_claim_answered(&self, token: LeaseToken) {
        let mut state = self.state();
        if let Some(lease) = state.leases.get_mut(&token)
            && lease.claim == ClaimStatus::Unanswered
        {
            lease.claim = ClaimStatus::Answered;
        }
        drop_lease_if_empty(&mut state, token);
    }

    /// Ends a run that is RUNNING in the database while nothing of it is or will be launched here.
    pub(super) fn report_not_running(
        &self,
        token: LeaseToken,
        run: &StartedRun,
        code: AttemptErrorCode,
    ) {
        let failure = tasuki_core::exit::FailureRules::default().classify_code(code, None);
        let result = attempt_input_and_result::failed_result(
            failure,
            "the run was not running on its worker",
            self.random_u32(),
        );
        let key = AttemptKey { run: run.id.0, attempt: run.attempt_no };
        let report = PendingReport::new_without_output(key, result, self.parts.clock.boottime());
        self.set_status(token, run.id, LocalRunState::Ended(Box::new(report)));
        self.parts.completions.wake_worker();
    }

    /// Kills everything that runs under a lost lease. It writes nothing to the database.
    fn drop_lease(&self, token: LeaseToken) {
        let mut state = self.state();
        let Some(lease) = state.leases.get_mut(&token) else { return };
        for running in running_attempts(lease) {
            tracing::warn!(run_id = running.key.run, worker_id = %self.id(), "lease lost: the attempt is killed");
            self.parts.executor.stop(running.key, AttemptStopReason::Silence, Duration::ZERO);
        }
        // Starts and reports that are being written find out themselves that the lease is lost.
        lease.runs.retain(|_, status| {
            matches!(status, LocalRunState::Starting | LocalRunState::Ended(_))
        });
        let (unanswered, pool) = (lease.claim == ClaimStatus::Unanswered, lease.pool);
        lease.claim = ClaimStatus::Answered;
        drop_lease_if_empty(&mut state, token);
        if unanswered {
            // The claim has had no effect yet, and may still have one.
            let now = self.parts.clock.boottime();
            state
                .given_up_claims
                .retain(|_, (renewed_at, _)| now < *renewed_at + LATE_CLAIM_TTL_MICROS);
            state.given_up_claims.insert(token, (now, pool));
        }
    }

    /// Removes one run that the worker no longer leases, and kills its attempt.
    pub(super) fn drop_run(&self, token: LeaseToken, run: RunId) {
        let mut state = self.state();
        if let Some(lease) = state.leases.get_mut(&token)
            && let Some(LocalRunState::Running(running)) = lease.remove_run(run)
        {
            tracing::warn!(run_id = %run, worker_id = %self.id(), "run no longer leased: the attempt is killed");
            self.parts.executor.stop(running.key, AttemptStopReason::Silence, Duration::ZERO);
        }
        drop_lease_if_empty(&mut state, token);
    }
}
