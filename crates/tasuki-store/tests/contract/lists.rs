//! Lists of runs: each run once, newest first, in pages.

use jiff::SignedDuration;
use tasuki_core::{AttemptErrorCode, AttemptOutcome, JobName, Origin, RunId, RunScope, RunState};
use tasuki_store::{NewRun, RunFilter, RunListPosition, Writer};

use crate::fixtures::{RunOptions, TestStore, contract, expected_version, noon};

/// Reads all pages of a list. Returns the ids and the number of pages.
async fn read_all_pages(store: &TestStore, filter: &RunFilter, limit: u32) -> (Vec<RunId>, usize) {
    let (mut ids, mut pages, mut from) = (Vec::new(), 0, None);
    loop {
        let page = store.list_runs(filter, from.as_ref(), limit).await.unwrap();
        assert!(page.runs.len() <= limit as usize);
        ids.extend(page.runs.iter().map(|run| run.id));
        pages += 1;
        // The cursor is converted to text and back, as in a URL.
        from = page.next.map(|cursor| cursor.to_string().parse::<RunListPosition>().unwrap());
        if from.is_none() {
            return (ids, pages);
        }
    }
}

fn only(states: &[RunState]) -> RunFilter {
    RunFilter { states: states.to_vec(), ..RunFilter::default() }
}

contract! {
    async fn a_list_by_state_has_exactly_the_runs_in_it(store: TestStore) {
        let mut runs = Vec::new();
        for _ in 0..2 {
            for &state in RunState::ALL {
                store.set_time(0);
                runs.push((state, store.given_run(state).await.id));
            }
        }
        let ids_in = |manual: &[RunState]| {
            let mut ids: Vec<RunId> =
                runs.iter().filter(|(state, _)| manual.contains(state)).map(|&(_, id)| id).collect();
            ids.sort_unstable();
            ids
        };
        let mut sets: Vec<Vec<RunState>> = RunState::ALL.iter().map(|&state| vec![state]).collect();
        sets.push(vec![RunState::Pending, RunState::Orphaned, RunState::RetryWait]);
        sets.push(vec![RunState::Assigned, RunState::Running]);
        sets.push(vec![RunState::Failed, RunState::TimedOut, RunState::Expired]);
        sets.push(vec![RunState::Pending, RunState::Running, RunState::Succeeded]);
        sets.push(RunState::ALL.to_vec());
        for set in sets {
            for limit in [1, 3, 200] {
                let (mut ids, _) = read_all_pages(store, &only(&set), limit).await;
                ids.sort_unstable();
                assert_eq!(ids, ids_in(&set), "{set:?} by {limit}");
            }
        }
    }

    async fn runs_are_listed_newest_first_with_a_stable_order_of_ties(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let mut expected = Vec::new();
        for seconds in [30, 10, 10, 10, 20, 20] {
            let at = noon() + SignedDuration::from_secs(seconds);
            let new = NewRun { scheduled_for: Some(at), ..NewRun::task(&job) };
            expected.push((seconds, store.create_or_find_runs(Writer::Api, &[new]).await.unwrap()[0].run));
        }
        expected.sort_unstable();
        expected.reverse();
        let expected: Vec<RunId> = expected.into_iter().map(|(_, id)| id).collect();
        let (ids, pages) = read_all_pages(store, &RunFilter::default(), 2).await;
        assert_eq!((ids, pages), (expected.clone(), 4), "three full pages and an empty one that shows the end");
        assert_eq!(read_all_pages(store, &only(&[RunState::Pending]), 2).await.0, expected);
        // A new run between two page requests does not shift the next page.
        let first = store.list_runs(&RunFilter::default(), None, 2).await.unwrap();
        let at = noon() + SignedDuration::from_secs(25);
        let new = NewRun { scheduled_for: Some(at), ..NewRun::task(&job) };
        store.create_or_find_runs(Writer::Api, &[new.clone(), NewRun { scheduled_for: Some(noon() + SignedDuration::from_secs(99)), ..new }]).await.unwrap();
        let second = store.list_runs(&RunFilter::default(), first.next.as_ref(), 2).await.unwrap();
        assert_eq!(second.runs.iter().map(|run| run.id).collect::<Vec<_>>(), expected[2..4]);
    }

    async fn all_filters_are_applied(store: TestStore) {
        let (job, other) = (store.given_job(&RunOptions::default()).await, store.given_job(&RunOptions::default()).await);
        let scope = RunScope::new("shop", "7").unwrap();
        let later = noon() + SignedDuration::from_secs(60);
        let base = NewRun::task(&job);
        let new = [base.clone(), NewRun::task(&other), NewRun { scope: scope.clone(), ..base.clone() }];
        let mut created = store.create_or_find_runs(Writer::Api, &new).await.unwrap();
        created.push(store.trigger("ann", expected_version(&job), &base).await.unwrap().unwrap());
        let last = NewRun { scheduled_for: Some(later), ..base };
        created.extend(store.create_or_find_runs(Writer::Api, &[last]).await.unwrap());
        let ids: Vec<RunId> = created.iter().map(|one| one.run).collect();
        let nothing = RunFilter::default;
        for (filter, expected) in [
            (RunFilter { job: Some(other.job), ..nothing() }, vec![ids[1]]),
            (RunFilter { job: Some(job.job), ..nothing() }, vec![ids[4], ids[3], ids[2], ids[0]]),
            (RunFilter { scope: Some(scope), ..nothing() }, vec![ids[2]]),
            (RunFilter { origin: Some(Origin::Manual), ..nothing() }, vec![ids[3]]),
            (RunFilter { since: Some(later), ..nothing() }, vec![ids[4]]),
            (RunFilter { until: Some(later), job: Some(job.job), ..nothing() }, vec![ids[3], ids[2], ids[0]]),
            (RunFilter { until: Some(noon()), ..nothing() }, vec![]),
            (RunFilter { job: Some(other.job), ..only(&[RunState::Pending]) }, vec![ids[1]]),
            (RunFilter { job: Some(other.job), ..only(&[RunState::Running]) }, vec![]),
        ] {
            assert_eq!(read_all_pages(store, &filter, 2).await.0, expected, "{filter:?}");
        }
    }

    async fn a_page_examines_a_bounded_number_of_runs(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let manual = store.trigger("ann", expected_version(&job), &NewRun::task(&job)).await.unwrap().unwrap().run;
        let many: Vec<NewRun<'_>> = (0..1_100).map(|_| NewRun::task(&job)).collect();
        store.create_or_find_runs(Writer::Api, &many).await.unwrap();
        let filter = RunFilter { origin: Some(Origin::Manual), ..RunFilter::default() };
        let page = store.list_runs(&filter, None, 10).await.unwrap();
        assert_eq!((page.runs.len(), page.scanned, page.scanned_until), (0, 1_000, Some(noon())));
        let page = store.list_runs(&filter, page.next.as_ref(), 10).await.unwrap();
        assert_eq!((page.runs[0].id, page.scanned, &page.next), (manual, 101, &None));
        assert_eq!(read_all_pages(store, &only(&[RunState::Pending]), 200).await.0.len(), 1_101);
        let plain = store.list_runs(&RunFilter::default(), None, 10_000).await.unwrap();
        assert_eq!((plain.runs.len(), plain.scanned), (200, 200), "a page has a maximum length");
    }

    async fn a_cursor_of_another_list_is_refused(store: TestStore) {
        store.given_run(RunState::Pending).await;
        store.given_run(RunState::Pending).await;
        let next = store.list_runs(&RunFilter::default(), None, 1).await.unwrap().next.unwrap();
        let refused = store.list_runs(&only(&[RunState::Pending]), Some(&next), 1).await.unwrap_err();
        assert!(refused.to_string().ends_with("expected a cursor of the same list"), "{refused}");
        for wrong in ["", "s", "s.1.2", "x.1.2.", "s.one.2.", "s.1.2e3."] {
            assert!(wrong.parse::<RunListPosition>().is_err(), "{wrong}");
        }
    }

    async fn live_and_ended_attempts_are_listed_once(store: TestStore) {
        let run = store.given_run(RunState::Pending).await.id;
        assert!(store.list_executions(run).await.unwrap().is_empty());
        store.given_failure(run, AttemptErrorCode::UNEXPECTED_ERROR).await;
        store.given_running_after_an_hour(run).await;
        let live = store.list_executions(run).await.unwrap();
        assert_eq!(live.iter().map(|one| (one.attempt_no, one.outcome)).collect::<Vec<_>>(), [(1, Some(AttemptOutcome::Failed)), (2, None)]);
        assert_eq!((live[0].error_code.clone(), live[1].worker), (Some(AttemptErrorCode::UNEXPECTED_ERROR), store.worker));
        let token = store.read_run(run).await.token.unwrap();
        assert!(store.finish_run(token, run, &tasuki_store::AttemptResult { exit_code: Some(0), ..Default::default() }).await.unwrap().is_applied());
        let ended = store.list_executions(run).await.unwrap();
        assert_eq!((ended.len(), ended[1].outcome, ended[1].exit_code), (2, Some(AttemptOutcome::Succeeded), Some(0)));
    }

    async fn jobs_are_listed_by_name(store: TestStore) {
        for _ in 0..3 {
            store.given_job(&RunOptions::default()).await;
        }
        let first = store.list_jobs(None, 2).await.unwrap();
        let name: JobName = first[1].name.parse().unwrap();
        let rest = store.list_jobs(Some(&name), 10).await.unwrap();
        assert_eq!((first.len(), rest.len()), (2, 1));
        assert!(first[0].name < first[1].name && first[1].name < rest[0].name);
        assert!(first[0].enabled && first[0].paused_at.is_none());
        store.execute_script(&format!("update tasuki_job set deleted_at = 1 where id = {}", rest[0].id)).await.unwrap();
        assert_eq!(store.list_jobs(None, 10).await.unwrap().len(), 2);
    }
}
