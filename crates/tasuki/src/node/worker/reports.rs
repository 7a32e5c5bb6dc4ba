//! T4 to T6, T11: reports attempts that have ended, and repeats each report until the database has it.

use std::collections::HashSet;

use futures_util::future::join_all;
use tasuki_core::{LeaseToken, RunId};
use tasuki_store::{AttemptReport, Error, FirstOutputLines, Outcome, StateAfterAttempt};

use super::super::store_timeout::with_timeout;
use super::{State, Worker, drop_lease_if_empty};
use crate::node::executor::attempt_input_and_result::{self, Completion, ExecutionEnd};
use crate::node::worker::lease_table::{LeaseWithRuns, LocalRunState, PendingReport};
use crate::spawner::AttemptKey;

/// Reports to be written together.
struct ReportBatch {
    reports: Vec<AttemptReport>,
    /// Details of each report, in the same order.
    details: Vec<ReportDetails>,
    /// Leases of which no other run is left.
    leases_to_close: Vec<LeaseToken>,
}

/// Marks leases as being reported until it is dropped, so that no other task reports their runs meanwhile.
struct ReportingGuard<'w> {
    worker: &'w Worker,
    tokens: Vec<LeaseToken>,
}

impl Drop for ReportingGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.worker.state();
        for token in &self.tokens {
            state.leases.get_mut(token).into_iter().for_each(|lease| lease.reporting = false);
        }
    }
}

/// What the worker needs to know of a report besides its content.
#[derive(Clone, Copy)]
struct ReportDetails {
    /// The attempt.
    key: AttemptKey,
    frees_claim: bool,
}

impl Worker {
    /// Writes the reports that are due. Reports that fail are kept and tried again. Returns when to check again, by the
    /// local clock: a report waits a moment for the others of its lease, so that one statement writes them all.
    pub(crate) async fn report(&self) -> Result<Option<u64>, Error> {
        self.drain_completions();
        // A command that has ended frees its slot before its result is known.
        if self.lacks_slots()
            && self.state().leases.values().any(|lease| lease.unreported_ends() > 0)
        {
            self.parts.wakeups.wake_claims();
        }
        let next = {
            let state = self.state();
            let unsaved_output = (!state.unsaved_output.is_empty()).then_some(0);
            state
                .leases
                .values()
                .filter_map(LeaseWithRuns::report_due_at)
                .chain(unsaved_output)
                .min()
        };
        match next {
            Some(at) if at <= self.parts.clock.boottime() => {
                // Boxed: every completion wakes this task, mostly without anything to write, and a large future would
                // be moved each time.
                Box::pin(self.report_all()).await?;
                Ok(Some(0))
            }
            at => Ok(at),
        }
    }

    /// Writes all reports now, without waiting for others of their leases.
    pub(crate) async fn report_all(&self) -> Result<(), Error> {
        self.drain_completions();
        let (ReportBatch { reports, details, leases_to_close }, _reporting) =
            self.take_report_batch();
        if reports.is_empty() {
            return self.save_pending_output().await;
        }
        // An attempt that has ended frees its slot before its report is written.
        if self.lacks_slots() {
            self.parts.wakeups.wake_claims();
        }
        let store = &self.parts.store;
        let (successes, mut single): (Vec<_>, Vec<_>) = reports
            .into_iter()
            .zip(&details)
            .partition(|(report, _)| report.attempt_result.failure.is_none());
        let failed_leases: HashSet<LeaseToken> =
            single.iter().map(|(report, _)| report.token).collect();
        let (mut late_closing, closing): (Vec<_>, Vec<_>) =
            leases_to_close.into_iter().partition(|token| failed_leases.contains(token));
        let mut failed = None;
        let (batch, batch_details): (Vec<AttemptReport>, Vec<&ReportDetails>) =
            successes.into_iter().unzip();
        match with_timeout(store.finish(&batch, &closing)).await {
            Ok(outcomes) => self.mark_written(batch.iter().zip(batch_details).zip(&outcomes)),
            // Perhaps one of the reports cannot be written. It must not keep back the others.
            Err(error) => {
                failed = Some(error);
                single.extend(batch.into_iter().zip(batch_details));
                late_closing.extend(closing);
            }
        }
        // Failures are written a few at a time, each in a transaction of its own: a report that cannot be written does not hold
        // up the others, and a report that was written is not sent again.
        for chunk in single.chunks(store.max_open_transactions()) {
            let each = chunk
                .iter()
                .map(|(report, _)| with_timeout(store.finish(std::slice::from_ref(report), &[])));
            for ((report, details), outcomes) in chunk.iter().zip(join_all(each).await) {
                match outcomes {
                    Ok(outcomes) => {
                        self.mark_written([(report, *details)].into_iter().zip(&outcomes));
                    }
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        if !late_closing.is_empty()
            && let Err(error) = with_timeout(store.finish(&[], &late_closing)).await
        {
            failed = failed.or(Some(error));
        }
        let saved = self.save_pending_output().await;
        failed.map_or(saved, Err)
    }

    /// Stores the captured output of attempts that the worker no longer leases: no other process has it.
    async fn save_pending_output(&self) -> Result<(), Error> {
        let output = std::mem::take(&mut self.state().unsaved_output);
        if output.is_empty() {
            return Ok(());
        }
        match with_timeout(self.parts.store.create_short_logs(&output)).await {
            Err(error) if error.is_unavailable() || error.is_contention() => {
                self.state().unsaved_output.extend(output);
                return Err(error);
            }
            Err(error) => {
                tracing::warn!(worker_id = %self.id(), %error, "captured output cannot be stored");
            }
            Ok(_) => {}
        }
        let key = |log: &FirstOutputLines| AttemptKey { run: log.run.0, attempt: log.attempt_no };
        self.parts.executor.forget_all(&output.iter().map(key).collect::<Vec<_>>());
        Ok(())
    }

    /// Forgets an attempt that the worker no longer leases, or keeps its captured output until that is stored.
    fn release_or_keep_output(
        &self,
        state: &mut State,
        key: AttemptKey,
        output: Option<FirstOutputLines>,
    ) {
        match output {
            Some(output) => state.unsaved_output.push(output),
            None => self.parts.executor.forget(key),
        }
    }

    /// Takes the completions of the executors and turns them into pending reports.
    fn drain_completions(&self) {
        let completions = self.parts.completions.take_all();
        let now = self.parts.clock.boottime();
        let mut state = self.state();
        for Completion { key, token, mut end } in completions {
            let run = RunId(key.run);
            let output = end.take_output();
            let Some(lease) = state.leases.get_mut(&token) else {
                self.release_or_keep_output(&mut state, key, output);
                continue;
            };
            match lease.runs.get(&run) {
                Some(LocalRunState::Running(running)) if running.key == key => {
                    let (job, stop_reason) = (&running.job, running.stop_reason);
                    // The spawner sends the exits of several commands together, so they do not wait for others here.
                    let is_command = matches!(end, ExecutionEnd::Exited { .. });
                    // A run that succeeded is not retried, so its backoff needs no random number.
                    let succeeded =
                        stop_reason.is_none() && matches!(end, ExecutionEnd::Returned(Ok(_)));
                    let random = if succeeded { 0 } else { self.random_u32() };
                    let result =
                        attempt_input_and_result::attempt_result(job, end, stop_reason, random);
                    let frees_claim = result.failure.is_some() || job.spec.concurrency.needs_hold();
                    let ended_at = if is_command { 0 } else { now };
                    let status = LocalRunState::Ended(Box::new(PendingReport {
                        key,
                        result,
                        output,
                        ended_at,
                        frees_claim,
                    }));
                    lease.set_run_status(run, status);
                }
                // The completion arrived twice.
                Some(LocalRunState::Ended(report)) if report.key == key => {}
                // The worker dropped the run before. That is also true if an old order has assigned it again since.
                Some(
                    LocalRunState::Waiting { .. }
                    | LocalRunState::Starting
                    | LocalRunState::Unconfirmed
                    | LocalRunState::Running(_)
                    | LocalRunState::Ended(_),
                )
                | None => self.release_or_keep_output(&mut state, key, output),
            }
        }
    }

    /// Takes the pending reports that no other task is writing, and marks their leases as being reported.
    fn take_report_batch(&self) -> (ReportBatch, ReportingGuard<'_>) {
        let mut reporting = ReportingGuard { worker: self, tokens: Vec::new() };
        let mut state = self.state();
        let unreported = state.leases.values().filter(|lease| !lease.reporting);
        let unreported = unreported.map(|lease| lease.unreported).sum();
        let (reports, details) = (Vec::with_capacity(unreported), Vec::with_capacity(unreported));
        let mut batch = ReportBatch { reports, details, leases_to_close: Vec::new() };
        for (&token, lease) in &mut state.leases {
            if lease.reporting || lease.unreported == 0 {
                continue;
            }
            for (&run, status) in &lease.runs {
                if let LocalRunState::Ended(report) = status {
                    batch
                        .details
                        .push(ReportDetails { key: report.key, frees_claim: report.frees_claim });
                    let PendingReport { result, output, .. } = (**report).clone();
                    batch.reports.push(AttemptReport {
                        token,
                        run,
                        attempt_result: result,
                        output,
                    });
                }
            }
            if lease.report_due_at() == Some(0) {
                batch.leases_to_close.push(token);
            }
            lease.reporting = true;
            reporting.tokens.push(token);
        }
        drop(state);
        (batch, reporting)
    }

    /// Handles the outcomes of reports that the database has answered.
    fn mark_written<'r>(
        &self,
        written: impl Iterator<
            Item = ((&'r AttemptReport, &'r ReportDetails), &'r Outcome<StateAfterAttempt>),
        >,
    ) {
        let mut reported = Vec::new();
        for ((report, details), outcome) in written {
            if let Outcome::Lost(lost) = outcome {
                tracing::info!(run_id = %report.run, worker_id = %self.id(), state = ?lost.state, "report lost: the worker no longer leases the run");
            }
            reported.push((report, details));
        }
        self.mark_reported(&reported);
    }

    /// Removes reported runs from their leases, and wakes the loops that wait for free slots or claimable runs.
    fn mark_reported(&self, written: &[(&AttemptReport, &ReportDetails)]) {
        if written.is_empty() {
            return;
        }
        let now = self.parts.clock.boottime();
        let (mut assigned, mut frees_claim) = (false, false);
        let mut state = self.state();
        for (AttemptReport { token, run, .. }, details) in written {
            frees_claim |= details.frees_claim;
            let Some(lease) = state.leases.get_mut(token) else { continue };
            assigned |= !lease.claimed;
            lease.remove_run(*run);
            lease.reported.insert(*run, now);
            drop_lease_if_empty(&mut state, *token);
        }
        drop(state);
        let keys: Vec<AttemptKey> = written.iter().map(|(_, details)| details.key).collect();
        self.parts.executor.forget_all(&keys);
        // Slots for claimed runs do not concern the leader, which only assigns runs.
        if assigned {
            self.parts.wakeups.wake_planner();
        }
        if frees_claim || self.lacks_slots() {
            self.parts.wakeups.wake_claims();
        }
        self.start_wakeup.notify_one();
    }
}
