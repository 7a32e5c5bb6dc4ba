//! Job definitions: a name is unique, a change needs the current version (optimistic locking), and every change is
//! audited.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::plan_scheduled_runs::MisfirePolicy;
use tasuki_core::schedule::{DstRuleOverrides, FoldRule, GapRule, ScheduleKind};
use tasuki_core::{JobName, RunState, Schedule};
use tasuki_store::{
    AuditActor, Job, JobChangeResult, JobCreateResult, JobDefinition, JobKind, JobVersionSpec,
    NewRun, Store, Trigger, Writer,
};

use crate::fixtures::{RunOptions, TestStore, contract, noon, run_both};

fn string_set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn name(text: &str) -> JobName {
    text.parse().unwrap()
}

/// A definition that sets every field.
fn full_definition() -> JobDefinition {
    let dst = DstRuleOverrides { gap: Some(GapRule::Skip), fold: Some(FoldRule::Twice) };
    let schedule = Schedule::parse(ScheduleKind::DailyAt, "02:30", "Europe/Berlin", dst).unwrap();
    JobDefinition {
        trigger: Trigger::Time {
            schedule,
            misfire: Some(MisfirePolicy::EveryWithin(Duration::from_secs(7200))),
        },
        enabled: true,
        spec: JobVersionSpec {
            kind: JobKind::Django,
            spec: r#"{"command":"report","env":{"KEY":"hunter2"}}"#.to_owned(),
            lane: "slow".to_owned(),
            concurrency: ConcurrencyPolicy::Replace,
            max_attempts: 7,
            max_releases: 9,
            backoff: Duration::from_millis(1_500),
            backoff_cap: Duration::from_secs(60),
            jitter_percent: 25,
            retry_lost: false,
            labels: string_set(&["gpu", "東京"]),
        },
    }
}

fn task_definition() -> JobDefinition {
    JobDefinition { trigger: Trigger::Task, enabled: true, spec: RunOptions::default().spec() }
}

async fn given_named_job(store: &Store, text: &str, definition: &JobDefinition) -> Job {
    match store.create_job("ann", &name(text), definition, None).await.unwrap() {
        JobCreateResult::Created(job) => *job,
        JobCreateResult::NameTaken => panic!("{text} is taken"),
    }
}

#[track_caller]
fn expect_applied(change: JobChangeResult) -> Job {
    match change {
        JobChangeResult::Applied { job, .. } => job,
        JobChangeResult::Lost(now) => panic!("lost to {now:?}"),
    }
}

contract! {
    async fn a_job_is_read_back_as_created(store: TestStore) {
        let created = given_named_job(store, "report", &full_definition()).await;
        let job = store.find_job(&name("report")).await.unwrap().unwrap();
        assert_eq!(job, created);
        assert_eq!(store.find_job_by_id(job.id).await.unwrap(), Some(created));
        let Trigger::Time { schedule, misfire } = full_definition().trigger else { unreachable!() };
        assert_eq!(job.parse_stored_schedule().unwrap(), Some(schedule));
        assert_eq!((job.misfire, &job.newest.spec), (misfire, &full_definition().spec));
        assert_eq!((job.version, job.newest.version, job.enabled), (1, 1, true));
        assert_eq!((job.zone.as_deref(), job.dst_gap.as_deref(), job.dst_fold.as_deref()),
            (Some("Europe/Berlin"), Some("skip"), Some("twice")));
        let requested = [(job.id, 1), (job.id, 2), (tasuki_core::JobId(999), 1)].into();
        let kept = store.list_job_versions_by_id(&requested).await.unwrap();
        assert_eq!(kept, [(job.name.clone(), job.newest.clone())]);
        assert_eq!(store.list_job_versions_by_id(&[].into()).await.unwrap(), []);

        let filter = Some(r#"{"total":{"gt":100}}"#.to_owned());
        let trigger = Trigger::Event { types: string_set(&["order.paid", "order.sent"]), filter: filter.clone() };
        let event = given_named_job(store, "mail", &JobDefinition { trigger, enabled: false, ..full_definition() }).await;
        assert_eq!((event.trigger.as_str(), event.enabled), ("event", false));
        assert_eq!((event.event_types, event.event_filter), (string_set(&["order.paid", "order.sent"]), filter));
        for (number, misfire) in [MisfirePolicy::SkipLate(Duration::from_secs(5)), MisfirePolicy::LatestOnly, MisfirePolicy::AtMost(3)].into_iter().enumerate() {
            let Trigger::Time { schedule, .. } = full_definition().trigger else { unreachable!() };
            let trigger = Trigger::Time { schedule, misfire: Some(misfire) };
            let job = given_named_job(store, &format!("late {number}"), &JobDefinition { trigger, ..full_definition() }).await;
            assert_eq!(job.misfire, Some(misfire));
        }
    }

    async fn a_name_is_unique(store: TestStore) {
        let first = given_named_job(store, "report", &task_definition()).await;
        let head = store.find_audit_head().await.unwrap();
        assert_eq!(store.create_job("bob", &name("report"), &full_definition(), None).await.unwrap(), JobCreateResult::NameTaken);
        assert_eq!(store.find_audit_head().await.unwrap(), head, "a refused creation is not audited");
        assert_eq!(store.find_job(&name("report")).await.unwrap(), Some(first));
        let other = name("other");
        let (definition, rival) = (task_definition(), full_definition());
        let both = run_both(
            store.create_job("ann", &other, &definition, None),
            store.create_job("bob", &other, &rival, None),
        );
        let won = both.await.map(|created| matches!(created.unwrap(), JobCreateResult::Created(_)));
        assert_ne!(won[0], won[1]);
    }

    async fn an_invalid_definition_is_refused_with_the_field_name(store: TestStore) {
        let spec = task_definition().spec;
        let wrong = [
            (JobVersionSpec { spec: "{".to_owned(), ..spec.clone() }, "spec: found something else, expected JSON"),
            (JobVersionSpec { spec: "[]".to_owned(), ..spec.clone() }, "spec: found other JSON, expected a JSON object"),
            (JobVersionSpec { max_attempts: 0, ..spec.clone() }, "max_attempts: found 0, expected 1 to 1000000"),
            (JobVersionSpec { max_releases: u32::MAX, ..spec.clone() }, "max_releases: found 4294967295, expected 1 to 1000000"),
            (JobVersionSpec { backoff: Duration::from_secs(901), ..spec.clone() }, "backoff cap: found 900s, expected at least the first delay, 901s"),
            (JobVersionSpec { jitter_percent: 101, ..spec.clone() }, "backoff jitter: found 101 %, expected 0 to 100 %"),
            (JobVersionSpec { labels: string_set(&[" "]), ..spec.clone() }, "label: found nothing, expected 1 to 191 visible characters"),
        ];
        for (spec, expected) in wrong {
            let definition = JobDefinition { spec, ..task_definition() };
            let refused = store.create_job("ann", &name("x"), &definition, None).await.unwrap_err();
            assert!(refused.is_invalid_input());
            assert_eq!(refused.to_string(), expected);
        }
        let trigger = Trigger::Event { types: string_set(&[]), filter: None };
        let refused = store.create_job("ann", &name("x"), &JobDefinition { trigger, ..task_definition() }, None).await;
        assert_eq!(refused.unwrap_err().to_string(), "event types: found nothing, expected at least one type");
        // Without this check some databases would truncate the schedule and others would refuse it.
        let long = format!("0 {} * * *", vec!["12"; 70].join(","));
        let schedule = Schedule::parse(ScheduleKind::Cron, &long, "UTC", DstRuleOverrides::default()).unwrap();
        let trigger = Trigger::Time { schedule, misfire: None };
        assert!(store.create_job("ann", &name("x"), &JobDefinition { trigger, ..task_definition() }, None).await.unwrap_err().is_invalid_input());
        assert_eq!(store.list_jobs(None, 10).await.unwrap(), []);
        assert_eq!(store.find_audit_head().await.unwrap().seq, 0);
    }

    async fn a_change_of_an_outdated_version_is_lost(store: TestStore) {
        let job = given_named_job(store, "report", &task_definition()).await;
        let spec = JobVersionSpec { max_attempts: 5, ..task_definition().spec };
        let edit = JobDefinition { spec, ..task_definition() };
        let now = expect_applied(store.edit_job("ann", job.expected_version(), &edit, None).await.unwrap());
        assert_eq!((now.version, now.newest.version, now.newest.spec.max_attempts), (2, 2, 5));
        assert_eq!(store.find_job(&name("report")).await.unwrap(), Some(now.clone()));
        let head = store.find_audit_head().await.unwrap();
        let lost = store.edit_job("bob", job.expected_version(), &full_definition(), None).await.unwrap();
        assert_eq!(lost, JobChangeResult::Lost(Some(now.clone())), "the result contains the current job");
        assert_eq!(store.disable_job("bob", job.expected_version()).await.unwrap(), lost);
        assert_eq!(store.delete_job("bob", job.expected_version()).await.unwrap(), lost);
        assert_eq!(store.find_audit_head().await.unwrap(), head, "a refused change is not audited");
        let old = store.list_job_versions_by_id(&[(job.id, 1)].into()).await.unwrap();
        assert_eq!(old[0].1.spec, task_definition().spec, "old job versions stay for their runs");

        let (one, other) = (task_definition(), full_definition());
        let both = run_both(
            store.edit_job("ann", now.expected_version(), &one, None),
            store.edit_job("bob", now.expected_version(), &other, None),
        );
        let won = both.await.map(|change| matches!(change.unwrap(), JobChangeResult::Applied { .. }));
        assert_ne!(won[0], won[1]);
        assert_eq!(store.find_job(&name("report")).await.unwrap().unwrap().version, 3);
    }

    /// A job version is an immutable copy of what a run needs. A change of other fields increments only the row version.
    async fn a_job_version_is_created_only_when_its_content_changes(store: TestStore) {
        let job = given_named_job(store, "report", &task_definition()).await;
        let same = store.edit_job("ann", job.expected_version(), &task_definition(), None).await.unwrap();
        assert_eq!(same, JobChangeResult::Applied { job: job.clone(), canceled_runs: vec![] });
        assert_eq!(store.find_audit_head().await.unwrap().seq, 1, "an edit without a change is not audited");
        let off = expect_applied(store.disable_job("ann", job.expected_version()).await.unwrap());
        assert_eq!((off.enabled, off.version, off.newest.version), (false, 2, 1));
        let again = expect_applied(store.disable_job("ann", off.expected_version()).await.unwrap());
        assert_eq!(again, off, "a second disable changes nothing");
        let on = expect_applied(store.enable_job("ann", off.expected_version(), None).await.unwrap());
        let trigger = Trigger::Event { types: string_set(&["x"]), filter: None };
        let event = expect_applied(store.edit_job("ann", on.expected_version(), &JobDefinition { trigger, ..task_definition() }, None).await.unwrap());
        assert_eq!((event.version, event.newest.version), (4, 1));
        let edited = expect_applied(store.edit_job("ann", event.expected_version(), &full_definition(), None).await.unwrap());
        assert_eq!((edited.version, edited.newest.version), (5, 5));
        assert_eq!((edited.trigger.as_str(), edited.event_types.len()), ("time", 0));
        assert_eq!(store.find_job(&name("report")).await.unwrap(), Some(edited));
    }

    async fn a_pause_needs_a_reason_and_may_have_an_end(store: TestStore) {
        let job = given_named_job(store, "report", &task_definition()).await;
        assert!(store.pause_job("ann", job.expected_version(), " ", None).await.unwrap_err().is_invalid_input());
        assert!(store.pause_job("ann", job.expected_version(), "x", Some(noon())).await.unwrap_err().is_invalid_input(), "the end is in the past");
        let hour = noon() + SignedDuration::from_hours(1);
        let paused = expect_applied(store.pause_job("ann", job.expected_version(), "move", None).await.unwrap());
        assert_eq!((paused.paused_at, paused.paused_until, paused.paused_reason.as_deref()), (Some(noon()), None, Some("move")));
        assert!(job.creates_runs_at(noon()) && !paused.creates_runs_at(hour));
        store.set_time(10);
        let ending = expect_applied(store.pause_job("ann", paused.expected_version(), "move", Some(hour)).await.unwrap());
        assert_eq!((ending.paused_at, ending.paused_until), (Some(noon()), Some(hour)), "the pause began with the first call");
        assert!(!ending.creates_runs_at(noon()) && ending.creates_runs_at(hour));
        let off = expect_applied(store.disable_job("ann", ending.expected_version()).await.unwrap());
        assert!(!off.creates_runs_at(hour), "the end of a pause does not enable the job");
        let resumed = expect_applied(store.resume_job("ann", off.expected_version(), None).await.unwrap());
        assert_eq!((resumed.paused_at, resumed.paused_until, &resumed.paused_reason), (None, None, &None));
        assert_eq!(store.find_job(&name("report")).await.unwrap(), Some(resumed));
    }

    async fn a_deleted_job_keeps_its_history_and_frees_its_name(store: TestStore) {
        let job = given_named_job(store, "report", &task_definition()).await;
        let run = store.create_or_find_runs(Writer::Api, &[NewRun::task(&job.newest)]).await.unwrap()[0].run;
        let paused = expect_applied(store.pause_job("ann", job.expected_version(), "old", None).await.unwrap());
        let gone = expect_applied(store.delete_job("ann", paused.expected_version()).await.unwrap());
        assert_eq!(store.find_job(&name("report")).await.unwrap(), None);
        assert_eq!(store.list_jobs(None, 10).await.unwrap(), []);
        assert_eq!(store.find_job_by_id(job.id).await.unwrap(), Some(gone.clone()), "a deleted job can still be read by id");
        assert_eq!((gone.deleted_at, gone.creates_runs_at(noon())), (Some(noon()), false));
        for lost in [
            store.edit_job("bob", gone.expected_version(), &full_definition(), None).await.unwrap(),
            store.enable_job("bob", gone.expected_version(), None).await.unwrap(),
            store.delete_job("bob", gone.expected_version()).await.unwrap(),
        ] {
            assert_eq!(lost, JobChangeResult::Lost(None));
        }
        assert_eq!(store.read_run(run).await.state, RunState::Pending, "a submitted task is not canceled");

        let again = given_named_job(store, "report", &full_definition()).await;
        assert_eq!((again.id, again.version, again.newest.version), (job.id, 4, 4), "the job id and the version count continue");
        assert!(again.creates_runs_at(noon()), "the job is neither deleted nor paused");
        assert_eq!(store.find_job(&name("report")).await.unwrap(), Some(again));
        let entries = store.list_audit_entries_after(0, 10).await.unwrap();
        assert_eq!(entries.last().unwrap().action, "create");
        assert!(entries.last().unwrap().before.as_ref().unwrap().contains(r#""deleted":true"#));
    }

    async fn jobs_are_listed_by_name_in_pages(store: TestStore) {
        for text in ["c", "a", "e", "b", "d"] {
            let _ = given_named_job(store, text, &task_definition()).await;
        }
        let gone = store.find_job(&name("d")).await.unwrap().unwrap();
        let _ = expect_applied(store.delete_job("ann", gone.expected_version()).await.unwrap());
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = store.list_jobs(after.as_ref(), 2).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(name(&last.name));
            assert!(page.len() <= 2);
            seen.extend(page.into_iter().map(|job| job.name));
        }
        assert_eq!(seen, ["a", "b", "c", "e"]);
        assert_eq!(store.list_jobs(None, u32::MAX).await.unwrap().len(), 4, "a limit that is too large is reduced");
    }

    async fn every_change_is_audited_without_secrets(store: TestStore) {
        let ann = AuditActor { name: "ann", address: Some("10.0.0.7") };
        let job = given_named_job(store, "report", &task_definition()).await;
        let job = expect_applied(store.edit_job(ann, job.expected_version(), &full_definition(), None).await.unwrap());
        let job = expect_applied(store.disable_job(ann, job.expected_version()).await.unwrap());
        let job = expect_applied(store.enable_job(ann, job.expected_version(), None).await.unwrap());
        let job = expect_applied(store.pause_job(ann, job.expected_version(), "move", None).await.unwrap());
        let job = expect_applied(store.resume_job(ann, job.expected_version(), None).await.unwrap());
        let job = expect_applied(store.delete_job(ann, job.expected_version()).await.unwrap());
        let entries = store.list_audit_entries_after(0, 10).await.unwrap();
        let actions: Vec<&str> = entries.iter().map(|row| row.action.as_str()).collect();
        assert_eq!(actions, ["create", "edit", "disable", "enable", "pause", "resume", "delete"]);
        for (number, row) in entries.iter().enumerate().skip(1) {
            assert_eq!((row.actor.as_str(), row.address.as_deref()), ("ann", Some("10.0.0.7")));
            assert_eq!(row.object, format!("job {}", job.id));
            let json = |text: &Option<String>| serde_json::from_str::<serde_json::Value>(text.as_ref().unwrap()).unwrap();
            let (before, after) = (json(&row.before), json(&row.after));
            assert_eq!((&before["version"], &after["version"]), (&number.into(), &(number + 1).into()));
            let text = format!("{before}{after}");
            assert!(!text.contains("hunter2") && text.contains("sha256"), "{text}");
        }
        assert!(entries[1].before.as_ref().unwrap().contains(r#""trigger":"task""#));
        assert!(entries[1].after.as_ref().unwrap().contains(r#""schedule_value":"02:30""#));
        assert!(entries[4].after.as_ref().unwrap().contains(r#""paused_reason":"move""#));
    }
}
