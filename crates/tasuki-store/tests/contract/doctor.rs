//! `doctor`: a healthy database has no findings, and each way of breaking one has its own.

use std::sync::atomic::{AtomicU32, Ordering};

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::run::transition::Verb;
use tasuki_core::{Epoch, EventId, Origin, RunId, RunState, WorkerId};
use tasuki_store::{AssignBatch, Writer, Dialect, NewRun, Severity, Store, DueRun};

use crate::given::{Like, TTL, TestStore, contract, noon};
use crate::matrix::try_verb;

/// Breaks the data by hand, as its owner could, past the checks that would refuse it.
async fn typed(store: &TestStore, text: &str) {
    store.spoil();
    store.script(text).await.unwrap_or_else(|error| panic!("{text}: {error}"));
}

/// Takes a check constraint away.
async fn unchecked(store: &TestStore, constraint: &str) {
    let text = match store.dialect() {
        Dialect::Sqlite => "pragma ignore_check_constraints = on".to_owned(),
        Dialect::Postgres | Dialect::MySql => {
            format!("alter table tasuki_run drop constraint {constraint}")
        }
    };
    typed(store, &text).await;
}

/// Exactly one finding, of this check, with these words and about this.
async fn finds(store: &TestStore, check: &str, what: &str, about: &str) {
    let found = store.findings().await;
    let [only] = &found[..] else { panic!("{check} {what}: {found:?}") };
    assert!(
        only.starts_with(&format!("{check}: ")) && only.contains(what),
        "{check} {what}: {only}"
    );
    assert!(only.contains(about), "{about}: {only}");
}

fn exclusive() -> Like {
    Like { concurrency: ConcurrencyPolicy::Forbid, ..Like::default() }
}

async fn run_named(store: &TestStore, id: RunId, set: &str) {
    typed(store, &format!("update tasuki_run set {set} where id = {id}")).await;
}

/// An event row by hand, and its id: the number.
async fn event(store: &TestStore, id: i64, processed: bool, runs: Option<i64>) {
    let runs = runs.map_or("null".to_owned(), |runs| runs.to_string());
    let at = if processed { "1" } else { "null" };
    let text = format!(
        "insert into tasuki_event (id, event_type, created_at, processed_at, runs) values ({id}, 'x', 1, {at}, {runs})"
    );
    typed(store, &text).await;
}

async fn run_of_event(store: &TestStore, id: i64) -> RunId {
    let job = store.given_job(&Like::default()).await;
    let new = NewRun { origin: Origin::Event, event: Some(EventId(id)), ..NewRun::task(&job) };
    store.create(Writer::Api, &[new]).await.unwrap()[0].run
}

/// A new term, and an assignment in it, on connections of its own.
fn lead_and_assign(store: &TestStore, wanted: DueRun) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let other = Store::open(&store.url, 1).await.unwrap();
        other.set_clock(Some(noon()));
        assert!(other.depose("test", store.epoch).await.unwrap());
        let epoch = other.mint(store.worker, store.epoch, Epoch(0), TTL).await.unwrap().unwrap();
        let batch = AssignBatch {
            epoch,
            worker: store.worker,
            token: store.token(),
            runs: &[wanted],
            assign_ahead: TTL,
            reassign_after: TTL,
        };
        assert_eq!(other.assign(&batch).await.unwrap(), [wanted.run]);
        other.close().await;
    });
}

contract! {
    /// Runs in every state, also of jobs that allow one at a time, and after every verb.
    async fn a_database_brought_through_every_state_is_clean(store: TestStore) {
        for &state in RunState::ALL {
            store.at(0);
            store.given_run(state).await;
            store.given_run_like(state, &exclusive()).await;
        }
        assert_eq!(store.findings().await, [] as [String; 0]);
        for &verb in Verb::ALL.iter().filter(|&&verb| verb != Verb::Create) {
            for &state in RunState::ALL {
                store.at(0);
                try_verb(store, verb, state).await;
            }
        }
        let report = store.doctor(|| store.clock()).await.unwrap();
        assert!(report.is_clean() && report.is_complete(), "{:?}", report.findings().collect::<Vec<_>>());
    }

    /// Everything is seen at one moment: what moves while the doctor looks is no finding. Here, between
    /// the look at the term and the look at the runs, another leads and assigns.
    async fn a_database_that_is_being_worked_on_is_clean(store: TestStore) {
        let run = store.given_run(RunState::Pending).await.id;
        let wanted = store.wanted(run).await;
        let moves = AtomicU32::new(0);
        let report = store
            .doctor(|| {
                if moves.fetch_add(1, Ordering::Relaxed) == 0 {
                    std::thread::scope(|scope| scope.spawn(|| lead_and_assign(store, wanted)).join().unwrap());
                }
                noon()
            })
            .await
            .unwrap();
        assert!(report.is_clean(), "{:?}", report.findings().collect::<Vec<_>>());
        assert_eq!(store.run_now(run).await.epoch, Some(Epoch(2)), "it did move");
    }

    async fn ids_with_gaps_and_at_the_end_of_the_world_are_all_looked_at(store: TestStore) {
        store.spoil();
        for id in [-5, 700_000, 5_000_000_000, i64::MAX] {
            typed(store, &format!("insert into tasuki_run (id, job_id, job_version, origin, lane, exclusive, max_attempts, tries_allowed, scheduled_for, created_at) values ({id}, 1, 1, 'task', '', 0, 1, 1, 1, 1)")).await;
        }
        finds(store, "I19", "waits but is not in due", r#"["run -5", "run 700000", "run 5000000000", "run 9223372036854775807"]"#).await;
    }

    async fn a_pending_migration_is_found_and_nothing_else_is_looked_at(store: TestStore) {
        typed(store, "delete from tasuki_migration where version = 5").await;
        finds(store, "schema", "has not been applied", "5 views").await;
        let report = store.doctor(noon).await.unwrap();
        assert!(!report.is_complete() && report.checks.iter().filter(|check| check.done).count() == 1);
    }

    async fn a_newer_schema_is_found(store: TestStore) {
        typed(store, "insert into tasuki_migration (version, name, checksum, applied_at) values (99, 'x', 'y', 1)").await;
        finds(store, "schema", "schema 99", "").await;
    }

    async fn a_migration_that_broke_off_is_found(store: TestStore) {
        typed(store, "update tasuki_migration set applied_at = null where version = 5").await;
        finds(store, "schema", "broke off", "").await;
    }

    async fn an_empty_database_is_told(store: TestStore) {
        typed(store, "drop table tasuki_migration").await;
        finds(store, "schema", "no tables of tasuki", "").await;
    }

    async fn a_missing_trigger_is_found(store: TestStore) {
        let on = if store.dialect() == Dialect::Postgres { " on tasuki_run" } else { "" };
        typed(store, &format!("drop trigger tasuki_run_legal_move{on}")).await;
        finds(store, "triggers", "is missing", "tasuki_run_legal_move on tasuki_run").await;
    }

    async fn a_trigger_that_sleeps_is_found(store: TestStore) {
        if store.dialect() != Dialect::Postgres {
            return; // nowhere else can one be switched off
        }
        typed(store, "alter table tasuki_attempt enable trigger tasuki_attempt_no_update").await;
        finds(store, "triggers", "not enabled ALWAYS", "tasuki_attempt_no_update").await;
        typed(store, "alter table tasuki_attempt disable trigger tasuki_attempt_no_update").await;
        finds(store, "triggers", "not enabled ALWAYS", "tasuki_attempt_no_update").await;
    }

    async fn a_clock_that_is_off_is_a_warning(store: TestStore) {
        for (seconds, expected) in [
            (2, None),
            (-2, None),
            (3, Some("the database's clock is 3.0 s behind this machine's")),
            (-3, Some("the database's clock is 3.0 s ahead of this machine's")),
        ] {
            let here = noon() + SignedDuration::from_secs(seconds);
            let report = store.doctor(|| here).await.unwrap();
            let found = report.findings().next();
            assert_eq!(found.map(|(_, one)| &*one.what), expected);
            assert!(found.is_none_or(|(check, one)| check == "clock" && one.severity == Severity::Warning));
        }
    }

    async fn settings_that_do_not_agree_are_found(store: TestStore) {
        typed(store, "insert into tasuki_setting (name, value, changed_at, changed_by) values ('heartbeat_ttl', '2s', 1, 'x')").await;
        finds(store, "settings", "heartbeat_ttl (2s) must be at least three times", "").await;
    }

    async fn i1_an_attempt_without_a_worker(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        run_named(store, run, "worker_id = null").await;
        finds(store, "I1", "lacks its worker", &format!("run {run}")).await;
    }

    async fn i1_a_waiting_run_with_an_attempt(store: TestStore) {
        let run = store.given_run(RunState::Orphaned).await.id;
        run_named(store, run, "assigned_at = 1").await;
        finds(store, "I1", "a run that waits has", &format!("run {run}")).await;
    }

    async fn i1_a_lease_of_another(store: TestStore) {
        let other = WorkerId::from_random(7);
        store.register(other).await;
        let run = store.given_run(RunState::Running).await.id;
        typed(store, &format!("update tasuki_lease set worker_id = (select w.id from tasuki_worker w where w.id <> (select r.worker_id from tasuki_run r where r.id = {run}))")).await;
        finds(store, "I1", "belongs to another worker", &format!("run {run}")).await;
    }

    async fn i2_a_missing_key(store: TestStore) {
        let (text, key) = match store.dialect() {
            Dialect::Sqlite => ("drop table tasuki_event; create table tasuki_event (id integer primary key, processed_at integer, runs integer)", "tasuki_event (dedupe_key, source)"),
            Dialect::Postgres => ("drop index tasuki_run_idempotency", "tasuki_run (idempotency_key)"),
            Dialect::MySql => ("alter table tasuki_run drop index tasuki_run_idempotency", "tasuki_run (idempotency_key)"),
        };
        typed(store, text).await;
        finds(store, "I2", "a unique key is missing", key).await;
    }

    async fn i3_an_end_without_a_time(store: TestStore) {
        let run = store.given_run(RunState::Succeeded).await.id;
        unchecked(store, "tasuki_run_state").await;
        run_named(store, run, "finished_at = null").await;
        finds(store, "I3", "has ended and has none", &format!("run {run}")).await;
    }

    async fn i3_an_ended_run_that_is_due(store: TestStore) {
        let run = store.given_run(RunState::Succeeded).await.id;
        typed(store, &format!("insert into tasuki_due (lane, due_at, run_id, exclusive) values ('', 1, {run}, 0)")).await;
        finds(store, "I3", "has ended is in due", &format!("run {run}")).await;
    }

    async fn i3_an_ended_run_that_holds(store: TestStore) {
        let run = store.given_run_like(RunState::Failed, &exclusive()).await.id;
        typed(store, &format!("insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token) select job_id, scope_kind, scope_id, id, lease_token from tasuki_run where id = {run}")).await;
        finds(store, "I3", "has ended has a hold", &format!("run {run}")).await;
    }

    async fn i4_a_term_that_is_not_the_newest(store: TestStore) {
        typed(store, "insert into tasuki_term_history (epoch, holder, minted_at) select 9, holder, minted_at from tasuki_term_history").await;
        finds(store, "I4", "not the newest", "epoch 1").await;
    }

    async fn i4_a_history_out_of_order(store: TestStore) {
        typed(store, "insert into tasuki_term_history (epoch, holder, minted_at) select 0, holder, minted_at + 1 from tasuki_term_history").await;
        finds(store, "I4", "epoch 1 was minted at an earlier time", "").await;
    }

    async fn i4_a_leader_lease_ahead_of_the_term(store: TestStore) {
        typed(store, "update tasuki_leader_lease set epoch = 2").await;
        finds(store, "I4", "the leader's lease is missing or ahead", "epoch 1").await;
    }

    async fn i4_an_assignment_from_the_future(store: TestStore) {
        let run = store.given_run(RunState::Succeeded).await.id;
        run_named(store, run, "epoch = 2").await;
        finds(store, "I4", "a run was assigned in a term that was never minted", &format!("run {run}")).await;
    }

    async fn i4_a_lease_from_the_future(store: TestStore) {
        store.given_run(RunState::Running).await;
        typed(store, "update tasuki_lease set epoch = 2").await;
        finds(store, "I4", "a lease was given in a term", "").await;
    }

    async fn i6_an_attempt_in_two_places(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        typed(store, &format!("insert into tasuki_attempt (run_id, attempt_no, outcome, token, worker_id, job_version, assigned_at, finished_at) select id, attempt_no, 'RELEASED', lease_token, worker_id, 1, 1, 1 from tasuki_run where id = {run}")).await;
        finds(store, "I6", "has the number of one on the row", &format!("run {run}")).await;
    }

    async fn i7_a_success_that_is_none(store: TestStore) {
        let run = store.given_run(RunState::Succeeded).await.id;
        run_named(store, run, "outcome = 'FAILED'").await;
        finds(store, "I7", "disagree on success", &format!("run {run}")).await;
    }

    async fn i7_a_second_success(store: TestStore) {
        let run = store.given_run(RunState::RetryWait).await.id;
        let columns = "run_id, attempt_no, outcome, token, worker_id, job_version, assigned_at, started_at, finished_at";
        let copied = columns.replace("outcome", "'SUCCEEDED'");
        typed(store, &format!("create table kept as select * from tasuki_attempt; delete from tasuki_attempt; insert into tasuki_attempt ({columns}) select {copied} from kept")).await;
        finds(store, "I7", "succeeded without ending its run", &format!("run {run}")).await;
    }

    async fn i8_an_attempt_that_is_missing(store: TestStore) {
        let run = store.given_run(RunState::Orphaned).await.id;
        typed(store, "delete from tasuki_attempt").await;
        finds(store, "I8", "not all there", &format!("run {run}")).await;
    }

    async fn i8_tries_that_nobody_made(store: TestStore) {
        let run = store.given_run(RunState::Orphaned).await.id;
        run_named(store, run, "tries = 1").await;
        finds(store, "I8", "another number of tries than of started attempts", &format!("run {run}")).await;
    }

    async fn i8_more_tries_than_allowed(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        unchecked(store, "tasuki_run_tries").await;
        run_named(store, run, "tries_allowed = 0").await;
        finds(store, "I8", "more tries than it is allowed", &format!("run {run}")).await;
    }

    async fn i12_skipped_after_a_start(store: TestStore) {
        let run = store.given_run(RunState::Skipped).await.id;
        unchecked(store, "tasuki_run_state").await;
        run_named(store, run, "tries = 1, attempt_no = 1").await;
        typed(store, &format!("insert into tasuki_attempt (run_id, attempt_no, outcome, token, worker_id, job_version, assigned_at, started_at, finished_at) select {run}, 1, 'FAILED', id, id, 1, 1, 1, 1 from tasuki_worker")).await;
        finds(store, "I12", "skipped although it had started", &format!("run {run}")).await;
    }

    async fn i13_a_run_without_its_hold(store: TestStore) {
        let run = store.given_run_like(RunState::Assigned, &exclusive()).await.id;
        typed(store, "delete from tasuki_hold").await;
        finds(store, "I13", "does not have the hold", &format!("run {run}")).await;
    }

    async fn i13_a_hold_of_nobody(store: TestStore) {
        let run = store.given_run_like(RunState::Orphaned, &exclusive()).await.id;
        typed(store, &format!("insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token) select r.job_id, r.scope_kind, r.scope_id, r.id, w.id from tasuki_run r, tasuki_worker w where r.id = {run}")).await;
        finds(store, "I13", "a hold is not that of a run", &format!("run {run}")).await;
    }

    async fn i14_a_start_before_its_time(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        run_named(store, run, "started_at = scheduled_for - 1").await;
        finds(store, "I14", "started before it was due", &format!("run {run}")).await;
    }

    async fn i14_a_run_taken_too_soon(store: TestStore) {
        let run = store.given_run(RunState::Orphaned).await.id;
        store.given_assigned(run).await;
        run_named(store, run, "assigned_at = assigned_at - 1").await;
        finds(store, "I14", "taken before its attempt before had ended", &format!("run {run}")).await;
    }

    async fn i14_attempts_that_overlap(store: TestStore) {
        let run = store.given_run(RunState::Orphaned).await.id;
        typed(store, &format!("update tasuki_run set attempt_no = 2 where id = {run}; insert into tasuki_attempt (run_id, attempt_no, outcome, token, worker_id, job_version, assigned_at, finished_at) select run_id, 2, outcome, token, worker_id, 1, finished_at - 1, finished_at from tasuki_attempt")).await;
        finds(store, "I14", "an attempt was taken before the one before it", &format!("run {run}")).await;
    }

    async fn i16_a_worker_without_room(store: TestStore) {
        store.given_run(RunState::Running).await;
        store.given_run(RunState::Assigned).await;
        typed(store, "update tasuki_worker set slots = 1, function_slots = 0").await;
        assert_eq!(store.findings().await, [] as [String; 0]);
        typed(store, "update tasuki_worker set slots = 0").await;
        finds(store, "I16", "more than it has room for", "1 run, 0 fit").await;
    }

    /// A worker claims again while as many ends are on their way, and those still show as RUNNING; and commands that it
    /// claims have slots besides those that are assigned.
    async fn i16_there_is_room_for_ends_on_their_way_and_for_claimed_commands(store: TestStore) {
        for _ in 0..6 {
            store.given_run(RunState::Running).await;
        }
        for slots in ["slots = 2, function_slots = 0", "slots = 0, function_slots = 3"] {
            typed(store, &format!("update tasuki_worker set {slots}")).await;
            assert_eq!(store.findings().await, [] as [String; 0]);
        }
        typed(store, "update tasuki_worker set slots = 1, function_slots = 1").await;
        finds(store, "I16", "more than it has room for", "6 run, 5 fit").await;
    }

    async fn i18_events_and_their_runs(store: TestStore) {
        event(store, 1, false, None).await;
        event(store, 2, true, Some(0)).await;
        event(store, 3, true, Some(2)).await;
        run_of_event(store, 3).await;
        run_of_event(store, 3).await;
        assert_eq!(store.findings().await, [] as [String; 0]);
        run_of_event(store, 3).await;
        finds(store, "I18", "another number of runs than it says", "event 3: 3 there, 2 said").await;
    }

    async fn i18_an_event_that_has_runs_but_is_not_marked(store: TestStore) {
        event(store, 1, false, None).await;
        run_of_event(store, 1).await;
        finds(store, "I18", "not marked as processed", "event 1").await;
    }

    async fn i18_an_event_without_its_runs(store: TestStore) {
        event(store, 1, true, Some(2)).await;
        finds(store, "I18", "its runs are not there", "event 1").await;
    }

    async fn i18_an_event_that_does_not_say(store: TestStore) {
        event(store, 1, true, None).await;
        finds(store, "I18", "does not say how many", "event 1").await;
    }

    async fn i19_a_waiting_run_that_nobody_would_find(store: TestStore) {
        let run = store.given_run(RunState::RetryWait).await.id;
        typed(store, "delete from tasuki_due").await;
        finds(store, "I19", "waits but is not in due", &format!("run {run}")).await;
    }

    async fn i19_a_due_row_that_says_something_else(store: TestStore) {
        let run = store.given_run_like(RunState::Pending, &exclusive()).await.id;
        typed(store, "update tasuki_due set exclusive = 0").await;
        finds(store, "I19", "waits but is not in due as it should be", &format!("run {run}")).await;
    }

    async fn i19_a_carried_run_that_is_due(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        typed(store, &format!("insert into tasuki_due (lane, due_at, run_id, exclusive) values ('', 1, {run}, 0)")).await;
        finds(store, "I19", "is in due that does not wait", &format!("run {run}")).await;
    }

    async fn i19_a_run_under_no_lease(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        for broken in ["update tasuki_lease set run_ids = '[]'", "update tasuki_lease set run_ids = 'nonsense'", "delete from tasuki_lease"] {
            typed(store, broken).await;
            finds(store, "I19", "under no lease that lists it", &format!("run {run}")).await;
        }
    }
}
