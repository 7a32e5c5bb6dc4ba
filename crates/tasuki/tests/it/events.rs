//! What happens outside and starts runs here.

use std::time::Duration;

use serde_json::json;
use tasuki::operator::{Actor, EventDraft, JobDraft, Role};
use tasuki_core::job_spec::{What, Work};
use tasuki_core::{EventId, JobId, Origin, RunState};
use tasuki_store::{Event, Trigger};

use crate::place::{Place, applied, command, shell, spec};

fn listening(types: &[&str], filter: Option<serde_json::Value>) -> Trigger {
    let types = types.iter().map(|&one| one.to_owned()).collect();
    Trigger::Event { types, filter: filter.map(|filter| filter.to_string()) }
}

fn told(event_type: &str, payload: &serde_json::Value) -> EventDraft {
    EventDraft {
        event_type: event_type.to_owned(),
        source: "test".to_owned(),
        payload: Some(payload.to_string()),
        ..EventDraft::default()
    }
}

impl Place {
    async fn emit(&self, event: &EventDraft) -> EventId {
        self.operator().emit(event).await.unwrap().event
    }

    /// Waits until the leader has taken an event.
    async fn taken(&self, event: EventId) -> Event {
        self.until(&format!("event {event} is taken"), async || {
            let found = self.store.event(event).await.unwrap().unwrap();
            found.processed_at.is_some().then_some(found)
        })
        .await
    }

    /// As another program would: the documented row, in a transaction of its own. Nobody is woken.
    async fn insert(&self, columns: &str, values: &str) -> EventId {
        let before = self.store.events(None, 1).await.unwrap();
        let insert = format!("insert into tasuki_event ({columns}) values ({values})");
        self.store.script(&insert).await.unwrap();
        let newest = self.store.events(None, 1).await.unwrap().remove(0).id;
        assert_ne!(Some(newest), before.first().map(|event| event.id));
        newest
    }

    async fn count(&self, job: JobId) -> usize {
        let filter = tasuki_store::RunFilter { job: Some(job), ..Default::default() };
        self.store.runs(&filter, None, 200).await.unwrap().runs.len()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_event_told_sixteen_times_at_once_makes_one_run() {
    let place = Place::new().await;
    let node = place.node().await;
    let job = place.job("pay", listening(&["order.paid"], None), spec(&command(&["true"]))).await;
    let tell = || {
        let operator = place.operator();
        tokio::spawn(async move {
            let event = EventDraft {
                dedupe_key: Some("order 7".to_owned()),
                ..told("order.paid", &json!({"order": 7}))
            };
            operator.emit(&event).await.unwrap()
        })
    };
    let tellers: Vec<_> = (0..16).map(|_| tell()).collect();
    let mut emitted = Vec::new();
    for teller in tellers {
        emitted.push(teller.await.unwrap());
    }
    assert_eq!(emitted.iter().filter(|one| !one.existed).count(), 1);
    assert!(emitted.iter().all(|one| one.event == emitted[0].event));
    let event = place.taken(emitted[0].event).await;
    assert_eq!((event.runs, event.problem), (Some(1), None));
    let runs = place.runs_of(job.id, 1, RunState::is_ended).await;
    assert_eq!((runs[0].state, runs[0].origin), (RunState::Succeeded, Origin::Event));

    // Another key, and the same key of another source, are other events.
    for (source, key) in [("test", "order 8"), ("shop", "order 7")] {
        let event = EventDraft {
            source: source.to_owned(),
            dedupe_key: Some(key.to_owned()),
            ..told("order.paid", &json!({}))
        };
        place.taken(place.emit(&event).await).await;
    }
    assert_eq!(place.runs_of(job.id, 3, RunState::is_ended).await.len(), 3);
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_starts_whoever_listens_and_only_those() {
    let place = Place::new().await;
    let node = place.node().await;
    let work = spec(&command(&["true"]));
    let job = async |name, types: &[&str], filter| {
        place.job(name, listening(types, filter), work.clone()).await.id
    };
    let exact = job("exact", &["order.paid"], None).await;
    let below = job("below", &["order.*"], None).await;
    let large = job("large", &["order.*"], Some(json!({"size": ["l", "xl"]}))).await;
    let other = job("other", &["invoice.paid", "orders"], None).await;
    let off = place.job("off", listening(&["order.paid"], None), work.clone()).await;
    applied(place.store.disable_job("test", off.seen()).await);
    let paused = place.job("paused", listening(&["order.paid"], None), work.clone()).await;
    applied(place.store.pause_job("test", paused.seen(), "for now", None).await);

    for (event_type, payload, expected) in [
        ("order.paid", json!({"size": "s"}), 2),
        ("order.sent.abroad", json!({"size": "xl"}), 2),
        ("order.paid", json!({"size": "l", "more": 1}), 3),
        ("order", json!({}), 0),
        ("order.", json!({}), 0),
        ("nobody.cares", json!({}), 0),
    ] {
        let event = place.taken(place.emit(&told(event_type, &payload)).await).await;
        // An event that nobody takes is marked so.
        assert_eq!((event.runs, event.problem), (Some(expected), None), "{event_type}");
    }
    for (job, expected) in [(exact, 2), (below, 3), (large, 2), (other, 0), (off.id, 0)] {
        assert_eq!(place.count(job).await, expected, "{job}");
        place.runs_of(job, expected, |state| state == RunState::Succeeded).await;
    }
    assert_eq!(place.count(paused.id).await, 0);
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_may_name_its_job() {
    let place = Place::new().await;
    let node = place.node().await;
    let work = spec(&command(&["true"]));
    let listener = place.job("listener", listening(&["go"], None), work.clone()).await;
    let named = place.job("named", Trigger::Task, work.clone()).await;
    let event = EventDraft { job: Some("named".to_owned()), ..told("go", &json!({})) };
    assert_eq!(place.taken(place.emit(&event).await).await.runs, Some(1));
    assert_eq!((place.count(listener.id).await, place.count(named.id).await), (0, 1));

    // Through the API a name that nobody has is refused; in SQL it is found later, and told.
    let event = EventDraft { job: Some("nobody".to_owned()), ..told("go", &json!({})) };
    assert!(place.operator().emit(&event).await.is_err());
    let event = place.insert("event_type, job_name", "'go', 'nobody'").await;
    let event = place.taken(event).await;
    assert_eq!(event.problem.as_deref(), Some("there is no job \"nobody\" that is on"));
    applied(place.store.disable_job("test", named.seen()).await);
    let event = place.taken(place.insert("event_type, job_name", "'go', 'named'").await).await;
    assert_eq!(event.problem.as_deref(), Some("there is no job \"named\" that is on"));
    place.runs_of(named.id, 1, |state| state == RunState::Succeeded).await;
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_inserted_by_another_program_is_an_event() {
    let place = Place::new().await;
    let node = place.node().await;
    let work = shell("echo $TASUKI_EVENT_PAYLOAD");
    let job = place.job("pay", listening(&["order.*"], None), spec(&work)).await;
    let columns = "event_type, payload, dedupe_key";
    place.insert(columns, r#"'order.paid', '{"order": 1}', 'one'"#).await;
    place.insert("event_type", "'order.none'").await;
    let again =
        format!("insert into tasuki_event ({columns}) values ('order.paid', '{{}}', 'one')");
    assert!(place.store.script(&again).await.is_err());
    let runs = place.runs_of(job.id, 2, RunState::is_ended).await;
    assert_eq!(place.log(runs[0].id).await, [r#"{"order": 1}"#]);
    assert_eq!(place.log(runs[1].id).await, [""]);
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_cannot_be_read_is_told_and_stands_in_nobodys_way() {
    let place = Place::new().await;
    let job = place.job("pay", listening(&["order.*"], None), spec(&command(&["true"]))).await;
    let columns = "event_type, payload";
    let broken = place.insert(columns, "'order.paid', '{\"order\": '").await;
    let empty = place.insert(columns, "'order.paid', ''").await;
    let long = format!("'order.paid', '{{\"order\": \"{}\"}}'", "x".repeat(2 << 20));
    let long = place.insert(columns, &long).await;
    let odd = place.insert(columns, "'', '{}'").await;
    let list = place.insert(columns, "'order.paid', '[1]'").await;
    let good = place.insert(columns, "'order.paid', '{\"order\": 1}'").await;
    let node = place.node().await;
    for event in [broken, empty] {
        let event = place.taken(event).await;
        assert_eq!(
            (event.runs, event.problem.as_deref()),
            (Some(0), Some("its payload is not JSON"))
        );
    }
    let long = place.taken(long).await;
    assert_eq!(long.runs, Some(0));
    assert!(long.problem.as_deref().unwrap().contains("args"), "{:?}", long.problem);
    assert_eq!((place.taken(odd).await.runs, place.taken(odd).await.problem), (Some(0), None));
    for event in [list, good] {
        assert_eq!(place.taken(event).await.runs, Some(1));
    }
    let runs = place.runs_of(job.id, 2, RunState::is_ended).await;
    assert!(runs.iter().all(|run| run.state == RunState::Succeeded), "{runs:?}");
    node.stop().await;
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_event_says_reaches_the_job() {
    let place = Place::new().await;
    let mut functions = tasuki::Functions::default();
    functions.add("pay", |args: serde_json::Value, call| async move {
        call.log(format!("{args} {}", call.event_payload().unwrap_or_default()));
        Ok(())
    });
    let node = place.node_with(functions).await;
    let script = r#"echo "$1,$2"; echo "$TASUKI_ARGS"; echo "$TASUKI_EVENT_PAYLOAD""#;
    let argv = ["sh", "-c", script, "sh", "order {order}", "{currency}"];
    let args = json!({"currency": "EUR", "order": 0}).as_object().unwrap().clone();
    let work = Work { args: args.clone(), ..command(&argv) };
    let paid = || listening(&["order.paid"], None);
    let command = place.job("command", paid(), spec(&work)).await.id;
    let work = Work { args, ..Work::new(What::Function("pay".to_owned())) };
    let function = place.job("function", paid(), spec(&work)).await.id;

    let payload = json!({"order": "7 8", "who": {"name": "A; rm"}});
    place.emit(&told("order.paid", &payload)).await;
    let all = r#"{"currency":"EUR","order":"7 8","who":{"name":"A; rm"}}"#;
    let ended = |state| state == RunState::Succeeded;
    let run = place.runs_of(command, 1, ended).await.remove(0);
    assert_eq!(place.log(run.id).await, ["order 7 8,EUR", all, &payload.to_string()]);
    let run = place.runs_of(function, 1, ended).await.remove(0);
    assert_eq!(place.log(run.id).await, [format!("{all} {payload}")]);

    // What is no object is no arguments, but it is what happened.
    place.emit(&told("order.paid", &json!([1, 2]))).await;
    let run = place.runs_of(command, 2, ended).await.remove(1);
    assert_eq!(
        place.log(run.id).await,
        ["order 0,EUR", r#"{"currency":"EUR","order":0}"#, "[1,2]"]
    );
    node.stop().await;
    place.end().await;
}

/// The definition that an operator saves is the one that listens.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_made_by_an_operator_hears_the_next_event() {
    let place = Place::new().await;
    let node = place.node().await;
    let operator = place.operator();
    let by = Actor { name: "ann".to_owned(), address: None, role: Role::Author };
    let draft = JobDraft {
        trigger: listening(&["file.ready"], None),
        backoff: Some(Duration::from_millis(10)),
        ..JobDraft::new(command(&["echo", "{name}"]))
    };
    let job = operator.create_job(&by, "import", &draft).await.unwrap().job;
    place.emit(&told("file.ready", &json!({"name": "a.csv"}))).await;
    let run = place.runs_of(job.id, 1, RunState::is_ended).await.remove(0);
    assert_eq!(place.log(run.id).await, ["a.csv"]);

    let quiet = JobDraft { trigger: listening(&["file.gone"], None), ..draft };
    operator.edit_job(&by, job.seen(), &quiet).await.unwrap();
    let event = place.taken(place.emit(&told("file.ready", &json!({}))).await).await;
    assert_eq!(event.runs, Some(0));
    node.stop().await;
    place.end().await;
}
