//! T4, T5, T6 and T11: a worker reports how an attempt ended, and the run succeeds, fails, is canceled or waits for a
//! retry.

use std::borrow::Cow;
use std::collections::HashSet;

use tasuki_core::exit::ClassifiedFailure;
use tasuki_core::retry::{RetryDecision, RunAtAttemptEnd, decide_retry};
use tasuki_core::run::transition::RunVerb;
use tasuki_core::{AttemptErrorCode, AttemptOutcome, LeaseToken, RunId, RunState};

use crate::db::instant::duration_to_micros;
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Params, Tx, params};
use crate::run::lease;
use crate::run::rare_transition_records::{self, NewTransitionRecord};
use crate::{Error, FirstOutputLines, Outcome, Run, Store, job, to_uuid, validate};

static LOCK: Sql = sql!("run/lock");
static FAIL: Sql = sql!("run/fail");
static REQUEUE: Sql = sql!("run/requeue");
static INSERT_ATTEMPT: Sql = sql!("attempt/insert");
static FIND_ATTEMPT_BY_TOKEN: Sql = sql!("attempt/find_by_token");
static INSERT_DUE: Sql = sql!("due/insert");
static COUNT_END: Sql = sql!("stat/add", ".sqlite", ".postgres", ".mysql");

/// Maximum length of a stored result, in bytes. A longer one is not stored.
pub(crate) const MAX_RESULT_BYTES: usize = 65_536;
/// Maximum length of a stored error message or log reference, in bytes. A longer one is truncated; the log has the
/// whole message.
const MAX_MESSAGE_BYTES: usize = 65_536;

/// How an attempt ended.
///
/// Texts of the job are stored unchanged, with two exceptions. NUL becomes U+FFFD. A result of more than 64 KiB is
/// not stored, not even in part: a success with such a result becomes a failure with the code RESULT_TOO_LONG that is
/// not retried. Otherwise a missing result would look like a job without a result.
#[derive(Debug, Clone, Default)]
pub struct AttemptResult {
    /// The failure; `None` if the attempt succeeded.
    pub failure: Option<ClassifiedFailure>,
    /// Exit code of the command.
    pub exit_code: Option<i64>,
    /// Signal that ended the process.
    pub exit_signal: Option<i64>,
    /// Error message, for humans.
    pub error_message: Option<String>,
    /// Result of the job, as JSON.
    pub result: Option<String>,
    /// Number of database rows that the job affected, as the job reported it.
    pub rows_affected: Option<i64>,
    /// Reference to the log that the job itself wrote elsewhere.
    pub log_ref: Option<String>,
    /// Any random number; the backoff before the next attempt may depend on it.
    pub random: u32,
}

/// A worker's report of the end of one attempt.
#[derive(Debug, Clone)]
pub struct AttemptReport {
    /// Token of the lease that the worker holds the run under.
    pub token: LeaseToken,
    /// Id of the run.
    pub run: RunId,
    /// How the attempt ended.
    pub attempt_result: AttemptResult,
    /// Captured output, if it is short and complete: it is saved together with the end.
    pub output: Option<FirstOutputLines>,
}

/// Result of reporting a batch of successes.
#[derive(Default)]
pub(crate) struct SucceededBatch {
    /// Runs that have succeeded, with their tokens.
    pub(crate) ended: HashSet<(RunId, LeaseToken)>,
    /// Leases that were deleted, because no run is leased under them any more.
    pub(crate) closed: HashSet<LeaseToken>,
}

/// State of a run after its attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateAfterAttempt {
    /// A final state, or RETRY_WAIT.
    pub state: RunState,
}

impl AttemptResult {
    /// A failed attempt without further values.
    pub fn from_failure(failure: ClassifiedFailure) -> Self {
        Self { failure: Some(failure), ..Self::default() }
    }

    /// Changes the values so that every database can store them: no NUL, limited lengths.
    fn sanitize(&self) -> Cow<'_, Self> {
        let texts = [&self.result, &self.error_message, &self.log_ref];
        let fits = |text: &String| !text.contains('\0') && text.len() <= MAX_RESULT_BYTES;
        if texts.into_iter().flatten().all(fits) {
            return Cow::Borrowed(self);
        }
        let clean = |text: &Option<String>| {
            text.as_deref().map(|text| validate::replace_nul(text).into_owned())
        };
        let mut sanitized = Self {
            result: clean(&self.result),
            error_message: clean(&self.error_message).map(|text| truncate(text, MAX_MESSAGE_BYTES)),
            log_ref: clean(&self.log_ref).map(|text| truncate(text, MAX_MESSAGE_BYTES)),
            ..self.clone()
        };
        if let Some(result) = sanitized.result.take_if(|result| result.len() > MAX_RESULT_BYTES) {
            let message =
                format!("the result has {} bytes; the maximum is {MAX_RESULT_BYTES}", result.len());
            if sanitized.failure.is_none() {
                let code = AttemptErrorCode::RESULT_TOO_LONG;
                sanitized.failure = Some(ClassifiedFailure { code, retryable: false });
            }
            sanitized.error_message.get_or_insert(message);
        }
        Cow::Owned(sanitized)
    }

    /// Whether two successes have the same values to store.
    pub(crate) fn has_same_stored_values(&self, other: &Self) -> bool {
        let numbers = |result: &Self| (result.exit_code, result.rows_affected);
        numbers(self) == numbers(other)
            && self.result == other.result
            && self.log_ref == other.log_ref
    }

    /// Approximate size in a statement, in bytes, if it is a success.
    fn byte_size(&self) -> usize {
        100 + validate::max_json_string_bytes(self.result.as_deref())
            + validate::max_json_string_bytes(self.log_ref.as_deref())
    }

    /// Column values that describe the end of the attempt.
    pub(crate) fn columns(&self) -> Params<'static> {
        params! {
            exit_code: self.exit_code,
            exit_signal: self.exit_signal,
            error_code: self.failure.as_ref().map(|failure| failure.code.to_string()),
            error_message: self.error_message.clone(),
            result: self.result.clone(),
            rows_affected: self.rows_affected,
            log_ref: self.log_ref.clone(),
        }
    }
}

/// Result of [`Store::finish_successes`].
struct SucceededRuns {
    /// Runs that have succeeded, with their tokens.
    ended: HashSet<(RunId, LeaseToken)>,
    /// Leases that were to be closed but are still open, because a run may still be leased under them.
    still_leased: Vec<LeaseToken>,
}

impl AttemptReport {
    /// A report without output: the attempt wrote none, or its lines are saved already.
    pub fn new(token: LeaseToken, run: RunId, attempt_result: AttemptResult) -> Self {
        Self { token, run, attempt_result, output: None }
    }

    /// Approximate size in a statement, in bytes, if it is a success.
    fn byte_size(&self) -> usize {
        self.attempt_result.byte_size()
            + self.output.as_ref().map_or(0, FirstOutputLines::max_json_string_bytes)
    }

    /// Changes the values so that every database can store them.
    fn sanitize(&self) -> Cow<'_, Self> {
        match self.attempt_result.sanitize() {
            Cow::Borrowed(_) => Cow::Borrowed(self),
            Cow::Owned(result) => Cow::Owned(Self { attempt_result: result, ..self.clone() }),
        }
    }
}

impl Store {
    /// Reports the ends of attempts, successes in batches and failures one by one. The outcomes are in the order of the
    /// reports. `closing` names the leases under which the worker knows no other run; they are closed if that is so.
    /// Repeated after a lost response, a report finds its own earlier write and returns `Applied`.
    pub async fn finish(
        &self,
        reports: &[AttemptReport],
        closing: &[LeaseToken],
    ) -> Result<Vec<Outcome<StateAfterAttempt>>, Error> {
        // Sanitize first: a success with a result that cannot be stored becomes a failure.
        let reports: Vec<Cow<'_, AttemptReport>> =
            reports.iter().map(AttemptReport::sanitize).collect();
        let SucceededRuns { ended, still_leased } =
            self.finish_successes(&reports, closing).await?;
        let mut outcomes = Vec::with_capacity(reports.len());
        for report in &reports {
            outcomes.push(match ended.contains(&(report.run, report.token)) {
                true => Outcome::Applied(StateAfterAttempt { state: RunState::Succeeded }),
                false => self.finish_one(report).await?,
            });
        }
        // Under these leases an attempt failed, or its report came too late.
        for token in still_leased {
            self.close_lease_if_empty(token).await?;
        }
        Ok(outcomes)
    }

    /// Reports the successes among several reports in batches, and closes the leases in `closing` if no run is left
    /// under them. The caller must report all runs that are not in `ended` one by one.
    async fn finish_successes(
        &self,
        reports: &[Cow<'_, AttemptReport>],
        closing: &[LeaseToken],
    ) -> Result<SucceededRuns, Error> {
        let successful = reports.iter().filter(|report| report.attempt_result.failure.is_none());
        let mut successes: Vec<&AttemptReport> = successful.map(|report| &**report).collect();
        // Every transaction locks runs in the order of their ids, so that two of them cannot deadlock.
        successes.sort_by_key(|report| report.run);
        let mut still_leased: Vec<LeaseToken> = closing.to_vec();
        still_leased.sort_unstable();
        let mut ended = HashSet::new();
        let chunks =
            validate::chunks_by_size(&successes, successes.len(), |report| report.byte_size());
        let last = chunks.len().saturating_sub(1);
        for (index, chunk) in chunks.into_iter().enumerate() {
            // A lease may have runs in several chunks, so only the last chunk can close leases.
            let closing = if index == last { &still_leased[..] } else { &[] };
            let result = match self.dialect() {
                Dialect::Postgres => self.succeed_postgres(chunk, closing).await?,
                Dialect::Sqlite | Dialect::MySql => {
                    self.save_output(chunk.iter().copied()).await?;
                    self.succeed_batch(chunk, closing).await?
                }
            };
            ended.extend(result.ended);
            still_leased.retain(|token| !result.closed.contains(token));
        }
        Ok(SucceededRuns { ended, still_leased })
    }

    /// Saves the captured output of the reports. Output that is saved already was sent by an earlier try of the same
    /// report.
    async fn save_output<'e>(
        &self,
        reports: impl Iterator<Item = &'e AttemptReport>,
    ) -> Result<(), Error> {
        let outputs: Vec<_> = reports.filter_map(|report| report.output.clone()).collect();
        match outputs.is_empty() {
            true => Ok(()),
            false => self.create_short_logs(&outputs).await.map(drop),
        }
    }

    /// Ends one attempt in a transaction of its own: a failure, or a success that no batch could write because the run is
    /// no longer RUNNING under its token.
    async fn finish_one(
        &self,
        report: &AttemptReport,
    ) -> Result<Outcome<StateAfterAttempt>, Error> {
        match self.save_output(std::iter::once(report)).await {
            // The end of the attempt is more important than its output.
            Err(error) if !error.is_unavailable() && !error.is_contention() => {
                tracing::warn!(run_id = report.run.0, %error, "captured output was not saved");
            }
            saved => saved?,
        }
        let (token, run) = (report.token, report.run);
        let Some(failure) = &report.attempt_result.failure else {
            return self.resolve_repeated_report(token, run).await;
        };
        let mut tx = self.db.begin().await?;
        let rows = tx.query(&LOCK, params! { run_id: run.0 }).await?;
        let row = rows.first().map(Run::from_row).transpose()?;
        let running = row.filter(|row| row.state == RunState::Running && row.token == Some(token));
        let Some(row) = running else {
            tx.rollback().await?;
            return self.resolve_repeated_report(token, run).await;
        };
        let state =
            end_failed_attempt(&mut tx, &row, token, failure, &report.attempt_result).await?;
        lease::release_hold(&mut tx, &row, token).await?;
        tx.commit().await?;
        tracing::info!(run_id = run.0, verb = "finish", from = "RUNNING", to = %state, "run moved");
        Ok(Outcome::Applied(StateAfterAttempt { state }))
    }

    /// Handles a report for a run that is not RUNNING under its token. If an earlier try of the same report was
    /// applied (it is on the row of the run or in the history), returns `Applied`. Otherwise the report is late:
    /// records its refusal.
    async fn resolve_repeated_report(
        &self,
        token: LeaseToken,
        run: RunId,
    ) -> Result<Outcome<StateAfterAttempt>, Error> {
        let current = self.find_run(run).await?;
        if let Some(row) = &current
            && row.token == Some(token)
            && row.state.is_ended()
            && row.outcome.is_some_and(|outcome| outcome != AttemptOutcome::Lost)
        {
            return Ok(Outcome::Applied(StateAfterAttempt { state: row.state }));
        }
        let key = params! { token: to_uuid(token.as_bytes()), run_id: run.0 };
        let appended = self.db.query(&FIND_ATTEMPT_BY_TOKEN, key).await?;
        if let Some(attempt) = appended.first() {
            let outcome: AttemptOutcome = attempt.text("outcome")?.parse()?;
            if !matches!(outcome, AttemptOutcome::Lost | AttemptOutcome::Released) {
                return Ok(Outcome::Applied(StateAfterAttempt { state: RunState::RetryWait }));
            }
        }
        if let Some(row) = current {
            let mut tx = self.db.begin().await?;
            let record = NewTransitionRecord {
                run,
                attempt_no: row.counters.attempt_no,
                verb: RunVerb::Finish,
                actor: "worker",
                reason: Some("a late report was refused"),
                epoch: None,
                token: Some(token),
            };
            rare_transition_records::insert_transition_record(&mut tx, record).await?;
            tx.commit().await?;
        }
        Ok(Outcome::Lost(self.explain_loss(run).await?))
    }
}

/// Shortens a text to `max_bytes`, with an ellipsis at the end.
fn truncate(mut text: String, max_bytes: usize) -> String {
    if text.len() > max_bytes {
        text.truncate(text.floor_char_boundary(max_bytes - '…'.len_utf8()));
        text.push('…');
    }
    text
}

/// Ends the failed attempt of a locked run and moves the run to its next state.
async fn end_failed_attempt(
    tx: &mut Tx<'_>,
    run: &Run,
    token: LeaseToken,
    failure: &ClassifiedFailure,
    result: &AttemptResult,
) -> Result<RunState, Error> {
    let limits = job::get_lost_and_released_run_rules(tx, run.job, run.job_version).await?;
    let attempt_end = RunAtAttemptEnd {
        counters: run.counters,
        max_attempts: run.max_attempts,
        cancel_requested: run.cancel_requested_at.is_some(),
    };
    let decision = decide_retry(&attempt_end, failure, &limits.backoff, result.random);
    let outcome = match (decision, &failure.code) {
        (RetryDecision::End(RunState::Canceled), _) => AttemptOutcome::Canceled,
        (_, code) if *code == AttemptErrorCode::RUNTIME_TIMEOUT => AttemptOutcome::TimedOut,
        _ => AttemptOutcome::Failed,
    };
    apply_retry_decision(tx, run, token, decision, outcome, result.columns()).await
}

/// Writes a decision about the attempt of a locked, leased run: the run ends, or the attempt is appended to the
/// history and the run is requeued.
pub(crate) async fn apply_retry_decision(
    tx: &mut Tx<'_>,
    run: &Run,
    token: LeaseToken,
    decision: RetryDecision,
    outcome: AttemptOutcome,
    columns: Params<'static>,
) -> Result<RunState, Error> {
    let key = params! { run_id: run.id.0, token: to_uuid(token.as_bytes()) };
    let outcome_param = params! { outcome: outcome.as_str() };
    let budget = params! {
        tries_allowed: run.counters.tries_allowed,
        isolated: i64::from(run.counters.isolated),
    };
    match decision {
        RetryDecision::End(state) => {
            let end = params! { state: state.as_str(), reason: Option::<String>::None };
            let row = [key, outcome_param, columns, budget, end].concat();
            let updated = tx.execute(&FAIL, row).await?;
            debug_assert_eq!(updated, 1, "the row is locked and its state was checked");
            tx.execute(&COUNT_END, params! { run_id: run.id.0 }).await?;
            Ok(state)
        }
        RetryDecision::Retry(delay) => {
            append_attempt_to_history(tx, run.id, outcome, columns).await?;
            requeue(tx, run, token, RunState::RetryWait, duration_to_micros(delay)).await?;
            Ok(RunState::RetryWait)
        }
    }
}

/// Appends the current attempt of a locked run to the history.
pub(crate) async fn append_attempt_to_history(
    tx: &mut Tx<'_>,
    run: RunId,
    outcome: AttemptOutcome,
    columns: Params<'static>,
) -> Result<(), Error> {
    let key = params! { run_id: run.0, outcome: outcome.as_str() };
    tx.execute(&INSERT_ATTEMPT, [key, columns].concat()).await.map(drop)
}

/// Clears the lease columns of a locked, leased run and inserts its due row, with the counters of `run`. `delay` is in
/// microseconds.
pub(crate) async fn requeue(
    tx: &mut Tx<'_>,
    run: &Run,
    token: LeaseToken,
    state: RunState,
    delay: i64,
) -> Result<(), Error> {
    let row = params! {
        run_id: run.id.0,
        token: to_uuid(token.as_bytes()),
        state: state.as_str(),
        from_state: run.state.as_str(),
        delay: delay,
        releases: run.counters.releases,
        tries_allowed: run.counters.tries_allowed,
        isolated: i64::from(run.counters.isolated),
    };
    let updated = tx.execute(&REQUEUE, row).await?;
    debug_assert_eq!(updated, 1, "the row is locked and its state was checked");
    tx.execute(&INSERT_DUE, params! { run_id: run.id.0 }).await.map(drop)
}
