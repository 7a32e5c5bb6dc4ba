//! T4, T5, T6 and T11: an attempt ends, and its worker says how.

use std::borrow::Cow;
use std::collections::HashSet;

use tasuki_core::exit::Failure;
use tasuki_core::retry::{AtTheEnd, Next, decide};
use tasuki_core::run::transition::Verb;
use tasuki_core::{AttemptOutcome, ErrorCode, LeaseToken, RunId, RunState};

use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Params, Tx, params};
use crate::run::lease;
use crate::run::micros;
use crate::run::note::{self, Note};
use crate::{Error, FirstLines, Outcome, Run, Store, check, job, uuid};

static LOCK: Sql = sql!("run/lock");
static SUCCEED: Sql = sql!("run/succeed");
static FAIL: Sql = sql!("run/fail");
static WAIT: Sql = sql!("run/wait");
static APPEND: Sql = sql!("attempt/append");
static BY_TOKEN: Sql = sql!("attempt/by_token");
static DUE_PUT: Sql = sql!("due/put");
static STAT_ADD: Sql = sql!("stat/add", ".sqlite", ".postgres", ".mysql");

/// The longest result that is kept, in bytes.
pub(crate) const LONGEST_RESULT: usize = 65_536;
/// The longest message that is kept, in bytes; the whole of it is in the log.
const LONGEST_MESSAGE: usize = 65_536;

/// How an attempt ended.
///
/// What a job says is kept as it is, but for NUL, which becomes U+FFFD, and its length. A result of more
/// than 64 KiB is not kept, not even in part: a success with one ends as a failure, RESULT_TOO_LONG, that
/// is not tried again, so that nobody takes a result that is missing for one that was not given.
#[derive(Debug, Clone, Default)]
pub struct AttemptResult {
    /// `None` is success.
    pub failure: Option<Failure>,
    /// The exit code of a command.
    pub exit_code: Option<i64>,
    /// The signal that killed it.
    pub exit_signal: Option<i64>,
    /// What went wrong, for people.
    pub error_message: Option<String>,
    /// What it gave back, as JSON.
    pub result: Option<String>,
    /// How many rows it touched.
    pub rows_affected: Option<i64>,
    /// Where its own log is.
    pub log_ref: Option<String>,
    /// Any random number: the wait before the next try may depend on it.
    pub dice: u32,
}

/// The end of one attempt, under its token.
#[derive(Debug, Clone)]
pub struct AttemptReport {
    /// Under which lease.
    pub token: LeaseToken,
    /// Of which run.
    pub run: RunId,
    /// How.
    pub finish: AttemptResult,
    /// What it printed, where that is little and all of it: it is kept with the end.
    pub printed: Option<FirstLines>,
}

/// What ended together.
#[derive(Default)]
pub(crate) struct Together {
    pub(crate) ended: HashSet<(RunId, LeaseToken)>,
    pub(crate) closed: HashSet<LeaseToken>,
}

/// What became of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// An end, or RETRY_WAIT.
    pub state: RunState,
}

impl AttemptResult {
    /// It failed like this.
    pub fn failed(failure: Failure) -> Self {
        Self { failure: Some(failure), ..Self::default() }
    }

    /// As every database can keep it.
    fn sound(&self) -> Cow<'_, Self> {
        let said = [&self.result, &self.error_message, &self.log_ref];
        let fits = |text: &String| !text.contains('\0') && text.len() <= LONGEST_RESULT;
        if said.into_iter().flatten().all(fits) {
            return Cow::Borrowed(self);
        }
        let clean = |text: &Option<String>| {
            text.as_deref().map(|text| check::without_nul(text).into_owned())
        };
        let mut finish = Self {
            result: clean(&self.result),
            error_message: clean(&self.error_message).map(|text| cut(text, LONGEST_MESSAGE)),
            log_ref: clean(&self.log_ref).map(|text| cut(text, LONGEST_MESSAGE)),
            ..self.clone()
        };
        if let Some(result) = finish.result.take_if(|result| result.len() > LONGEST_RESULT) {
            let told =
                format!("the result has {} bytes, at most {LONGEST_RESULT} are kept", result.len());
            if finish.failure.is_none() {
                let code = ErrorCode::RESULT_TOO_LONG;
                finish.failure = Some(Failure { code, retryable: false });
            }
            finish.error_message.get_or_insert(told);
        }
        Cow::Owned(finish)
    }

    /// Whether a success tells the same as another.
    pub(crate) fn tells_as(&self, other: &Self) -> bool {
        let told = |one: &Self| (one.exit_code, one.rows_affected);
        told(self) == told(other) && self.result == other.result && self.log_ref == other.log_ref
    }

    fn weight(&self) -> usize {
        100 + check::weight(self.result.as_deref()) + check::weight(self.log_ref.as_deref())
    }

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

/// What became of successes that were reported together.
#[derive(Debug, Default)]
pub struct Succeeded {
    /// Those that have ended so.
    pub ended: HashSet<(RunId, LeaseToken)>,
    /// Leases that were to be closed and are not: something may be left under them.
    pub open: Vec<LeaseToken>,
}

impl AttemptReport {
    /// Of one that printed nothing, or whose lines are kept already.
    pub fn new(token: LeaseToken, run: RunId, finish: AttemptResult) -> Self {
        Self { token, run, finish, printed: None }
    }

    fn weight(&self) -> usize {
        self.finish.weight() + self.printed.as_ref().map_or(0, FirstLines::weight)
    }

    /// As every database can keep it.
    fn sound(&self) -> Cow<'_, Self> {
        match self.finish.sound() {
            Cow::Borrowed(_) => Cow::Borrowed(self),
            Cow::Owned(finish) => Cow::Owned(Self { finish, ..self.clone() }),
        }
    }
}

impl Store {
    /// Reports the end of an attempt under its token. Sent again after a lost answer, it finds its own
    /// ending and is applied.
    pub async fn finish(
        &self,
        token: LeaseToken,
        run: RunId,
        finish: &AttemptResult,
    ) -> Result<Outcome<Finished>, Error> {
        let outcome = self.finish_sound(token, run, &finish.sound()).await?;
        if outcome.is_applied() {
            self.close_if_empty(token).await?;
        }
        Ok(outcome)
    }

    /// Reports the ends of all attempts under one token, in their order.
    pub async fn finish_many(
        &self,
        token: LeaseToken,
        ends: &[(RunId, AttemptResult)],
    ) -> Result<Vec<Outcome<Finished>>, Error> {
        let ending = |(run, finish): &(RunId, AttemptResult)| AttemptReport::new(token, *run, finish.clone());
        let ends: Vec<AttemptReport> = ends.iter().map(ending).collect();
        self.finish_all(&ends, &[token]).await
    }

    /// Reports the ends of several attempts, in their order, and closes the leases under which the worker
    /// knows nothing else, where that is so. Those that succeeded travel together.
    pub async fn finish_all(
        &self,
        ends: &[AttemptReport],
        closing: &[LeaseToken],
    ) -> Result<Vec<Outcome<Finished>>, Error> {
        let Succeeded { ended, open } = self.succeed_all(ends, closing).await?;
        let mut outcomes = Vec::with_capacity(ends.len());
        for ending in ends {
            outcomes.push(match ended.contains(&(ending.run, ending.token)) {
                true => Outcome::Applied(Finished { state: RunState::Succeeded }),
                false => self.finish_open(ending).await?,
            });
        }
        // Something failed, or came too late.
        for token in open {
            self.close_if_empty(token).await?;
        }
        Ok(outcomes)
    }

    /// Reports those of several ends that are successes, together, and closes these leases where nothing is left
    /// under them. What is not among those it tells of has still to be reported one by one.
    pub async fn succeed_all(
        &self,
        ends: &[AttemptReport],
        closing: &[LeaseToken],
    ) -> Result<Succeeded, Error> {
        // What no database can keep is no success.
        let ends: Vec<Cow<'_, AttemptReport>> = ends.iter().map(AttemptReport::sound).collect();
        let good = ends.iter().filter(|ending| ending.finish.failure.is_none());
        let mut good: Vec<&AttemptReport> = good.map(|ending| &**ending).collect();
        // In one order, whoever else ends the same runs.
        good.sort_by_key(|ending| ending.run);
        let mut open: Vec<LeaseToken> = closing.to_vec();
        open.sort_unstable();
        let mut ended = HashSet::new();
        let trips = check::trips(&good, good.len(), |ending| ending.weight());
        let last = trips.len().saturating_sub(1);
        for (index, trip) in trips.into_iter().enumerate() {
            // What travels before the last is not all there is under any of them.
            let closing = if index == last { &open[..] } else { &[] };
            let together = match self.dialect() {
                Dialect::Postgres => self.succeed_in_one_trip(trip, closing).await?,
                Dialect::Sqlite | Dialect::MySql => {
                    self.keep_printed(trip.iter().copied()).await?;
                    self.succeed_as_a_set(trip, closing).await?
                }
            };
            ended.extend(together.ended);
            open.retain(|token| !together.closed.contains(token));
        }
        Ok(Succeeded { ended, open })
    }

    /// Keeps what these printed. Where something is kept already, that was the same, sent before.
    async fn keep_printed<'e>(&self, ends: impl Iterator<Item = &'e AttemptReport>) -> Result<(), Error> {
        let printed: Vec<_> = ends.filter_map(|ending| ending.printed.clone()).collect();
        match printed.is_empty() {
            true => Ok(()),
            false => self.open_logs(&printed).await.map(drop),
        }
    }

    /// Reports one end, as [`Store::finish`], and leaves its lease open.
    pub async fn finish_open(&self, ending: &AttemptReport) -> Result<Outcome<Finished>, Error> {
        match self.keep_printed(std::iter::once(ending)).await {
            // How it ended counts for more than what it said.
            Err(error) if !error.is_unavailable() && !error.is_contention() => {
                tracing::warn!(run_id = ending.run.0, %error, "what it printed cannot be kept");
            }
            kept => kept?,
        }
        self.finish_sound(ending.token, ending.run, &ending.finish.sound()).await
    }

    async fn finish_sound(
        &self,
        token: LeaseToken,
        run: RunId,
        finish: &AttemptResult,
    ) -> Result<Outcome<Finished>, Error> {
        let mut tx = self.db.begin().await?;
        let rows = tx.rows(&LOCK, params! { run_id: run.0 }).await?;
        let row = rows.first().map(Run::from_row).transpose()?;
        let mine = row.filter(|row| row.state == RunState::Running && row.token == Some(token));
        let Some(row) = mine else {
            tx.rollback().await?;
            return self.ended_before(token, run).await;
        };
        let state = end_attempt(&mut tx, &row, token, finish).await?;
        lease::give_hold(&mut tx, &row, token).await?;
        tx.commit().await?;
        tracing::info!(run_id = run.0, verb = "finish", from = "RUNNING", to = %state, "run moved");
        Ok(Outcome::Applied(Finished { state }))
    }

    /// Looks whether the ending that is being reported stands there already, on the row or among the
    /// appended attempts; a late result that is not believed leaves a note.
    async fn ended_before(
        &self,
        token: LeaseToken,
        run: RunId,
    ) -> Result<Outcome<Finished>, Error> {
        let now = self.run(run).await?;
        if let Some(row) = &now
            && row.token == Some(token)
            && row.state.is_ended()
            && row.outcome.is_some_and(|outcome| outcome != AttemptOutcome::Lost)
        {
            return Ok(Outcome::Applied(Finished { state: row.state }));
        }
        let key = params! { token: uuid(token.as_bytes()), run_id: run.0 };
        let appended = self.db.rows(&BY_TOKEN, key).await?;
        if let Some(attempt) = appended.first() {
            let outcome: AttemptOutcome = attempt.text("outcome")?.parse()?;
            if !matches!(outcome, AttemptOutcome::Lost | AttemptOutcome::Released) {
                return Ok(Outcome::Applied(Finished { state: RunState::RetryWait }));
            }
        }
        if let Some(row) = now {
            let mut tx = self.db.begin().await?;
            let note = Note {
                run,
                attempt_no: row.counters.attempt_no,
                verb: Verb::Finish,
                actor: "worker",
                reason: Some("a late result was refused"),
                epoch: None,
                token: Some(token),
            };
            note::add(&mut tx, note).await?;
            tx.commit().await?;
        }
        Ok(Outcome::Lost(self.explain(run).await?))
    }
}

/// The start of a text, with a mark where it was cut.
fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most - '…'.len_utf8()));
        text.push('…');
    }
    text
}

/// Ends the live attempt of a locked run and moves it on.
async fn end_attempt(
    tx: &mut Tx<'_>,
    run: &Run,
    token: LeaseToken,
    finish: &AttemptResult,
) -> Result<RunState, Error> {
    let key = params! { run_id: run.id.0, token: uuid(token.as_bytes()) };
    let Some(failure) = &finish.failure else {
        let hit = tx.execute(&SUCCEED, [key, finish.columns()].concat()).await?;
        debug_assert_eq!(hit, 1, "the row is locked and was looked at");
        tx.execute(&STAT_ADD, params! { run_id: run.id.0 }).await?;
        return Ok(RunState::Succeeded);
    };
    let limits = job::limits(tx, run.job, run.job_version).await?;
    let at_the_end = AtTheEnd {
        counters: run.counters,
        max_attempts: run.max_attempts,
        cancel_asked: run.cancel_requested_at.is_some(),
    };
    let next = decide(&at_the_end, failure, &limits.backoff, finish.dice);
    let outcome = match (next, &failure.code) {
        (Next::End(RunState::Canceled), _) => AttemptOutcome::Canceled,
        (_, code) if *code == ErrorCode::RUNTIME_TIMEOUT => AttemptOutcome::TimedOut,
        _ => AttemptOutcome::Failed,
    };
    settle(tx, run, token, next, outcome, finish.columns()).await
}

/// Writes what was decided about the attempt of a locked, carried run: an end on the row, or the
/// attempt appended and the row cleared for the next one.
pub(crate) async fn settle(
    tx: &mut Tx<'_>,
    run: &Run,
    token: LeaseToken,
    next: Next,
    outcome: AttemptOutcome,
    columns: Params<'static>,
) -> Result<RunState, Error> {
    let key = params! { run_id: run.id.0, token: uuid(token.as_bytes()) };
    let told = params! { outcome: outcome.as_str() };
    let budget = params! {
        tries_allowed: run.counters.tries_allowed,
        alone: i64::from(run.counters.alone),
    };
    match next {
        Next::End(state) => {
            let end = params! { state: state.as_str(), reason: Option::<String>::None };
            let row = [key, told, columns, budget, end].concat();
            let hit = tx.execute(&FAIL, row).await?;
            debug_assert_eq!(hit, 1, "the row is locked and was looked at");
            tx.execute(&STAT_ADD, params! { run_id: run.id.0 }).await?;
            Ok(state)
        }
        Next::Retry(wait) => {
            append(tx, run.id, outcome, columns).await?;
            wait_again(tx, run, token, RunState::RetryWait, micros(wait)).await?;
            Ok(RunState::RetryWait)
        }
    }
}

/// Appends the live attempt of a locked run to the history.
pub(crate) async fn append(
    tx: &mut Tx<'_>,
    run: RunId,
    outcome: AttemptOutcome,
    columns: Params<'static>,
) -> Result<(), Error> {
    let told = params! { run_id: run.0, outcome: outcome.as_str() };
    tx.execute(&APPEND, [told, columns].concat()).await.map(drop)
}

/// Clears the row of a locked, carried run and lets it wait again, with the counters it has now.
pub(crate) async fn wait_again(
    tx: &mut Tx<'_>,
    run: &Run,
    token: LeaseToken,
    state: RunState,
    wait: i64,
) -> Result<(), Error> {
    let row = params! {
        run_id: run.id.0,
        token: uuid(token.as_bytes()),
        state: state.as_str(),
        from_state: run.state.as_str(),
        wait: wait,
        releases: run.counters.releases,
        tries_allowed: run.counters.tries_allowed,
        alone: i64::from(run.counters.alone),
    };
    let hit = tx.execute(&WAIT, row).await?;
    debug_assert_eq!(hit, 1, "the row is locked and was looked at");
    tx.execute(&DUE_PUT, params! { run_id: run.id.0 }).await.map(drop)
}
