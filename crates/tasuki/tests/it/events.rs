//! Tests of events that start runs.

use std::time::Duration;

use serde_json::json;
use tasuki::operator::{AccessRole, Actor, EventDraft, JobDraft};
use tasuki_core::work_spec::{WorkAction, WorkSpec};
use tasuki_core::{EventId, JobId, Origin, RunState};
use tasuki_store::{Event, Trigger};

use crate::node_fixture::{NodeFixture, command, expect_applied, shell, spec};

fn event_trigger(types: &[&str], filter: Option<serde_json::Value>) -> Trigger {
    let types = types.iter().map(|&one| one.to_owned()).collect();
    Trigger::Event { types, filter: filter.map(|filter| filter.to_string()) }
}

fn event_draft(event_type: &str, payload: &serde_json::Value) -> EventDraft {
    EventDraft {
        event_type: event_type.to_owned(),
        source: "test".to_owned(),
        payload: Some(payload.to_string()),
        ..EventDraft::default()
    }
}

impl NodeFixture {
    async fn emit(&self, event: &EventDraft) -> EventId {
        self.operator().emit_event(event).await.unwrap().event
    }

    /// Waits until the leader has processed an event.
    async fn wait_until_processed(&self, event: EventId) -> Event {
        self.wait_until(&format!("event {event} is processed"), async || {
            let found = self.store.find_event(event).await.unwrap().unwrap();
            found.processed_at.is_some().then_some(found)
        })
        .await
    }

    /// Inserts an event row in its own transaction, as another program would, without a wake-up.
    async fn insert_event_row(&self, columns: &str, values: &str) -> EventId {
        let before = self.store.list_events(None, 1).await.unwrap();
        let insert = format!("insert into tasuki_event ({columns}) values ({values})");
        self.store.execute_script(&insert).await.unwrap();
        let newest = self.store.list_events(None, 1).await.unwrap().remove(0).id;
        assert_ne!(Some(newest), before.first().map(|event| event.id));
        newest
    }

    async fn count_runs(&self, job: JobId) -> usize {
        let filter = tasuki_store::RunFilter { job: Some(job), ..Default::default() };
        self.store.list_runs(&filter, None, 200).await.unwrap().runs.len()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_concurrent_duplicates_of_an_event_start_one_run() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let job = fixture
        .create_job("pay", event_trigger(&["order.paid"], None), spec(&command(&["true"])))
        .await;
    let emit = || {
        let operator = fixture.operator();
        tokio::spawn(async move {
            let event = EventDraft {
                dedupe_key: Some("order 7".to_owned()),
                ..event_draft("order.paid", &json!({"order": 7}))
            };
            operator.emit_event(&event).await.unwrap()
        })
    };
    let tasks: Vec<_> = (0..16).map(|_| emit()).collect();
    let mut emitted = Vec::new();
    for task in tasks {
        emitted.push(task.await.unwrap());
    }
    assert_eq!(emitted.iter().filter(|one| !one.existed).count(), 1);
    assert!(emitted.iter().all(|one| one.event == emitted[0].event));
    let event = fixture.wait_until_processed(emitted[0].event).await;
    assert_eq!((event.runs, event.problem), (Some(1), None));
    let runs = fixture.wait_for_runs(job.id, 1, RunState::is_ended).await;
    assert_eq!((runs[0].state, runs[0].origin), (RunState::Succeeded, Origin::Event));

    // Another key, and the same key of another source, are other events.
    for (source, key) in [("test", "order 8"), ("shop", "order 7")] {
        let event = EventDraft {
            source: source.to_owned(),
            dedupe_key: Some(key.to_owned()),
            ..event_draft("order.paid", &json!({}))
        };
        fixture.wait_until_processed(fixture.emit(&event).await).await;
    }
    assert_eq!(fixture.wait_for_runs(job.id, 3, RunState::is_ended).await.len(), 3);
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_starts_every_matching_job_and_no_other() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let work = spec(&command(&["true"]));
    let job = async |name, types: &[&str], filter| {
        fixture.create_job(name, event_trigger(types, filter), work.clone()).await.id
    };
    let exact = job("exact", &["order.paid"], None).await;
    let below = job("below", &["order.*"], None).await;
    let large = job("large", &["order.*"], Some(json!({"size": ["l", "xl"]}))).await;
    let other = job("other", &["invoice.paid", "orders"], None).await;
    let off = fixture.create_job("off", event_trigger(&["order.paid"], None), work.clone()).await;
    expect_applied(fixture.store.disable_job("test", off.expected_version()).await);
    let paused =
        fixture.create_job("paused", event_trigger(&["order.paid"], None), work.clone()).await;
    expect_applied(
        fixture.store.pause_job("test", paused.expected_version(), "for now", None).await,
    );

    for (event_type, payload, expected) in [
        ("order.paid", json!({"size": "s"}), 2),
        ("order.sent.abroad", json!({"size": "xl"}), 2),
        ("order.paid", json!({"size": "l", "more": 1}), 3),
        ("order", json!({}), 0),
        ("order.", json!({}), 0),
        ("other.event", json!({}), 0),
    ] {
        let event = fixture
            .wait_until_processed(fixture.emit(&event_draft(event_type, &payload)).await)
            .await;
        // An event that matches no job is marked as processed, too.
        assert_eq!((event.runs, event.problem), (Some(expected), None), "{event_type}");
    }
    for (job, expected) in [(exact, 2), (below, 3), (large, 2), (other, 0), (off.id, 0)] {
        assert_eq!(fixture.count_runs(job).await, expected, "{job}");
        fixture.wait_for_runs(job, expected, |state| state == RunState::Succeeded).await;
    }
    assert_eq!(fixture.count_runs(paused.id).await, 0);
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_may_name_its_job() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let work = spec(&command(&["true"]));
    let listener = fixture.create_job("listener", event_trigger(&["go"], None), work.clone()).await;
    let named = fixture.create_job("named", Trigger::Task, work.clone()).await;
    let event = EventDraft { job: Some("named".to_owned()), ..event_draft("go", &json!({})) };
    assert_eq!(fixture.wait_until_processed(fixture.emit(&event).await).await.runs, Some(1));
    assert_eq!((fixture.count_runs(listener.id).await, fixture.count_runs(named.id).await), (0, 1));

    // The API refuses an unknown job name. For a row inserted with SQL the leader stores the problem later.
    let event = EventDraft { job: Some("missing".to_owned()), ..event_draft("go", &json!({})) };
    assert!(fixture.operator().emit_event(&event).await.is_err());
    let event = fixture.insert_event_row("event_type, job_name", "'go', 'missing'").await;
    let event = fixture.wait_until_processed(event).await;
    assert_eq!(event.problem.as_deref(), Some("there is no enabled job named \"missing\""));
    expect_applied(fixture.store.disable_job("test", named.expected_version()).await);
    let event = fixture
        .wait_until_processed(
            fixture.insert_event_row("event_type, job_name", "'go', 'named'").await,
        )
        .await;
    assert_eq!(event.problem.as_deref(), Some("there is no enabled job named \"named\""));
    fixture.wait_for_runs(named.id, 1, |state| state == RunState::Succeeded).await;
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_inserted_by_another_program_is_an_event() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let work = shell("echo $TASUKI_EVENT_PAYLOAD");
    let job = fixture.create_job("pay", event_trigger(&["order.*"], None), spec(&work)).await;
    let columns = "event_type, payload, dedupe_key";
    fixture.insert_event_row(columns, r#"'order.paid', '{"order": 1}', 'one'"#).await;
    fixture.insert_event_row("event_type", "'order.none'").await;
    let again =
        format!("insert into tasuki_event ({columns}) values ('order.paid', '{{}}', 'one')");
    assert!(fixture.store.execute_script(&again).await.is_err());
    let runs = fixture.wait_for_runs(job.id, 2, RunState::is_ended).await;
    assert_eq!(fixture.read_log(runs[0].id).await, [r#"{"order": 1}"#]);
    assert_eq!(fixture.read_log(runs[1].id).await, [""]);
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_event_is_refused_and_blocks_no_other() {
    let fixture = NodeFixture::new().await;
    let job = fixture
        .create_job("pay", event_trigger(&["order.*"], None), spec(&command(&["true"])))
        .await;
    let columns = "event_type, payload";
    let broken = fixture.insert_event_row(columns, "'order.paid', '{\"order\": '").await;
    let empty = fixture.insert_event_row(columns, "'order.paid', ''").await;
    let long = format!("'order.paid', '{{\"order\": \"{}\"}}'", "x".repeat(2 << 20));
    let long = fixture.insert_event_row(columns, &long).await;
    let odd = fixture.insert_event_row(columns, "'', '{}'").await;
    let list = fixture.insert_event_row(columns, "'order.paid', '[1]'").await;
    let good = fixture.insert_event_row(columns, "'order.paid', '{\"order\": 1}'").await;
    let node = fixture.start_node().await;
    for event in [broken, empty] {
        let event = fixture.wait_until_processed(event).await;
        assert_eq!(
            (event.runs, event.problem.as_deref()),
            (Some(0), Some("the payload is not valid JSON"))
        );
    }
    let long = fixture.wait_until_processed(long).await;
    assert_eq!(long.runs, Some(0));
    assert!(long.problem.as_deref().unwrap().contains("args"), "{:?}", long.problem);
    assert_eq!(
        (
            fixture.wait_until_processed(odd).await.runs,
            fixture.wait_until_processed(odd).await.problem
        ),
        (Some(0), None)
    );
    for event in [list, good] {
        assert_eq!(fixture.wait_until_processed(event).await.runs, Some(1));
    }
    let runs = fixture.wait_for_runs(job.id, 2, RunState::is_ended).await;
    assert!(runs.iter().all(|run| run.state == RunState::Succeeded), "{runs:?}");
    node.stop().await;
    fixture.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_payload_reaches_the_job() {
    let fixture = NodeFixture::new().await;
    let mut functions = tasuki::HandlerRegistry::default();
    functions.register("pay", |args: serde_json::Value, call| async move {
        call.log(format!("{args} {}", call.event_payload().unwrap_or_default()));
        Ok(())
    });
    let node = fixture.start_node_with(functions).await;
    let script = r#"echo "$1,$2"; echo "$TASUKI_ARGS"; echo "$TASUKI_EVENT_PAYLOAD""#;
    let argv = ["sh", "-c", script, "sh", "order {order}", "{currency}"];
    let args = json!({"currency": "EUR", "order": 0}).as_object().unwrap().clone();
    let work = WorkSpec { args: args.clone(), ..command(&argv) };
    let paid = || event_trigger(&["order.paid"], None);
    let command = fixture.create_job("command", paid(), spec(&work)).await.id;
    let work = WorkSpec { args, ..WorkSpec::new(WorkAction::Function("pay".to_owned())) };
    let function = fixture.create_job("function", paid(), spec(&work)).await.id;

    let payload = json!({"order": "7 8", "who": {"name": "A; rm"}});
    fixture.emit(&event_draft("order.paid", &payload)).await;
    let all = r#"{"currency":"EUR","order":"7 8","who":{"name":"A; rm"}}"#;
    let ended = |state| state == RunState::Succeeded;
    let run = fixture.wait_for_runs(command, 1, ended).await.remove(0);
    assert_eq!(fixture.read_log(run.id).await, ["order 7 8,EUR", all, &payload.to_string()]);
    let run = fixture.wait_for_runs(function, 1, ended).await.remove(0);
    assert_eq!(fixture.read_log(run.id).await, [format!("{all} {payload}")]);

    // A payload that is not an object does not become arguments, but the job can still read it.
    fixture.emit(&event_draft("order.paid", &json!([1, 2]))).await;
    let run = fixture.wait_for_runs(command, 2, ended).await.remove(1);
    assert_eq!(
        fixture.read_log(run.id).await,
        ["order 0,EUR", r#"{"currency":"EUR","order":0}"#, "[1,2]"]
    );
    node.stop().await;
    fixture.finish().await;
}

/// The job definition that an operator saved last decides which events start it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_created_by_an_operator_receives_the_next_event() {
    let fixture = NodeFixture::new().await;
    let node = fixture.start_node().await;
    let operator = fixture.operator();
    let by = Actor { name: "ann".to_owned(), address: None, role: AccessRole::Author };
    let draft = JobDraft {
        trigger: event_trigger(&["file.ready"], None),
        backoff: Some(Duration::from_millis(10)),
        ..JobDraft::new(command(&["echo", "{name}"]))
    };
    let job = operator.create_job(&by, "import", &draft).await.unwrap().job;
    fixture.emit(&event_draft("file.ready", &json!({"name": "a.csv"}))).await;
    let run = fixture.wait_for_runs(job.id, 1, RunState::is_ended).await.remove(0);
    assert_eq!(fixture.read_log(run.id).await, ["a.csv"]);

    let quiet = JobDraft { trigger: event_trigger(&["file.gone"], None), ..draft };
    operator.edit_job(&by, job.expected_version(), &quiet).await.unwrap();
    let event = fixture
        .wait_until_processed(fixture.emit(&event_draft("file.ready", &json!({}))).await)
        .await;
    assert_eq!(event.runs, Some(0));
    node.stop().await;
    fixture.finish().await;
}
