//! Lists of runs: filtered, in a stable order, with a bounded cost for each page.
//!
//! No index of the runs contains their state, so that changing the state stays cheap. A list by state is read from
//! where such runs are recorded anyway: waiting runs from the due table, leased runs from the leases, failed runs
//! from their own index. For every other filter a page scans a bounded number of runs and returns how far it came.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use tasuki_core::{InvalidInput, JobId, Origin, RunId, RunScope, RunState};

use crate::db::instant::timestamp_from_micros;
use crate::db::sql::{Sql, sql};
use crate::db::{Row, params};
use crate::run::due_table;
use crate::{Error, Run, Store};

static LIST_SCHEDULED: Sql = sql!("run/list_scheduled", ".sqlite", ".postgres", ".mysql");
static LIST_OF_JOB: Sql = sql!("run/list_of_job", ".sqlite", ".postgres", ".mysql");
static LIST_FAILED: Sql = sql!("run/list_failed");
static LIST_WAITING_FIRST: Sql = sql!("due/list_first_page");
static LIST_WAITING_NEXT: Sql = sql!("due/list_next_page", ".sqlite", ".postgres", ".mysql");
static LIST_LEASED_IDS: Sql = sql!("lease/list_run_ids");
static LIST_SUMMARIES: Sql = sql!("run/list_filter_fields", ".sqlite", ".postgres", ".mysql");
static LIST_BY_IDS: Sql = sql!("run/list_by_ids", ".sqlite", ".postgres", ".mysql");

/// Maximum number of runs that one page scans.
const MAX_SCANNED: u32 = 1_000;
/// Maximum number of leases that one page reads. It is more than a cluster has, so only a faulty cluster reaches it.
const MAX_LEASES: u32 = 50_000;
/// Maximum number of runs in one page.
const MAX_PAGE: u32 = 200;

/// Which runs to list. The default filter selects all runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Only runs of this job.
    pub job: Option<JobId>,
    /// Only runs in one of these states; empty means all states.
    pub states: Vec<RunState>,
    /// Only runs for this scope.
    pub scope: Option<RunScope>,
    /// Only runs with this origin.
    pub origin: Option<Origin>,
    /// Only runs planned at this instant or later.
    pub since: Option<Timestamp>,
    /// Only runs planned before this instant.
    pub until: Option<Timestamp>,
}

/// One page of a list of runs, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPage {
    /// Runs that match the filter.
    pub runs: Vec<Run>,
    /// Position of the next page; `None` on the last page. A page may be empty although there are more.
    pub next: Option<RunListPosition>,
    /// Number of runs that were scanned for this page.
    pub scanned: usize,
    /// Planned instant of the last scanned run.
    pub scanned_until: Option<Timestamp>,
}

/// Position in a list of runs, where the next page continues. Its text form fits into a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunListPosition {
    source: Source,
    last: ListPosition,
}

/// Sort key of a run in its list. `sort_at` is the planned or due instant, 0 where the list is sorted by id only.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ListPosition {
    lane: String,
    sort_at: i64,
    id: i64,
}

/// Table or index that a list is read from. It determines the order of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Scheduled,
    Job,
    Waiting,
    Leased,
    Failed,
}

impl Source {
    /// All sources, with their letter in the text form of a position.
    const ALL: [(Self, &str); 5] = [
        (Self::Scheduled, "s"),
        (Self::Job, "j"),
        (Self::Waiting, "w"),
        (Self::Leased, "c"),
        (Self::Failed, "b"),
    ];

    /// The source that contains all runs that match a filter, and the fewest others.
    fn for_filter(filter: &RunFilter) -> Self {
        let all = |is: fn(RunState) -> bool| {
            !filter.states.is_empty() && filter.states.iter().all(|&state| is(state))
        };
        let is_failure =
            |state| matches!(state, RunState::Failed | RunState::TimedOut | RunState::Expired);
        match filter.job {
            _ if all(RunState::is_waiting) => Self::Waiting,
            _ if all(RunState::is_leased) => Self::Leased,
            _ if all(is_failure) => Self::Failed,
            Some(_) => Self::Job,
            None => Self::Scheduled,
        }
    }
}

impl fmt::Display for RunListPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tag = Source::ALL.iter().find(|(source, _)| *source == self.source);
        let tag = tag.map_or("", |(_, tag)| tag);
        let ListPosition { lane, sort_at, id } = &self.last;
        write!(f, "{tag}.{sort_at}.{id}.{lane}")
    }
}

impl FromStr for RunListPosition {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let invalid =
            || InvalidInput::with_value("cursor", text, "a cursor that a list of runs returned");
        let mut parts = text.splitn(4, '.');
        let mut part = || parts.next().ok_or_else(invalid);
        let (tag, sort_at, id, lane) = (part()?, part()?, part()?, part()?);
        let source = Source::ALL.iter().find(|(_, known)| *known == tag).ok_or_else(invalid)?.0;
        let number = |text: &str| text.parse::<i64>().map_err(|_| invalid());
        let last =
            ListPosition { lane: lane.to_owned(), sort_at: number(sort_at)?, id: number(id)? };
        Ok(Self { source, last })
    }
}

impl Store {
    /// Lists runs, newest first: at most `max_runs` (maximum 200), after the position `from`.
    pub async fn list_runs(
        &self,
        filter: &RunFilter,
        from: Option<&RunListPosition>,
        max_runs: u32,
    ) -> Result<RunPage, Error> {
        let source = Source::for_filter(filter);
        if let Some(other) = from.filter(|position| position.source != source) {
            let expected = "a cursor of the same list";
            return Err(InvalidInput::with_value("cursor", &other.to_string(), expected).into());
        }
        let max_runs = max_runs.clamp(1, MAX_PAGE);
        let max_scanned = if *filter == RunFilter::default() { max_runs } else { MAX_SCANNED };
        let last = from.map(|position| &position.last);
        let (summaries, rest) = self.list_summaries(source, filter, last, max_scanned).await?;
        let mut page = RunPage { runs: Vec::new(), next: None, scanned: 0, scanned_until: None };
        let mut ids = Vec::new();
        for summary in &summaries {
            page.scanned += 1;
            page.scanned_until = Some(summary.scheduled_for);
            if filter.matches(summary) {
                ids.push(summary.position.id);
            }
            if ids.len() == max_runs as usize {
                page.next = Some(RunListPosition { source, last: summary.position.clone() });
                break;
            }
        }
        if page.scanned == summaries.len() {
            page.next = rest.map(|last| RunListPosition { source, last });
        }
        page.runs = self.find_runs(&ids).await?;
        Ok(page)
    }

    /// Reads the next runs of a source, only the columns that a filter checks. If there may be more runs, also
    /// returns the position of the last one. That run need not be among the returned ones: it may have been deleted
    /// since.
    async fn list_summaries(
        &self,
        source: Source,
        filter: &RunFilter,
        from: Option<&ListPosition>,
        max_scanned: u32,
    ) -> Result<(Vec<RunSummary>, Option<ListPosition>), Error> {
        let values = params! {
            at: from.map_or(i64::MAX, |last| last.sort_at),
            id: from.map_or(i64::MAX, |last| last.id),
            since: filter.since.map_or(i64::MIN, Timestamp::as_microsecond),
            until: filter.until.map_or(i64::MAX, Timestamp::as_microsecond),
            job_id: filter.job.map_or(0, |job| job.0),
            lane: from.map_or("", |last| last.lane.as_str()),
            limit: max_scanned,
        };
        let statement = match (source, from) {
            (Source::Scheduled, _) => &LIST_SCHEDULED,
            (Source::Job, _) => &LIST_OF_JOB,
            (Source::Failed, _) => &LIST_FAILED,
            (Source::Waiting, None) => &LIST_WAITING_FIRST,
            (Source::Waiting, Some(_)) => &LIST_WAITING_NEXT,
            (Source::Leased, _) => {
                return self
                    .find_summaries(self.list_leased_ids(from, max_scanned).await?, max_scanned)
                    .await;
            }
        };
        let rows = self.db.query(statement, values).await?;
        self.find_summaries(expand_ranges_descending(&rows, from, max_scanned)?, max_scanned).await
    }

    /// Lists the ids of leased runs in descending order, from the leases.
    async fn list_leased_ids(
        &self,
        from: Option<&ListPosition>,
        max_scanned: u32,
    ) -> Result<Vec<ListPosition>, Error> {
        let before = from.map_or(i64::MAX, |last| last.id);
        let mut ids = Vec::new();
        for row in self.db.query(&LIST_LEASED_IDS, params! { limit: MAX_LEASES }).await? {
            let listed: Vec<i64> = serde_json::from_str(&row.text("run_ids")?)
                .map_err(|_| Error::broken("the run ids of a lease are not a JSON list"))?;
            ids.extend(listed.into_iter().filter(|&id| id < before));
        }
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.dedup();
        ids.truncate(max_scanned as usize);
        Ok(ids.into_iter().map(|id| ListPosition { lane: String::new(), sort_at: 0, id }).collect())
    }

    /// Reads the columns that a filter checks. Runs that have been deleted since are left out.
    async fn find_summaries(
        &self,
        listed: Vec<ListPosition>,
        max_scanned: u32,
    ) -> Result<(Vec<RunSummary>, Option<ListPosition>), Error> {
        let rest = listed.last().filter(|_| listed.len() == max_scanned as usize).cloned();
        let ids: Vec<i64> = listed.iter().map(|run| run.id).collect();
        let rows = self.db.query(&LIST_SUMMARIES, params! { ids: ids }).await?;
        let keyed = rows.iter().map(|row| Ok((row.int("id")?, row)));
        let rows_by_id = keyed.collect::<Result<HashMap<_, _>, Error>>()?;
        let found = listed
            .into_iter()
            .filter_map(|position| Some((*rows_by_id.get(&position.id)?, position)));
        let summaries = found.map(|(row, position)| RunSummary::from_row(row, position));
        Ok((summaries.collect::<Result<_, _>>()?, rest))
    }

    /// Reads runs by id, in the order of the ids. Runs that have been deleted since are left out.
    async fn find_runs(&self, ids: &[i64]) -> Result<Vec<Run>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.db.query(&LIST_BY_IDS, params! { ids: ids.to_vec() }).await?;
        let mut runs = rows.iter().map(Run::from_row).collect::<Result<Vec<_>, _>>()?;
        runs.sort_by_key(|run| ids.iter().position(|&id| RunId(id) == run.id));
        Ok(runs)
    }
}

/// Expands the rows of a list into the runs that they stand for (a due row may stand for an id range), highest id
/// first, at most `max_runs`. From the row in which the last page ended, only the runs after that position.
fn expand_ranges_descending(
    rows: &[Row],
    from: Option<&ListPosition>,
    max_runs: u32,
) -> Result<Vec<ListPosition>, Error> {
    let mut listed = Vec::with_capacity(rows.len());
    for row in rows {
        if listed.len() >= max_runs as usize {
            break;
        }
        let (lane, due_at) = (row.text("lane")?, row.int("due_at")?);
        let last_page_end = from.filter(|last| (&last.lane, last.sort_at) == (&lane, due_at));
        let before = last_page_end.map_or(i64::MAX, |last| last.id);
        let ids = due_table::run_ids_of_due_row(row)?.rev().filter(|&id| id < before);
        listed.extend(ids.map(|id| ListPosition { lane: lane.clone(), sort_at: due_at, id }));
    }
    listed.truncate(max_runs as usize);
    Ok(listed)
}

/// The columns of a run that a filter checks.
struct RunSummary {
    position: ListPosition,
    job: JobId,
    state: RunState,
    origin: Origin,
    scope: (String, String),
    scheduled_for: Timestamp,
}

impl RunSummary {
    fn from_row(row: &Row, position: ListPosition) -> Result<Self, Error> {
        Ok(Self {
            position,
            job: JobId(row.int("job_id")?),
            state: row.text("state")?.parse()?,
            origin: row.text("origin")?.parse()?,
            scope: (row.text("scope_kind")?, row.text("scope_id")?),
            scheduled_for: timestamp_from_micros(row.int("scheduled_for")?)?,
        })
    }
}

impl RunFilter {
    fn matches(&self, summary: &RunSummary) -> bool {
        let (kind, id) = &summary.scope;
        self.job.is_none_or(|job| job == summary.job)
            && (self.states.is_empty() || self.states.contains(&summary.state))
            && self.origin.is_none_or(|origin| origin == summary.origin)
            && self.scope.as_ref().is_none_or(|scope| scope.kind() == kind && scope.id() == id)
            && self.since.is_none_or(|since| summary.scheduled_for >= since)
            && self.until.is_none_or(|until| summary.scheduled_for < until)
    }
}
