//! Lists of runs: filtered, in a stable order, and never looking further than they say.
//!
//! No index of runs mentions their state, so that moving them stays cheap. Lists by state come from
//! where those runs stand anyway: what waits from the due table, what is carried from the leases, what
//! ended badly from its own index. Any other filter looks at a bounded stretch and says how far.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use tasuki_core::{Invalid, JobId, Origin, RunId, RunState, Scope};

use crate::db::{Row, params};
use crate::run::timestamp;
use crate::sql::{Sql, sql};
use crate::{Error, Run, Store, due};

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
        let seen = self.look(source, filter, from, scan).await?;
        let mut page = RunPage { runs: Vec::new(), next: None, looked_at: 0, looked_to: None };
        let mut ids = Vec::new();
        for one in &seen {
            page.looked_at += 1;
            page.looked_to = Some(one.planned);
            if filter.lets_through(one) {
                ids.push(one.id);
            }
            if ids.len() == most as usize || page.looked_at == scan as usize {
                let place = one.place.clone();
                page.next = Some(RunCursor { source, at: one.sort_at, id: one.id, place });
                break;
            }
        }
        if page.looked_at == seen.len() && seen.len() < scan as usize {
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
    ) -> Result<Vec<Seen>, Error> {
        let place = params! {
            at: from.map_or(i64::MAX, |cursor| cursor.at),
            id: from.map_or(i64::MAX, |cursor| cursor.id),
            since: filter.since.map_or(i64::MIN, Timestamp::as_microsecond),
            until: filter.until.map_or(i64::MAX, Timestamp::as_microsecond),
            job_id: filter.job.map_or(0, |job| job.0),
            most: scan,
        };
        let statement = match source {
            Source::Scheduled => &SCHEDULED,
            Source::Job => {
                let rows = self.db.rows(&OF_JOB, place).await?;
                let ids = rows.iter().map(|row| row.int("id")).collect::<Result<Vec<_>, _>>()?;
                return Ok(self.brief(ids).await?.into_values().rev().collect());
            }
            Source::Badly => &BADLY,
            Source::Waiting => return self.look_at_due(from, scan).await,
            Source::Carried => return self.look_at_leases(from, scan).await,
        };
        let rows = self.db.rows(statement, place).await?;
        rows.iter().map(Seen::from_row).collect()
    }

    async fn look_at_due(&self, from: Option<&RunCursor>, scan: u32) -> Result<Vec<Seen>, Error> {
        let rows = match from {
            None => self.db.rows(&WAITING_FIRST, params! { most: scan }).await?,
            Some(RunCursor { at, id, place, .. }) => {
                let place = params! { place: place.as_str(), at: *at, id: *id, most: scan };
                self.db.rows(&WAITING_NEXT, place).await?
            }
        };
        let told = from.map(|cursor| (cursor.place.as_str(), cursor.at, cursor.id));
        let waiting = due::last_first(&rows, told, scan)?;
        let mut runs = self.brief(waiting.iter().map(|(.., id)| *id).collect()).await?;
        let mut seen = Vec::with_capacity(waiting.len());
        for (place, sort_at, id) in waiting {
            if let Some(run) = runs.remove(&id) {
                seen.push(Seen { place, sort_at, ..run });
            }
        }
        Ok(seen)
    }

    async fn look_at_leases(
        &self,
        from: Option<&RunCursor>,
        scan: u32,
    ) -> Result<Vec<Seen>, Error> {
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
        ids.truncate(2 * scan as usize);
        let seen = self.brief(ids).await?;
        Ok(seen.into_values().rev().take(scan as usize).collect())
    }

    /// Of these runs what a filter looks at, by id.
    async fn brief(&self, ids: Vec<i64>) -> Result<BTreeMap<i64, Seen>, Error> {
        let rows = self.db.rows(&BRIEF, params! { ids: ids }).await?;
        rows.iter().map(|row| Seen::from_row(row).map(|seen| (seen.id, seen))).collect()
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

/// Of a run what a filter looks at, and where it stands in its list.
struct Seen {
    place: String,
    sort_at: i64,
    id: i64,
    job: JobId,
    state: RunState,
    origin: Origin,
    scope: (String, String),
    planned: Timestamp,
}

impl Seen {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            place: row.text("place")?,
            sort_at: row.int("sort_at")?,
            id: row.int("id")?,
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
