//! The hot path on SQLite: a claim, or what has ended under one token, told in one go. What needs a closer look goes the way
//! of `sets`.

use tasuki_core::{EventId, JobId, LeaseToken, RunId, Scope};

use crate::db::errands::{Asked, Errand};
use crate::db::sql::{Sql, sqlite_script};
use crate::db::{Params, params};
use crate::run::due::STRETCH;
use crate::run::finish::Together;
use crate::run::sets::{by_token, guard, told_of};
use crate::run::{micros, timestamp};
use crate::{ClaimBatch, AttemptReport, Error, Store, Taken, uuid};

/// A claim, however its lease is opened.
macro_rules! claim {
    ($($open:literal),+) => {
        Errand {
            script: sqlite_script!(
                $($open,)+
                "due/take_leased.sqlite",
                "due/cut_leased.sqlite",
                "due/all_taken.sqlite",
                "run/claim_stretch.sqlite",
                "lease/stretch_moved.sqlite",
                "run/claim_leased.sqlite",
                "lease/all_moved.sqlite",
                "run/taken_stretch.sqlite",
                "run/taken_leased.sqlite",
            ),
            rows: 6,
        }
    };
}
/// By what due says where ids follow one another; and by the runs themselves, should due not be true.
static CLAIM: Errand = claim!(
    "lease/open_stretch.sqlite",
    "lease/opened_now.sqlite",
    "lease/open_plain.sqlite",
    "lease/list_stretch.sqlite"
);
static CLAIM_LISTED: Errand = claim!("lease/open_plain.sqlite", "lease/opened_now.sqlite");
/// What is told of ends, however their runs are found.
macro_rules! ends {
    ($succeed:literal) => {
        Errand {
            script: sqlite_script!(
                $succeed,
                "run/all_ended.sqlite",
                "stat/add_leased.sqlite",
                "stat/add_plain.sqlite",
                "stat/add_mixed.sqlite",
                "lease/close_if_over.sqlite",
                "lease/is_closed.sqlite",
            ),
            rows: 2,
        }
    };
}
static END_STRETCH: Errand = ends!("run/succeed_stretch.sqlite");
static END_ALIKE: Errand = ends!("run/succeed_alike.sqlite");
static END: Errand = ends!("run/succeed_many.sqlite");

/// From so many ends on under one token it pays to send them without looking first.
const MANY: usize = 8;

impl Store {
    /// T1c on SQLite in one go, for what needs neither a hold nor to be alone. Nothing where something does, or nothing
    /// is due, or the worker takes no new work.
    pub(crate) async fn claim_plain(
        &self,
        batch: &ClaimBatch<'_>,
        after: &Params<'static>,
    ) -> Result<Vec<Taken>, Error> {
        // So many rows of whole stretches say what may be taken, and one more what is left.
        let rows = i64::from(batch.most) / STRETCH + 2;
        let asked = params! { lane: batch.lane, most: batch.most, rows: rows, ttl: micros(batch.lease_ttl) };
        let asked = [asked, guard(batch), after.clone()].concat();
        let claim = async |errand: &'static Errand| {
            let claim = Asked { errand, runs: batch.most as usize, params: asked.clone() };
            let told = self.db.errands(vec![claim]).await?.pop();
            told.unwrap_or_else(|| Err(Error::broken("a claim says nothing")))
        };
        let rows = match claim(&CLAIM).await {
            Err(error) if error.gave_up() => claim(&CLAIM_LISTED).await?,
            told => told?,
        };
        let mut taken = Vec::new();
        // In one of them there is nothing.
        for row in rows.iter().rev().take(2) {
            taken.extend(listed(&row.text("listed")?)?);
        }
        taken.sort_by_key(|taken| (taken.due_at, taken.id));
        Ok(taken)
    }

    /// Ends runs on SQLite of which there are many under one token, without looking first. Tells which are left:
    /// few, or not all of them ended, or they have holds to give back.
    pub(crate) async fn end_in_one_go<'e>(
        &self,
        good: &[&'e AttemptReport],
        closing: &[LeaseToken],
    ) -> Result<(Together, Vec<&'e AttemptReport>), Error> {
        let (many, few): (Vec<_>, Vec<_>) =
            by_token(good).into_iter().partition(|(_, ends)| ends.len() >= MANY);
        let mut left: Vec<&AttemptReport> = few.into_iter().flat_map(|(_, ends)| ends).collect();
        let mut together = Together::default();
        if many.is_empty() {
            return Ok((together, left));
        }
        let errand = |(token, ends): &(LeaseToken, Vec<&AttemptReport>)| {
            let ids: Vec<i64> = ends.iter().map(|ending| ending.run.0).collect();
            let count = ends.len() as i64;
            // Each once: of one that is told twice another between the first and the last would be taken to have ended.
            let in_a_row = ids.windows(2).all(|pair| pair[1] == pair[0] + 1);
            let stretch = ids.first().zip(ids.last()).filter(|_| in_a_row);
            let (first, last) = stretch.map(|(first, last)| (*first, *last)).unzip();
            let all = params! {
                token: uuid(token.as_bytes()),
                count: count,
                first: first,
                last: last,
                ids: ids,
                closes: i64::from(closing.contains(token)),
            };
            let alike = ends.iter().all(|ending| ending.finish.tells_as(&ends[0].finish));
            let (errand, told): (&'static Errand, _) = match (alike, first) {
                (true, Some(_)) => (&END_STRETCH, ends[0].finish.columns()),
                (true, None) => (&END_ALIKE, ends[0].finish.columns()),
                (false, _) => (&END, params! { ends: told_of(ends) }),
            };
            Asked { errand, runs: ends.len(), params: [all, told].concat() }
        };
        let told = self.db.errands(many.iter().map(errand).collect()).await?;
        together.ended.reserve(good.len());
        for ((token, ends), rows) in many.iter().zip(told) {
            match rows {
                Ok(rows) => {
                    together.ended.extend(ends.iter().map(|ending| (ending.run, *token)));
                    let row = rows.last().ok_or_else(|| Error::broken("an end says nothing"))?;
                    if row.int("closed")? == 1 {
                        together.closed.insert(*token);
                    }
                }
                Err(error) if error.gave_up() => left.extend(ends),
                Err(error) => return Err(error),
            }
        }
        left.sort_by_key(|ending| ending.run);
        Ok((together, left))
    }
}

/// One of those that `run/taken_stretch` lists.
type Listed<'l> = (
    i64,
    i64,
    i64,
    &'l str,
    Option<(String, String)>,
    i64,
    Option<i64>,
    u32,
    u32,
    Option<i64>,
    Option<String>,
);

/// What a worker must know of what it was given, as it is listed in one go.
fn listed(list: &str) -> Result<Vec<Taken>, Error> {
    let list: Vec<Listed<'_>> = serde_json::from_str(list)
        .map_err(|error| Error::broken(format!("a list of what was claimed: {error}")))?;
    let taken = |one: Listed<'_>| {
        let (id, job, job_version, origin, scope, ..) = one;
        let (.., scheduled_for, next_retry_at, attempt_no, tries, event, args) = one;
        Ok(Taken {
            id: RunId(id),
            job: JobId(job),
            job_version,
            origin: origin.parse()?,
            scope: scope.map_or(Ok(Scope::default()), |(kind, id)| Scope::stored(&kind, &id))?,
            scheduled_for: timestamp(scheduled_for)?,
            due_at: timestamp(next_retry_at.unwrap_or(scheduled_for))?,
            attempt_no,
            tries,
            event: event.map(EventId),
            args,
        })
    };
    list.into_iter().map(taken).collect()
}
