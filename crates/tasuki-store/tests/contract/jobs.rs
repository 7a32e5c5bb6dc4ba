//! Definitions: made once under a name, changed by whoever saw what it changes, and told.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::misfire::Misfire;
use tasuki_core::schedule::{DstChoice, FoldRule, GapRule, ScheduleKind};
use tasuki_core::{JobName, RunState, Schedule};
use tasuki_store::{
    Actor, Writer, Job, JobChange, JobCreated, JobDefinition, JobKind, JobSpec, NewRun, Store,
    Trigger,
};

use crate::given::{Like, TestStore, at_once, contract, noon};

fn words(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(ToString::to_string).collect()
}

fn name(typed: &str) -> JobName {
    typed.parse().unwrap()
}

/// A definition that says everything there is to say.
fn full() -> JobDefinition {
    let dst = DstChoice { gap: Some(GapRule::Skip), fold: Some(FoldRule::Twice) };
    let schedule = Schedule::parse(ScheduleKind::DailyAt, "02:30", "Europe/Berlin", dst).unwrap();
    JobDefinition {
        trigger: Trigger::Time {
            schedule,
            misfire: Some(Misfire::EveryWithin(Duration::from_secs(7200))),
        },
        enabled: true,
        spec: JobSpec {
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
            labels: words(&["gpu", "東京"]),
        },
    }
}

fn task() -> JobDefinition {
    JobDefinition { trigger: Trigger::Task, enabled: true, spec: Like::default().spec() }
}

async fn given(store: &Store, typed: &str, definition: &JobDefinition) -> Job {
    match store.create_job("ann", &name(typed), definition, None).await.unwrap() {
        JobCreated::Made(job) => *job,
        JobCreated::NameTaken => panic!("{typed} is taken"),
    }
}

#[track_caller]
fn applied(change: JobChange) -> Job {
    match change {
        JobChange::Applied { job, .. } => job,
        JobChange::Lost(now) => panic!("lost to {now:?}"),
    }
}

contract! {
    async fn what_is_said_of_a_job_reads_back(store: TestStore) {
        let made = given(store, "report", &full()).await;
        let job = store.job(&name("report")).await.unwrap().unwrap();
        assert_eq!(job, made);
        assert_eq!(store.job_by_id(job.id).await.unwrap(), Some(made));
        let Trigger::Time { schedule, misfire } = full().trigger else { unreachable!() };
        assert_eq!(job.schedule().unwrap(), Some(schedule));
        assert_eq!((job.misfire, &job.newest.spec), (misfire, &full().spec));
        assert_eq!((job.version, job.newest.version, job.enabled), (1, 1, true));
        assert_eq!((job.zone.as_deref(), job.dst_gap.as_deref(), job.dst_fold.as_deref()),
            (Some("Europe/Berlin"), Some("skip"), Some("twice")));
        let wanted = [(job.id, 1), (job.id, 2), (tasuki_core::JobId(999), 1)].into();
        let kept = store.job_versions(&wanted).await.unwrap();
        assert_eq!(kept, [(job.name.clone(), job.newest.clone())]);
        assert_eq!(store.job_versions(&[].into()).await.unwrap(), []);

        let filter = Some(r#"{"total":{"gt":100}}"#.to_owned());
        let trigger = Trigger::Event { types: words(&["order.paid", "order.sent"]), filter: filter.clone() };
        let event = given(store, "mail", &JobDefinition { trigger, enabled: false, ..full() }).await;
        assert_eq!((event.trigger.as_str(), event.enabled), ("event", false));
        assert_eq!((event.event_types, event.event_filter), (words(&["order.paid", "order.sent"]), filter));
        for (number, misfire) in [Misfire::SkipLate(Duration::from_secs(5)), Misfire::LatestOnly, Misfire::AtMost(3)].into_iter().enumerate() {
            let Trigger::Time { schedule, .. } = full().trigger else { unreachable!() };
            let trigger = Trigger::Time { schedule, misfire: Some(misfire) };
            let job = given(store, &format!("late {number}"), &JobDefinition { trigger, ..full() }).await;
            assert_eq!(job.misfire, Some(misfire));
        }
    }

    async fn a_name_is_taken_once(store: TestStore) {
        let first = given(store, "report", &task()).await;
        let head = store.audit_head().await.unwrap();
        assert_eq!(store.create_job("bob", &name("report"), &full(), None).await.unwrap(), JobCreated::NameTaken);
        assert_eq!(store.audit_head().await.unwrap(), head, "what was refused is not told");
        assert_eq!(store.job(&name("report")).await.unwrap(), Some(first));
        let other = name("other");
        let (definition, rival) = (task(), full());
        let both = at_once(
            store.create_job("ann", &other, &definition, None),
            store.create_job("bob", &other, &rival, None),
        );
        let won = both.await.map(|created| matches!(created.unwrap(), JobCreated::Made(_)));
        assert_ne!(won[0], won[1]);
    }

    async fn what_no_run_could_keep_is_refused_in_words(store: TestStore) {
        let spec = task().spec;
        let wrong = [
            (JobSpec { spec: "{".to_owned(), ..spec.clone() }, "spec: found something else, expected JSON"),
            (JobSpec { spec: "[]".to_owned(), ..spec.clone() }, "spec: found other JSON, expected a JSON object"),
            (JobSpec { max_attempts: 0, ..spec.clone() }, "max_attempts: found 0, expected 1 to 1000000"),
            (JobSpec { max_releases: u32::MAX, ..spec.clone() }, "max_releases: found 4294967295, expected 1 to 1000000"),
            (JobSpec { backoff: Duration::from_secs(901), ..spec.clone() }, "backoff cap: found 900s, expected at least the first wait, 901s"),
            (JobSpec { jitter_percent: 101, ..spec.clone() }, "backoff jitter: found 101 %, expected 0 to 100 %"),
            (JobSpec { labels: words(&[" "]), ..spec.clone() }, "label: found nothing, expected 1 to 191 visible characters"),
        ];
        for (spec, expected) in wrong {
            let definition = JobDefinition { spec, ..task() };
            let refused = store.create_job("ann", &name("x"), &definition, None).await.unwrap_err();
            assert!(refused.is_invalid_input());
            assert_eq!(refused.to_string(), expected);
        }
        let trigger = Trigger::Event { types: words(&[]), filter: None };
        let refused = store.create_job("ann", &name("x"), &JobDefinition { trigger, ..task() }, None).await;
        assert_eq!(refused.unwrap_err().to_string(), "event types: found nothing, expected at least one type");
        // Some databases would cut it, some would refuse it.
        let long = format!("0 {} * * *", vec!["12"; 70].join(","));
        let schedule = Schedule::parse(ScheduleKind::Cron, &long, "UTC", DstChoice::default()).unwrap();
        let trigger = Trigger::Time { schedule, misfire: None };
        assert!(store.create_job("ann", &name("x"), &JobDefinition { trigger, ..task() }, None).await.unwrap_err().is_invalid_input());
        assert_eq!(store.jobs(None, 10).await.unwrap(), []);
        assert_eq!(store.audit_head().await.unwrap().seq, 0);
    }

    async fn whoever_edits_what_it_has_not_seen_loses(store: TestStore) {
        let job = given(store, "report", &task()).await;
        let spec = JobSpec { max_attempts: 5, ..task().spec };
        let edit = JobDefinition { spec, ..task() };
        let now = applied(store.edit_job("ann", job.seen(), &edit, None).await.unwrap());
        assert_eq!((now.version, now.newest.version, now.newest.spec.max_attempts), (2, 2, 5));
        assert_eq!(store.job(&name("report")).await.unwrap(), Some(now.clone()));
        let head = store.audit_head().await.unwrap();
        let lost = store.edit_job("bob", job.seen(), &full(), None).await.unwrap();
        assert_eq!(lost, JobChange::Lost(Some(now.clone())), "and learns what it is now");
        assert_eq!(store.disable_job("bob", job.seen()).await.unwrap(), lost);
        assert_eq!(store.delete_job("bob", job.seen()).await.unwrap(), lost);
        assert_eq!(store.audit_head().await.unwrap(), head, "what was not done is not told");
        let old = store.job_versions(&[(job.id, 1)].into()).await.unwrap();
        assert_eq!(old[0].1.spec, task().spec, "what runs were made of stays");

        let (one, other) = (task(), full());
        let both = at_once(
            store.edit_job("ann", now.seen(), &one, None),
            store.edit_job("bob", now.seen(), &other, None),
        );
        let won = both.await.map(|change| matches!(change.unwrap(), JobChange::Applied { .. }));
        assert_ne!(won[0], won[1]);
        assert_eq!(store.job(&name("report")).await.unwrap().unwrap().version, 3);
    }

    /// A version is a copy of what runs are made of; the rest of the row has only a number.
    async fn a_version_is_made_only_when_its_content_changes(store: TestStore) {
        let job = given(store, "report", &task()).await;
        let same = store.edit_job("ann", job.seen(), &task(), None).await.unwrap();
        assert_eq!(same, JobChange::Applied { job: job.clone(), withdrawn: vec![] });
        assert_eq!(store.audit_head().await.unwrap().seq, 1, "nothing was done");
        let off = applied(store.disable_job("ann", job.seen()).await.unwrap());
        assert_eq!((off.enabled, off.version, off.newest.version), (false, 2, 1));
        let again = applied(store.disable_job("ann", off.seen()).await.unwrap());
        assert_eq!(again, off, "once");
        let on = applied(store.enable_job("ann", off.seen(), None).await.unwrap());
        let trigger = Trigger::Event { types: words(&["x"]), filter: None };
        let event = applied(store.edit_job("ann", on.seen(), &JobDefinition { trigger, ..task() }, None).await.unwrap());
        assert_eq!((event.version, event.newest.version), (4, 1));
        let edited = applied(store.edit_job("ann", event.seen(), &full(), None).await.unwrap());
        assert_eq!((edited.version, edited.newest.version), (5, 5));
        assert_eq!((edited.trigger.as_str(), edited.event_types.len()), ("time", 0));
        assert_eq!(store.job(&name("report")).await.unwrap(), Some(edited));
    }

    async fn a_pause_has_a_reason_and_may_have_an_end(store: TestStore) {
        let job = given(store, "report", &task()).await;
        assert!(store.pause_job("ann", job.seen(), " ", None).await.unwrap_err().is_invalid_input());
        assert!(store.pause_job("ann", job.seen(), "x", Some(noon())).await.unwrap_err().is_invalid_input(), "over already");
        let hour = noon() + SignedDuration::from_hours(1);
        let paused = applied(store.pause_job("ann", job.seen(), "move", None).await.unwrap());
        assert_eq!((paused.paused_at, paused.paused_until, paused.paused_reason.as_deref()), (Some(noon()), None, Some("move")));
        assert!(job.is_on(noon()) && !paused.is_on(hour));
        store.at(10);
        let ending = applied(store.pause_job("ann", paused.seen(), "move", Some(hour)).await.unwrap());
        assert_eq!((ending.paused_at, ending.paused_until), (Some(noon()), Some(hour)), "paused since the first");
        assert!(!ending.is_on(noon()) && ending.is_on(hour));
        let off = applied(store.disable_job("ann", ending.seen()).await.unwrap());
        assert!(!off.is_on(hour), "a pause that ends does not enable");
        let resumed = applied(store.resume_job("ann", off.seen(), None).await.unwrap());
        assert_eq!((resumed.paused_at, resumed.paused_until, &resumed.paused_reason), (None, None, &None));
        assert_eq!(store.job(&name("report")).await.unwrap(), Some(resumed));
    }

    async fn a_deleted_job_keeps_its_history_and_its_name_is_free(store: TestStore) {
        let job = given(store, "report", &task()).await;
        let run = store.create(Writer::Api, &[NewRun::task(&job.newest)]).await.unwrap()[0].run;
        let paused = applied(store.pause_job("ann", job.seen(), "old", None).await.unwrap());
        let gone = applied(store.delete_job("ann", paused.seen()).await.unwrap());
        assert_eq!(store.job(&name("report")).await.unwrap(), None);
        assert_eq!(store.jobs(None, 10).await.unwrap(), []);
        assert_eq!(store.job_by_id(job.id).await.unwrap(), Some(gone.clone()), "for the pages of its runs");
        assert_eq!((gone.deleted_at, gone.is_on(noon())), (Some(noon()), false));
        for lost in [
            store.edit_job("bob", gone.seen(), &full(), None).await.unwrap(),
            store.enable_job("bob", gone.seen(), None).await.unwrap(),
            store.delete_job("bob", gone.seen()).await.unwrap(),
        ] {
            assert_eq!(lost, JobChange::Lost(None));
        }
        assert_eq!(store.run_now(run).await.state, RunState::Pending, "somebody asked for it");

        let again = given(store, "report", &full()).await;
        assert_eq!((again.id, again.version, again.newest.version), (job.id, 4, 4), "it goes on");
        assert!(again.is_on(noon()), "neither deleted nor paused");
        assert_eq!(store.job(&name("report")).await.unwrap(), Some(again));
        let told = store.audit_list(0, 10).await.unwrap();
        assert_eq!(told.last().unwrap().action, "create");
        assert!(told.last().unwrap().before.as_ref().unwrap().contains(r#""deleted":true"#));
    }

    async fn a_list_goes_by_name_page_by_page(store: TestStore) {
        for typed in ["c", "a", "e", "b", "d"] {
            let _ = given(store, typed, &task()).await;
        }
        let gone = store.job(&name("d")).await.unwrap().unwrap();
        let _ = applied(store.delete_job("ann", gone.seen()).await.unwrap());
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = store.jobs(after.as_ref(), 2).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(name(&last.name));
            assert!(page.len() <= 2);
            seen.extend(page.into_iter().map(|job| job.name));
        }
        assert_eq!(seen, ["a", "b", "c", "e"]);
        assert_eq!(store.jobs(None, u32::MAX).await.unwrap().len(), 4, "a bound, not an error");
    }

    async fn every_change_is_told_and_no_secret_is(store: TestStore) {
        let ann = Actor { name: "ann", address: Some("10.0.0.7") };
        let job = given(store, "report", &task()).await;
        let job = applied(store.edit_job(ann, job.seen(), &full(), None).await.unwrap());
        let job = applied(store.disable_job(ann, job.seen()).await.unwrap());
        let job = applied(store.enable_job(ann, job.seen(), None).await.unwrap());
        let job = applied(store.pause_job(ann, job.seen(), "move", None).await.unwrap());
        let job = applied(store.resume_job(ann, job.seen(), None).await.unwrap());
        let job = applied(store.delete_job(ann, job.seen()).await.unwrap());
        let told = store.audit_list(0, 10).await.unwrap();
        let actions: Vec<&str> = told.iter().map(|row| row.action.as_str()).collect();
        assert_eq!(actions, ["create", "edit", "disable", "enable", "pause", "resume", "delete"]);
        for (number, row) in told.iter().enumerate().skip(1) {
            assert_eq!((row.actor.as_str(), row.address.as_deref()), ("ann", Some("10.0.0.7")));
            assert_eq!(row.object, format!("job {}", job.id));
            let json = |text: &Option<String>| serde_json::from_str::<serde_json::Value>(text.as_ref().unwrap()).unwrap();
            let (before, after) = (json(&row.before), json(&row.after));
            assert_eq!((&before["version"], &after["version"]), (&number.into(), &(number + 1).into()));
            let text = format!("{before}{after}");
            assert!(!text.contains("hunter2") && text.contains("sha256"), "{text}");
        }
        assert!(told[1].before.as_ref().unwrap().contains(r#""trigger":"task""#));
        assert!(told[1].after.as_ref().unwrap().contains(r#""schedule_value":"02:30""#));
        assert!(told[4].after.as_ref().unwrap().contains(r#""paused_reason":"move""#));
    }
}
