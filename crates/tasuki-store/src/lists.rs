//! Lists of runs: filtered, in a stable order, and never looking further than they say.
//!
//! No index of runs mentions their state, so that moving them stays cheap. Lists by state come from
//! where those runs stand anyway: what waits from the due table, what is carried from the leases, what
//! ended badly from its own index. Any other filter looks at a bounded stretch and says how far.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use tasuki_core::{Invalid, JobId, Origin, RunId, RunState, Scope};

use crate::db::{Row, params};
use crate::run::timestamp;
use crate::sql::{Sql, sql};
use crate::{Error, Run, Store};

static SCHEDULED: Sql = sql!("run/list_scheduled");
static OF_JOB: Sql = sql!("run/list_of_job");
static BADLY: Sql = sql!("run/list_badly");
static WAITING_FIRST: Sql = sql!("due/list_first");
static WAITING_NEXT: Sql = sql!("due/list_next");
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
    at: i64,
    id: i64,
    place: String,
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
        write!(f, "{tag}.{}.{}.{}", self.at, self.id, self.place)
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
        Ok(Self { source, at: number(at)?, id: number(id)?, place: place.to_owned() })
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
        let rows = self.look(source, filter, from, scan).await?;
        let mut page = RunPage { runs: Vec::new(), next: None, looked_at: 0, looked_to: None };
        let mut ids = Vec::new();
        for row in &rows {
            page.looked_at += 1;
            page.looked_to = Some(timestamp(row.int("scheduled_for")?)?);
            if filter.lets_through(row)? {
                ids.push(row.int("id")?);
            }
            if ids.len() == most as usize || page.looked_at == scan as usize {
                let (at, id) = (row.int("sort_at")?, row.int("id")?);
                page.next = Some(RunCursor { source, at, id, place: row.text("place")? });
                break;
            }
        }
        if page.looked_at == rows.len() && rows.len() < scan as usize {
            page.next = None;
        }
        page.runs = self.these(&ids).await?;
        Ok(page)
    }

    /// The next runs of a source: only what a filter looks at.
    async fn look(
        &self,
        source: Source,
        filter: &RunFilter,
        from: Option<&RunCursor>,
        scan: u32,
    ) -> Result<Vec<Row>, Error> {
        let place = params! {
            at: from.map_or(i64::MAX, |cursor| cursor.at),
            id: from.map_or(i64::MAX, |cursor| cursor.id),
            place: from.map_or("", |cursor| cursor.place.as_str()),
            since: filter.since.map_or(i64::MIN, Timestamp::as_microsecond),
            until: filter.until.map_or(i64::MAX, Timestamp::as_microsecond),
            job_id: filter.job.map_or(0, |job| job.0),
            most: scan,
        };
        let statement = match (source, from) {
            (Source::Scheduled, _) => &SCHEDULED,
            (Source::Job, _) => &OF_JOB,
            (Source::Badly, _) => &BADLY,
            (Source::Waiting, None) => &WAITING_FIRST,
            (Source::Waiting, Some(_)) => &WAITING_NEXT,
            (Source::Carried, _) => return self.look_at_leases(from, scan).await,
        };
        self.db.rows(statement, place).await
    }

    async fn look_at_leases(&self, from: Option<&RunCursor>, scan: u32) -> Result<Vec<Row>, Error> {
        let before = from.map_or(i64::MAX, |cursor| cursor.id);
        let mut ids = Vec::new();
        for row in self.db.rows(&RUN_IDS, params! { most: LEASES }).await? {
            let listed: Vec<i64> = serde_json::from_str(&row.text("run_ids")?)
                .map_err(|_| Error::broken("the run ids of a lease are no list"))?;
            ids.extend(listed.into_iter().filter(|&id| id < before));
        }
        ids.sort_unstable_by(|one, other| other.cmp(one));
        ids.dedup();
        // A lease may name runs that retention has taken, so more are asked for than are looked at.
        ids.truncate(10 * scan as usize);
        self.db.rows(&BRIEF, params! { ids: ids, most: scan }).await
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

impl RunFilter {
    fn lets_through(&self, row: &Row) -> Result<bool, Error> {
        let planned = timestamp(row.int("scheduled_for")?)?;
        let state: RunState = row.text("state")?.parse()?;
        let origin: Origin = row.text("origin")?.parse()?;
        let job = JobId(row.int("job_id")?);
        let (kind, id) = (row.text("scope_kind")?, row.text("scope_id")?);
        Ok(self.job.is_none_or(|wanted| wanted == job)
            && (self.states.is_empty() || self.states.contains(&state))
            && self.origin.is_none_or(|wanted| wanted == origin)
            && self.scope.as_ref().is_none_or(|scope| scope.kind() == kind && scope.id() == id)
            && self.since.is_none_or(|since| planned >= since)
            && self.until.is_none_or(|until| planned < until))
    }
}
