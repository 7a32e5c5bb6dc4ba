//! `tasuki bench` with very small parameters: the values are meaningless, but each benchmark reports all its
//! measurements and leaves a clean database.

use serde_json::Value;
use tasuki_store::{RunFilter, Store};

use crate::database::TestDatabase;

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

/// Runs a benchmark and returns its JSON report.
fn run_bench(database: &TestDatabase, arguments: &[&str]) -> Value {
    let report = database.tasuki(&[&["bench"], arguments, &["--json"]].concat());
    let document = report.strip_prefix("exit 0\n").unwrap_or_else(|| panic!("{report}"));
    // A warning about a missing permission (checkpoint) may follow the JSON.
    let end = document.rfind("}\n").unwrap_or_else(|| panic!("{report}"));
    serde_json::from_str(&document[..=end]).unwrap_or_else(|error| panic!("{error}: {report}"))
}

/// Returns the measurements in a report with their number of rounds, after checking all rates.
fn list_figures(report: &Value) -> Vec<(&str, usize)> {
    let rates = |figure: &Value, whose: &str| {
        let each = figure[whose]["each"].as_array().unwrap();
        assert!(each.iter().all(|rate| rate.as_f64().unwrap() > 0.0), "{report}");
        assert!(figure[whose]["median"].as_f64().unwrap() > 0.0, "{report}");
        each.len()
    };
    let figures = report["figures"].as_array().unwrap().iter().map(|figure| {
        let rounds = rates(figure, "tasuki");
        assert_eq!(rates(figure, "bare"), rounds);
        assert_eq!(rates(figure, "ratio"), rounds);
        (figure["what"].as_str().unwrap(), rounds)
    });
    figures.collect()
}

/// Runs `work` with the store of a test database.
fn query<T>(database: &TestDatabase, work: impl AsyncFnOnce(&Store) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&database.url, 1).await.unwrap();
        let result = work(&store).await;
        store.close().await;
        result
    })
}

/// Checks that the benchmark left no tables, runs and jobs, and that the doctor finds nothing.
fn expect_clean_database(database: &TestDatabase) {
    // The baseline tables are dropped: they can be created again.
    for name in ["run", "queue"] {
        database.run_script(&format!("create table tasuki_bench_{name} (id integer)"));
        database.run_script(&format!("drop table tasuki_bench_{name}"));
    }
    query(database, async |store| {
        let runs = store.list_runs(&RunFilter::default(), None, 1).await.unwrap().runs;
        assert_eq!(runs, [], "no run is left");
        assert_eq!(store.list_jobs(None, 1).await.unwrap(), [], "no job is left");
    });
    let doctor = database.tasuki(&["doctor"]);
    assert!(doctor.starts_with("exit 0\n"), "{doctor}");
}

fn check_drain(database: &TestDatabase) {
    let report = run_bench(database, DRAIN);
    assert_eq!(list_figures(&report), [("drain by a node", 2)]);
    expect_clean_database(database);
}

fn check_enqueue(database: &TestDatabase) {
    let report = run_bench(database, ENQUEUE);
    let expected = [("submit one by one, acknowledged", 1), ("submit in bulk", 1)];
    assert_eq!(list_figures(&report), expected);
    expect_clean_database(database);
}

fn check_growth(database: &TestDatabase) {
    let report = run_bench(database, GROWTH);
    let expected = [("drain beside future runs", 1), ("drain beside ended runs", 1)];
    assert_eq!(list_figures(&report), expected);
    // The database in the URL was not migrated.
    let doctor = database.tasuki(&["doctor"]);
    assert!(doctor.starts_with("exit 1\n"), "{doctor}");
}

#[test]
fn drain_sqlite() {
    check_drain(&TestDatabase::new(None));
}

#[test]
fn drain_postgres() {
    check_drain(&TestDatabase::new(Some("TASUKI_TEST_PG")));
}

#[test]
fn drain_mysql() {
    check_drain(&TestDatabase::new(Some("TASUKI_TEST_MYSQL")));
}

#[test]
fn enqueue_sqlite() {
    check_enqueue(&TestDatabase::new(None));
}

#[test]
fn enqueue_postgres() {
    check_enqueue(&TestDatabase::new(Some("TASUKI_TEST_PG")));
}

#[test]
fn enqueue_mysql() {
    check_enqueue(&TestDatabase::new(Some("TASUKI_TEST_MYSQL")));
}

#[test]
fn growth_sqlite() {
    let database = TestDatabase::new(None);
    check_growth(&database);
    let remaining =
        std::fs::read_dir(&database.folder).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(remaining.collect::<Vec<_>>(), [] as [&str; 0]);
}

#[test]
fn growth_postgres() {
    check_growth(&TestDatabase::new(Some("TASUKI_TEST_PG")));
}

#[test]
fn growth_mysql() {
    check_growth(&TestDatabase::new(Some("TASUKI_TEST_MYSQL")));
}

#[test]
fn latency() {
    let database = TestDatabase::new(None);
    let report = run_bench(&database, LATENCY);
    for times in ["from_call", "from_ack", "bare"] {
        assert_eq!(report[times]["samples"], 5, "{report}");
    }
    let quantile = |whose: &str, name: &str| report[whose][name].as_i64().unwrap();
    assert!(0 < quantile("bare", "p50_us"), "{report}");
    assert!(quantile("from_ack", "max_us") <= quantile("from_call", "max_us"), "{report}");
    assert!(report["ratio"]["p50"].as_f64().unwrap() > 0.0, "{report}");
    expect_clean_database(&database);
}

#[test]
fn spawn() {
    let database = TestDatabase::new(None);
    assert_eq!(list_figures(&run_bench(&database, SPAWN)), [("commands by a node", 1)]);
    expect_clean_database(&database);
}

#[test]
fn reports_can_be_text() {
    let database = TestDatabase::new(None);
    for arguments in [DRAIN, LATENCY] {
        let report = database.tasuki(&[&["bench"], arguments].concat());
        let text = report.strip_prefix("exit 0\n").unwrap_or_else(|| panic!("{report}"));
        assert!(text.contains(" on SQLite: ") && text.contains("\n  ratio "), "{report}");
    }
}

#[test]
fn a_database_with_other_jobs_is_refused_and_not_changed() {
    let database = TestDatabase::new(None);
    database.tasuki(&["migrate"]);
    database.run_script("insert into tasuki_job (id, name, trigger_type, created_at, updated_at) values (1, 'nightly', 'task', 1, 1)");
    database.run_script("insert into tasuki_job_version (job_id, version, kind, spec, lane, concurrency, max_attempts, max_releases, backoff_us, backoff_cap_us, created_at) values (1, 1, 'function', '{}', 'nightly', 'allow', 1, 1, 0, 0, 1)");
    for arguments in [DRAIN, ENQUEUE, LATENCY, SPAWN] {
        let report = database.tasuki(&[&["bench"], arguments].concat());
        let refused = "exit 1\nerror: database: found other jobs or an active worker, expected a database that only benchmarks use\n";
        assert_eq!(report, refused);
    }
    let jobs = query(&database, async |store| store.list_jobs(None, 2).await.unwrap());
    assert_eq!(jobs.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["nightly"]);
}
