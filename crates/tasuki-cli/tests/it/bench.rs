//! `tasuki bench`, with so little to do that its figures mean nothing: that each measures what it says, beside
//! a limit, and leaves the database as it should.

use serde_json::Value;
use tasuki_store::{RunFilter, Store};

use crate::database::Place;

const DRAIN: &[&str] = &["drain", "--tasks", "300", "--rounds", "2", "--bare-batch", "100"];
const ENQUEUE: &[&str] = &[
    "enqueue",
    "--tasks",
    "60",
    "--callers",
    "4",
    "--bulk-tasks",
    "100",
    "--bulk",
    "50",
    "--rounds",
    "1",
];
const LATENCY: &[&str] = &["latency", "--samples", "5", "--pause-ms", "1"];
const SPAWN: &[&str] = &["spawn", "--commands", "12", "--slots", "4", "--rounds", "1"];
const GROWTH: &[&str] = &["growth", "--present", "1500", "--tasks", "50", "--rounds", "1"];

/// What a bench says as JSON.
fn bench(place: &Place, arguments: &[&str]) -> Value {
    let told = place.tasuki(&[&["bench"], arguments, &["--json"]].concat());
    let document = told.strip_prefix("exit 0\n").unwrap_or_else(|| panic!("{told}"));
    // What may not be done on this server (a checkpoint) is told after it.
    let end = document.rfind("}\n").unwrap_or_else(|| panic!("{told}"));
    serde_json::from_str(&document[..=end]).unwrap_or_else(|error| panic!("{error}: {told}"))
}

/// The figures of a bench: what was measured, ours and the limit each round.
fn figures(told: &Value) -> Vec<(&str, usize)> {
    let rates = |figure: &Value, whose: &str| {
        let each = figure[whose]["each"].as_array().unwrap();
        assert!(each.iter().all(|rate| rate.as_f64().unwrap() > 0.0), "{told}");
        assert!(figure[whose]["median"].as_f64().unwrap() > 0.0, "{told}");
        each.len()
    };
    let figures = told["figures"].as_array().unwrap().iter().map(|figure| {
        let rounds = rates(figure, "tasuki");
        assert_eq!(rates(figure, "bare"), rounds);
        assert_eq!(rates(figure, "ratio"), rounds);
        (figure["what"].as_str().unwrap(), rounds)
    });
    figures.collect()
}

/// Asks a database something.
fn ask<T>(place: &Place, question: impl AsyncFnOnce(&Store) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&place.url, 1).await.unwrap();
        let answer = question(&store).await;
        store.close().await;
        answer
    })
}

/// That nothing of the bench is left, and nothing is wrong with what is.
fn is_clean(place: &Place) {
    // Its tables are gone: they can be made.
    for name in ["run", "queue"] {
        place.script(&format!("create table tasuki_bench_{name} (id integer)"));
        place.script(&format!("drop table tasuki_bench_{name}"));
    }
    ask(place, async |store| {
        let runs = store.runs(&RunFilter::default(), None, 1).await.unwrap().runs;
        assert_eq!(runs, [], "no run is left");
        assert_eq!(store.jobs(None, 1).await.unwrap(), [], "no job is left");
    });
    let doctor = place.tasuki(&["doctor"]);
    assert!(doctor.starts_with("exit 0\n"), "{doctor}");
}

fn drains(place: &Place) {
    let told = bench(place, DRAIN);
    assert_eq!(figures(&told), [("drain by a node", 2)]);
    is_clean(place);
}

fn enqueues(place: &Place) {
    let told = bench(place, ENQUEUE);
    let expected = [("submit one by one, acknowledged", 1), ("submit in bulk", 1)];
    assert_eq!(figures(&told), expected);
    is_clean(place);
}

fn grows(place: &Place) {
    let told = bench(place, GROWTH);
    let expected =
        [("drain beside runs that lie ahead", 1), ("drain beside runs that have ended", 1)];
    assert_eq!(figures(&told), expected);
    // The database that was named was not touched.
    let doctor = place.tasuki(&["doctor"]);
    assert!(doctor.starts_with("exit 1\n"), "{doctor}");
}

#[test]
fn drain_sqlite() {
    drains(&Place::new(None));
}

#[test]
fn drain_postgres() {
    drains(&Place::new(Some("TASUKI_TEST_PG")));
}

#[test]
fn drain_mysql() {
    drains(&Place::new(Some("TASUKI_TEST_MYSQL")));
}

#[test]
fn enqueue_sqlite() {
    enqueues(&Place::new(None));
}

#[test]
fn enqueue_postgres() {
    enqueues(&Place::new(Some("TASUKI_TEST_PG")));
}

#[test]
fn enqueue_mysql() {
    enqueues(&Place::new(Some("TASUKI_TEST_MYSQL")));
}

#[test]
fn growth_sqlite() {
    let place = Place::new(None);
    grows(&place);
    let left = std::fs::read_dir(&place.folder).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), [] as [&str; 0]);
}

#[test]
fn growth_postgres() {
    grows(&Place::new(Some("TASUKI_TEST_PG")));
}

#[test]
fn growth_mysql() {
    grows(&Place::new(Some("TASUKI_TEST_MYSQL")));
}

#[test]
fn latency() {
    let place = Place::new(None);
    let told = bench(&place, LATENCY);
    for times in ["from_call", "from_ack", "bare"] {
        assert_eq!(told[times]["samples"], 5, "{told}");
    }
    let quantile = |whose: &str, name: &str| told[whose][name].as_i64().unwrap();
    assert!(0 < quantile("bare", "p50_us"), "{told}");
    assert!(quantile("from_ack", "max_us") <= quantile("from_call", "max_us"), "{told}");
    assert!(told["ratio"]["p50"].as_f64().unwrap() > 0.0, "{told}");
    is_clean(&place);
}

#[test]
fn spawn() {
    let place = Place::new(None);
    assert_eq!(figures(&bench(&place, SPAWN)), [("commands by a node", 1)]);
    is_clean(&place);
}

#[test]
fn figures_are_told_in_words_too() {
    let place = Place::new(None);
    for arguments in [DRAIN, LATENCY] {
        let told = place.tasuki(&[&["bench"], arguments].concat());
        let words = told.strip_prefix("exit 0\n").unwrap_or_else(|| panic!("{told}"));
        assert!(words.contains(" on SQLite: ") && words.contains("\n  ratio "), "{told}");
    }
}

#[test]
fn a_database_where_others_are_at_work_is_refused_and_left_alone() {
    let place = Place::new(None);
    place.tasuki(&["migrate"]);
    place.script("insert into tasuki_job (id, name, trigger_type, created_at, updated_at) values (1, 'nightly', 'task', 1, 1)");
    place.script("insert into tasuki_job_version (job_id, version, kind, spec, lane, concurrency, max_attempts, max_releases, backoff_us, backoff_cap_us, created_at) values (1, 1, 'function', '{}', 'nightly', 'allow', 1, 1, 0, 0, 1)");
    for arguments in [DRAIN, ENQUEUE, LATENCY, SPAWN] {
        let told = place.tasuki(&[&["bench"], arguments].concat());
        let refused = "exit 1\nerror: database: found others at work, expected a database made for the bench\n";
        assert_eq!(told, refused);
    }
    let jobs = ask(&place, async |store| store.jobs(None, 2).await.unwrap());
    assert_eq!(jobs.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["nightly"]);
}
