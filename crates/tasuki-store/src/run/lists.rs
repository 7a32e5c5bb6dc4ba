//! Lists of runs: filtered, in a stable order, and never looking further than they say.
//!
//! No index of runs mentions their state, so that moving them stays cheap. Lists by state come from
//! where those runs stand anyway: what waits from the due table, what is carried from the leases, what
//! ended badly from its own index. Any other filter looks at a bounded stretch and says how far.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use tasuki_core::{Invalid, JobId, Origin, RunId, RunState, Scope};

use crate::db::sql::{Sql, sql};
use crate::db::{Row, params};
use crate::run::due;
use crate::run::timestamp;
use crate::{Error, Run, Store};

static SCHEDULED: Sql = sql!("run/list_scheduled", ".sqlite", ".postgres", ".mysql");
static OF_JOB: Sql = sql!("run/list_of_job", ".sqlite", ".postgres", ".mysql");
static BADLY: Sql = sql!("run/list_badly");
static WAITING_FIRST: Sql = sql!("due/list_first");
static WAITING_NEXT: Sql = sql!("due/list_next", ".sqlite", ".postgres", ".mysql");
static RUN_IDS: Sql = sql!("lease/run_ids");
static BRIEF: Sql = sql!("run/brief", ".sqlite", ".postgres", ".mysql");
static BY_IDS: Sql = sql!("run/by_ids", ".sqlite", ".postgres", ".mysql");

/// How many runs one call looks at.
const SCAN: u32 = 1_000;
/// How many leases: more than a cluster has, so that only a broken one meets this bound.
const LEASES: u32 = 50_000;
/// The longest page.
const PAGE: u32 = 200;

/// Which runs. Nothing said is everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Of this job.
    pub job: Option<JobId>,
    /// In one of these states.
    pub states: Vec<RunState>,
    /// For this.
    pub scope: Option<Scope>,
    /// Made by this.
    pub origin: Option<Origin>,
    /// Planned at this instant or later.
    pub since: Option<Timestamp>,
    /// Planned before this instant.
    pub until: Option<Timestamp>,
}

/// Some runs, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPage {
    /// Those that the filter lets through.
    pub runs: Vec<Run>,
    /// Where to look on; `None`: there is nothing more. A page may be empty and yet go on.
    pub next: Option<RunCursor>,
    /// How many runs were looked at.
    pub looked_at: usize,
    /// The planned instant of the last one looked at.
    pub looked_to: Option<Timestamp>,
}

/// Where a list goes on. As text it fits into an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCursor {
    source: Source,
    last: Listed,
}

/// Where a run stands in its list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    place: String,
    at: i64,
    id: i64,
}

/// Where the runs of a list come from, and thereby their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Scheduled,
    Job,
    Waiting,
    Carried,
    Badly,
}

impl Source {
    const ALL: [(Self, &str); 5] = [
        (Self::Scheduled, "s"),
        (Self::Job, "j"),
        (Self::Waiting, "w"),
        (Self::Carried, "c"),
        (Self::Badly, "b"),
    ];

    fn of(filter: &RunFilter) -> Self {
        let all = |is: fn(RunState) -> bool| {
            !filter.states.is_empty() && filter.states.iter().all(|&state| is(state))
        };
        let bad =
            |state| matches!(state, RunState::Failed | RunState::TimedOut | RunState::Expired);
        match filter.job {
            _ if all(RunState::is_waiting) => Self::Waiting,
            _ if all(RunState::is_carried) => Self::Carried,
            _ if all(bad) => Self::Badly,
            Some(_) => Self::Job,
            None => Self::Scheduled,
        }
    }
}

impl fmt::Display for RunCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tag = Source::ALL.iter().find(|(source, _)| *source == self.source);
        let tag = tag.map_or("", |(_, tag)| tag);
        let Listed { place, at, id } = &self.last;
        write!(f, "{tag}.{at}.{id}.{place}")
    }
}

impl FromStr for RunCursor {
    type Err = Invalid;

    fn from_str(typed: &str) -> Result<Self, Invalid> {
        let refused = || Invalid::typed("cursor", typed, "one that a list of runs gave");
        let mut parts = typed.splitn(4, '.');
        let mut part = || parts.next().ok_or_else(refused);
        let (tag, at, id, place) = (part()?, part()?, part()?, part()?);
        let source = Source::ALL.iter().find(|(_, known)| *known == tag).ok_or_else(refused)?.0;
        let number = |typed: &str| typed.parse::<i64>().map_err(|_| refused());
        let last = Listed { place: place.to_owned(), at: number(at)?, id: number(id)? };
        Ok(Self { source, last })
    }
}

impl Store {
    /// Lists runs, newest first: at most `most` of them, from where the last page ended.
    pub async fn runs(
        &self,
        filter: &RunFilter,
        from: Option<&RunCursor>,
        most: u32,
    ) -> Result<RunPage, Error> {
        let source = Source::of(filter);
        if let Some(other) = from.filter(|cursor| cursor.source != source) {
            let expected = "one of the same list";
            return Err(Invalid::typed("cursor", &other.to_string(), expected).into());
        }
        let most = most.clamp(1, PAGE);
        let scan = if *filter == RunFilter::default() { most } else { SCAN };
        let last = from.map(|cursor| &cursor.last);
        let (seen, rest) = self.look(source, filter, last, scan).await?;
        let mut page = RunPage { runs: Vec::new(), next: None, looked_at: 0, looked_to: None };
        let mut ids = Vec::new();
        for one in &seen {
            page.looked_at += 1;
            page.looked_to = Some(one.planned);
            if filter.lets_through(one) {
                ids.push(one.at.id);
            }
            if ids.len() == most as usize {
                page.next = Some(RunCursor { source, last: one.at.clone() });
                break;
            }
        }
        if page.looked_at == seen.len() {
            page.next = rest.map(|last| RunCursor { source, last });
        }
        page.runs = self.these(&ids).await?;
        Ok(page)
    }

    /// The next runs of a source, only what a filter looks at; and if there may be more, where the last of them stands,
    /// which need not be among them: it may have been deleted meanwhile.
    async fn look(
        &self,
        source: Source,
        filter: &RunFilter,
        from: Option<&Listed>,
        scan: u32,
    ) -> Result<(Vec<Seen>, Option<Listed>), Error> {
        let place = params! {
            at: from.map_or(i64::MAX, |last| last.at),
            id: from.map_or(i64::MAX, |last| last.id),
            since: filter.since.map_or(i64::MIN, Timestamp::as_microsecond),
            until: filter.until.map_or(i64::MAX, Timestamp::as_microsecond),
            job_id: filter.job.map_or(0, |job| job.0),
            place: from.map_or("", |last| last.place.as_str()),
            most: scan,
        };
        let statement = match (source, from) {
            (Source::Scheduled, _) => &SCHEDULED,
            (Source::Job, _) => &OF_JOB,
            (Source::Badly, _) => &BADLY,
            (Source::Waiting, None) => &WAITING_FIRST,
            (Source::Waiting, Some(_)) => &WAITING_NEXT,
            (Source::Carried, _) => return self.brief(self.carried(from, scan).await?, scan).await,
        };
        let rows = self.db.rows(statement, place).await?;
        self.brief(last_first(&rows, from, scan)?, scan).await
    }

    async fn carried(&self, from: Option<&Listed>, scan: u32) -> Result<Vec<Listed>, Error> {
        let before = from.map_or(i64::MAX, |last| last.id);
        let mut ids = Vec::new();
        for row in self.db.rows(&RUN_IDS, params! { most: LEASES }).await? {
            let listed: Vec<i64> = serde_json::from_str(&row.text("run_ids")?)
                .map_err(|_| Error::broken("the run ids of a lease are no list"))?;
            ids.extend(listed.into_iter().filter(|&id| id < before));
        }
        ids.sort_unstable_by(|one, other| other.cmp(one));
        ids.dedup();
        ids.truncate(scan as usize);
        Ok(ids.into_iter().map(|id| Listed { place: String::new(), at: 0, id }).collect())
    }

    /// Of these what a filter looks at, but for those that are no longer there.
    async fn brief(
        &self,
        listed: Vec<Listed>,
        scan: u32,
    ) -> Result<(Vec<Seen>, Option<Listed>), Error> {
        let rest = listed.last().filter(|_| listed.len() == scan as usize).cloned();
        let ids: Vec<i64> = listed.iter().map(|run| run.id).collect();
        let rows = self.db.rows(&BRIEF, params! { ids: ids }).await?;
        let by_id = rows.iter().map(|row| Ok((row.int("id")?, row)));
        let there = by_id.collect::<Result<HashMap<_, _>, Error>>()?;
        let seen = listed.into_iter().filter_map(|at| Some((*there.get(&at.id)?, at)));
        let seen = seen.map(|(row, at)| Seen::from_row(row, at));
        Ok((seen.collect::<Result<_, _>>()?, rest))
    }

    /// These runs, in this order. One that has just been deleted is left out.
    async fn these(&self, ids: &[i64]) -> Result<Vec<Run>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.db.rows(&BY_IDS, params! { ids: ids.to_vec() }).await?;
        let mut runs = rows.iter().map(Run::from_row).collect::<Result<Vec<_>, _>>()?;
        runs.sort_by_key(|run| ids.iter().position(|&id| RunId(id) == run.id));
        Ok(runs)
    }
}

/// Those that the rows of a list stand for, each for one run or several: the last first, at most so many, and of the row
/// where the last page ended only what it has not told.
fn last_first(rows: &[Row], from: Option<&Listed>, most: u32) -> Result<Vec<Listed>, Error> {
    let mut listed = Vec::with_capacity(rows.len());
    for row in rows {
        if listed.len() >= most as usize {
            break;
        }
        let (place, at) = (row.text("lane")?, row.int("due_at")?);
        let told = from.filter(|last| (&last.place, last.at) == (&place, at));
        let before = told.map_or(i64::MAX, |last| last.id);
        let ids = due::stretch(row)?.rev().filter(|&id| id < before);
        listed.extend(ids.map(|id| Listed { place: place.clone(), at, id }));
    }
    listed.truncate(most as usize);
    Ok(listed)
}

/// Of a run what a filter looks at.
struct Seen {
    at: Listed,
    job: JobId,
    state: RunState,
    origin: Origin,
    scope: (String, String),
    planned: Timestamp,
}

impl Seen {
    fn from_row(row: &Row, at: Listed) -> Result<Self, Error> {
        Ok(Self {
            at,
            job: JobId(row.int("job_id")?),
            state: row.text("state")?.parse()?,
            origin: row.text("origin")?.parse()?,
            scope: (row.text("scope_kind")?, row.text("scope_id")?),
            planned: timestamp(row.int("scheduled_for")?)?,
        })
    }
}

impl RunFilter {
    fn lets_through(&self, seen: &Seen) -> bool {
        let (kind, id) = &seen.scope;
        self.job.is_none_or(|job| job == seen.job)
            && (self.states.is_empty() || self.states.contains(&seen.state))
            && self.origin.is_none_or(|origin| origin == seen.origin)
            && self.scope.as_ref().is_none_or(|scope| scope.kind() == kind && scope.id() == id)
            && self.since.is_none_or(|since| seen.planned >= since)
            && self.until.is_none_or(|until| seen.planned < until)
    }
}
