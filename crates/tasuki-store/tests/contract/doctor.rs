//! `doctor`: a healthy database has no findings, and each kind of broken data causes exactly one finding.

use std::sync::atomic::{AtomicU32, Ordering};

use jiff::SignedDuration;
use tasuki_core::concurrency::ConcurrencyPolicy;
use tasuki_core::run::transition::RunVerb;
use tasuki_core::{Epoch, EventId, Origin, RunId, RunState, WorkerId};
use tasuki_store::{AssignRequest, Dialect, DueRun, NewRun, Severity, Store, Writer};

use crate::fixtures::{RunOptions, TTL, TestStore, contract, noon};
use crate::state_verb_matrix::try_verb;

/// Runs SQL that breaks the data, as the owner of the database could, and switches the final doctor check of the test
/// off.
async fn run_sql(store: &TestStore, text: &str) {
    store.skip_doctor();
    store.execute_script(text).await.unwrap_or_else(|error| panic!("{text}: {error}"));
}

/// Drops a check constraint.
async fn drop_check(store: &TestStore, constraint: &str) {
    let text = match store.dialect() {
        Dialect::Sqlite => "pragma ignore_check_constraints = on".to_owned(),
        Dialect::Postgres | Dialect::MySql => {
            format!("alter table tasuki_run drop constraint {constraint}")
        }
    };
    run_sql(store, &text).await;
}

/// Asserts that there is exactly one finding: of this check, with `what` in its text, and with `about` as an example.
async fn assert_only_finding(store: &TestStore, check: &str, what: &str, about: &str) {
    let found = store.doctor_findings().await;
    let [only] = &found[..] else { panic!("{check} {what}: {found:?}") };
    assert!(
        only.starts_with(&format!("{check}: ")) && only.contains(what),
        "{check} {what}: {only}"
    );
    assert!(only.contains(about), "{about}: {only}");
}

fn one_run_at_a_time() -> RunOptions {
    RunOptions { concurrency: ConcurrencyPolicy::Forbid, ..RunOptions::default() }
}

async fn update_run(store: &TestStore, id: RunId, set: &str) {
    run_sql(store, &format!("update tasuki_run set {set} where id = {id}")).await;
}

/// Inserts an event row with this id.
async fn insert_event(store: &TestStore, id: i64, processed: bool, runs: Option<i64>) {
    let runs = runs.map_or("null".to_owned(), |runs| runs.to_string());
    let at = if processed { "1" } else { "null" };
    let text = format!(
        "insert into tasuki_event (id, event_type, created_at, processed_at, runs) values ({id}, 'x', 1, {at}, {runs})"
    );
    run_sql(store, &text).await;
}

async fn create_run_of_event(store: &TestStore, id: i64) -> RunId {
    let job = store.given_job(&RunOptions::default()).await;
    let new = NewRun { origin: Origin::Event, event: Some(EventId(id)), ..NewRun::task(&job) };
    store.create_or_find_runs(Writer::Api, &[new]).await.unwrap()[0].run
}

/// Begins a new term and assigns a run in it, on separate connections.
fn begin_term_and_assign(store: &TestStore, due_run: DueRun) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let other = Store::open(&store.url, 1).await.unwrap();
        other.set_clock(Some(noon()));
        assert!(other.end_term("test", store.epoch).await.unwrap());
        let epoch =
            other.take_leadership(store.worker, store.epoch, Epoch(0), TTL).await.unwrap().unwrap();
        let batch = AssignRequest {
            epoch,
            worker: store.worker,
            token: store.new_token(),
            runs: &[due_run],
            assign_ahead: TTL,
            reassign_after: TTL,
        };
        assert_eq!(other.assign(&batch).await.unwrap(), [due_run.run]);
        other.close().await;
    });
}

contract! {
    /// Runs in every state, also of jobs with `forbid`, and after every verb.
    async fn a_database_with_runs_in_every_state_has_no_findings(store: TestStore) {
        for &state in RunState::ALL {
            store.set_time(0);
            store.given_run(state).await;
            store.given_run_with(state, &one_run_at_a_time()).await;
        }
        assert_eq!(store.doctor_findings().await, [] as [String; 0]);
        for &verb in RunVerb::ALL.iter().filter(|&&verb| verb != RunVerb::Create) {
            for &state in RunState::ALL {
                store.set_time(0);
                try_verb(store, verb, state).await;
            }
        }
        let report = store.check_invariants(|| store.test_time()).await.unwrap();
        assert!(report.is_clean() && report.is_complete(), "{:?}", report.findings().collect::<Vec<_>>());
    }

    /// The doctor reads one snapshot, so changes during its checks cause no finding. Here, between its reads of the
    /// term and of the runs, another leader begins a term and assigns a run.
    async fn changes_during_the_checks_cause_no_findings(store: TestStore) {
        let run = store.given_run(RunState::Pending).await.id;
        let due_run = store.read_due_run(run).await;
        let moves = AtomicU32::new(0);
        let report = store
            .check_invariants(|| {
                if moves.fetch_add(1, Ordering::Relaxed) == 0 {
                    std::thread::scope(|scope| scope.spawn(|| begin_term_and_assign(store, due_run)).join().unwrap());
                }
                noon()
            })
            .await
            .unwrap();
        assert!(report.is_clean(), "{:?}", report.findings().collect::<Vec<_>>());
        assert_eq!(store.read_run(run).await.epoch, Some(Epoch(2)), "the run was assigned meanwhile");
    }

    async fn runs_with_distant_and_extreme_ids_are_all_checked(store: TestStore) {
        store.skip_doctor();
        for id in [-5, 700_000, 5_000_000_000, i64::MAX] {
            run_sql(store, &format!("insert into tasuki_run (id, job_id, job_version, origin, lane, exclusive, max_attempts, tries_allowed, scheduled_for, created_at) values ({id}, 1, 1, 'task', '', 0, 1, 1, 1, 1)")).await;
        }
        assert_only_finding(store, "I19", "is not in the due table", r#"["run -5", "run 700000", "run 5000000000", "run 9223372036854775807"]"#).await;
    }

    async fn a_pending_migration_is_found_and_other_checks_are_skipped(store: TestStore) {
        run_sql(store, "delete from tasuki_migration where version = 1").await;
        assert_only_finding(store, "schema", "has not been applied", "1 initial").await;
        let report = store.check_invariants(noon).await.unwrap();
        assert!(!report.is_complete() && report.checks.iter().filter(|check| check.was_run).count() == 1);
    }

    async fn a_newer_schema_is_found(store: TestStore) {
        run_sql(store, "insert into tasuki_migration (version, name, checksum, applied_at) values (99, 'x', 'y', 1)").await;
        assert_only_finding(store, "schema", "schema version 99", "").await;
    }

    async fn an_interrupted_migration_is_found(store: TestStore) {
        run_sql(store, "update tasuki_migration set applied_at = null where version = 1").await;
        assert_only_finding(store, "schema", "was not completed", "").await;
    }

    async fn an_empty_database_is_reported(store: TestStore) {
        run_sql(store, "drop table tasuki_migration").await;
        assert_only_finding(store, "schema", "no tables of tasuki", "").await;
    }

    async fn a_missing_trigger_is_found(store: TestStore) {
        let on = if store.dialect() == Dialect::Postgres { " on tasuki_run" } else { "" };
        run_sql(store, &format!("drop trigger tasuki_run_legal_transition{on}")).await;
        assert_only_finding(store, "triggers", "is missing", "tasuki_run_legal_transition on tasuki_run").await;
    }

    async fn a_disabled_trigger_is_found(store: TestStore) {
        if store.dialect() != Dialect::Postgres {
            return; // only PostgreSQL can disable a trigger
        }
        run_sql(store, "alter table tasuki_attempt enable trigger tasuki_attempt_no_update").await;
        assert_only_finding(store, "triggers", "not enabled ALWAYS", "tasuki_attempt_no_update").await;
        run_sql(store, "alter table tasuki_attempt disable trigger tasuki_attempt_no_update").await;
        assert_only_finding(store, "triggers", "not enabled ALWAYS", "tasuki_attempt_no_update").await;
    }

    async fn a_wrong_clock_is_a_warning(store: TestStore) {
        for (seconds, expected) in [
            (2, None),
            (-2, None),
            (3, Some("the database's clock is 3.0 s behind this machine's")),
            (-3, Some("the database's clock is 3.0 s ahead of this machine's")),
        ] {
            let here = noon() + SignedDuration::from_secs(seconds);
            let report = store.check_invariants(|| here).await.unwrap();
            let found = report.findings().next();
            assert_eq!(found.map(|(_, one)| &*one.problem), expected);
            assert!(found.is_none_or(|(check, one)| check == "clock" && one.severity == Severity::Warning));
        }
    }

    async fn inconsistent_settings_are_found(store: TestStore) {
        run_sql(store, "insert into tasuki_setting (name, value, changed_at, changed_by) values ('heartbeat_ttl', '2s', 1, 'x')").await;
        assert_only_finding(store, "settings", "heartbeat_ttl (2s) must be at least three times", "").await;
    }

    async fn i1_an_attempt_without_a_worker(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        update_run(store, run, "worker_id = null").await;
        assert_only_finding(store, "I1", "lacks its worker", &format!("run {run}")).await;
    }

    async fn i1_a_waiting_run_with_an_attempt(store: TestStore) {
        let run = store.given_run(RunState::Orphaned).await.id;
        update_run(store, run, "assigned_at = 1").await;
        assert_only_finding(store, "I1", "a waiting run still has", &format!("run {run}")).await;
    }

    async fn i1_a_lease_of_another_worker(store: TestStore) {
        let other = WorkerId::from_random(7);
        store.given_worker(other).await;
        let run = store.given_run(RunState::Running).await.id;
        run_sql(store, &format!("update tasuki_lease set worker_id = (select w.id from tasuki_worker w where w.id <> (select r.worker_id from tasuki_run r where r.id = {run}))")).await;
        assert_only_finding(store, "I1", "belongs to another worker", &format!("run {run}")).await;
    }

    async fn i2_a_missing_key(store: TestStore) {
        let (text, key) = match store.dialect() {
            Dialect::Sqlite => ("drop table tasuki_event; create table tasuki_event (id integer primary key, processed_at integer, runs integer)", "tasuki_event (dedupe_key, source)"),
            Dialect::Postgres => ("drop index tasuki_run_idempotency", "tasuki_run (idempotency_key)"),
            Dialect::MySql => ("alter table tasuki_run drop index tasuki_run_idempotency", "tasuki_run (idempotency_key)"),
        };
        run_sql(store, text).await;
        assert_only_finding(store, "I2", "a unique key is missing", key).await;
    }

    async fn i3_an_ended_run_without_finish_time(store: TestStore) {
        let run = store.given_run(RunState::Succeeded).await.id;
        drop_check(store, "tasuki_run_state").await;
        update_run(store, run, "finished_at = null").await;
        assert_only_finding(store, "I3", "has ended without an end time", &format!("run {run}")).await;
    }

    async fn i3_an_ended_run_with_a_due_row(store: TestStore) {
        let run = store.given_run(RunState::Succeeded).await.id;
        run_sql(store, &format!("insert into tasuki_due (lane, due_at, run_id, exclusive) values ('', 1, {run}, 0)")).await;
        assert_only_finding(store, "I3", "ended run is in the due table", &format!("run {run}")).await;
    }

    async fn i3_an_ended_run_with_a_hold(store: TestStore) {
        let run = store.given_run_with(RunState::Failed, &one_run_at_a_time()).await.id;
        run_sql(store, &format!("insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token) select job_id, scope_kind, scope_id, id, lease_token from tasuki_run where id = {run}")).await;
        assert_only_finding(store, "I3", "an ended run has a hold", &format!("run {run}")).await;
    }

    async fn i4_a_term_that_is_not_the_newest(store: TestStore) {
        run_sql(store, "insert into tasuki_term_history (epoch, holder, began_at) select 9, holder, began_at from tasuki_term_history").await;
        assert_only_finding(store, "I4", "not the newest", "epoch 1").await;
    }

    async fn i4_a_history_out_of_order(store: TestStore) {
        run_sql(store, "insert into tasuki_term_history (epoch, holder, began_at) select 0, holder, began_at + 1 from tasuki_term_history").await;
        assert_only_finding(store, "I4", "epoch 1 began earlier than the previous epoch", "").await;
    }

    async fn i4_a_leader_lease_ahead_of_the_term(store: TestStore) {
        run_sql(store, "update tasuki_leader_lease set epoch = 2").await;
        assert_only_finding(store, "I4", "the leader's lease row is missing", "epoch 1").await;
    }

    async fn i4_an_assignment_of_a_future_epoch(store: TestStore) {
        let run = store.given_run(RunState::Succeeded).await.id;
        update_run(store, run, "epoch = 2").await;
        assert_only_finding(store, "I4", "a run was assigned in a term that never began", &format!("run {run}")).await;
    }

    async fn i4_a_lease_of_a_future_epoch(store: TestStore) {
        store.given_run(RunState::Running).await;
        run_sql(store, "update tasuki_lease set epoch = 2").await;
        assert_only_finding(store, "I4", "a lease was created in a term", "").await;
    }

    async fn i6_an_attempt_on_the_run_and_in_the_history(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        run_sql(store, &format!("insert into tasuki_attempt (run_id, attempt_no, outcome, token, worker_id, job_version, assigned_at, finished_at) select id, attempt_no, 'RELEASED', lease_token, worker_id, 1, 1, 1 from tasuki_run where id = {run}")).await;
        assert_only_finding(store, "I6", "has the number of the attempt on the run row", &format!("run {run}")).await;
    }

    async fn i7_a_succeeded_run_with_a_failed_outcome(store: TestStore) {
        let run = store.given_run(RunState::Succeeded).await.id;
        update_run(store, run, "outcome = 'FAILED'").await;
        assert_only_finding(store, "I7", "disagree about success", &format!("run {run}")).await;
    }

    async fn i7_a_second_success(store: TestStore) {
        let run = store.given_run(RunState::RetryWait).await.id;
        let columns = "run_id, attempt_no, outcome, token, worker_id, job_version, assigned_at, started_at, finished_at";
        let copied = columns.replace("outcome", "'SUCCEEDED'");
        run_sql(store, &format!("create table kept as select * from tasuki_attempt; delete from tasuki_attempt; insert into tasuki_attempt ({columns}) select {copied} from kept")).await;
        assert_only_finding(store, "I7", "succeeded without ending its run", &format!("run {run}")).await;
    }

    async fn i8_a_missing_attempt(store: TestStore) {
        let run = store.given_run(RunState::Orphaned).await.id;
        run_sql(store, "delete from tasuki_attempt").await;
        assert_only_finding(store, "I8", "attempts of a run are missing", &format!("run {run}")).await;
    }

    async fn i8_more_tries_than_started_attempts(store: TestStore) {
        let run = store.given_run(RunState::Orphaned).await.id;
        update_run(store, run, "tries = 1").await;
        assert_only_finding(store, "I8", "differs from the number of its started attempts", &format!("run {run}")).await;
    }

    async fn i8_more_tries_than_allowed(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        drop_check(store, "tasuki_run_tries").await;
        update_run(store, run, "tries_allowed = 0").await;
        assert_only_finding(store, "I8", "more tries than allowed", &format!("run {run}")).await;
    }

    async fn i12_a_skipped_run_that_had_started(store: TestStore) {
        let run = store.given_run(RunState::Skipped).await.id;
        drop_check(store, "tasuki_run_state").await;
        update_run(store, run, "tries = 1, attempt_no = 1").await;
        run_sql(store, &format!("insert into tasuki_attempt (run_id, attempt_no, outcome, token, worker_id, job_version, assigned_at, started_at, finished_at) select {run}, 1, 'FAILED', id, id, 1, 1, 1, 1 from tasuki_worker")).await;
        assert_only_finding(store, "I12", "skipped although it had started", &format!("run {run}")).await;
    }

    async fn i13_a_run_without_its_hold(store: TestStore) {
        let run = store.given_run_with(RunState::Assigned, &one_run_at_a_time()).await.id;
        run_sql(store, "delete from tasuki_hold").await;
        assert_only_finding(store, "I13", "has no hold", &format!("run {run}")).await;
    }

    async fn i13_a_hold_of_a_waiting_run(store: TestStore) {
        let run = store.given_run_with(RunState::Orphaned, &one_run_at_a_time()).await.id;
        run_sql(store, &format!("insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token) select r.job_id, r.scope_kind, r.scope_id, r.id, w.id from tasuki_run r, tasuki_worker w where r.id = {run}")).await;
        assert_only_finding(store, "I13", "a hold does not belong to", &format!("run {run}")).await;
    }

    async fn i14_a_start_before_its_time(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        update_run(store, run, "started_at = scheduled_for - 1").await;
        assert_only_finding(store, "I14", "started before it was due", &format!("run {run}")).await;
    }

    async fn i14_a_run_assigned_before_its_previous_attempt_ended(store: TestStore) {
        let run = store.given_run(RunState::Orphaned).await.id;
        store.given_assigned(run).await;
        update_run(store, run, "assigned_at = assigned_at - 1").await;
        assert_only_finding(store, "I14", "assigned before its previous attempt had ended", &format!("run {run}")).await;
    }

    async fn i14_attempts_that_overlap(store: TestStore) {
        let run = store.given_run(RunState::Orphaned).await.id;
        run_sql(store, &format!("update tasuki_run set attempt_no = 2 where id = {run}; insert into tasuki_attempt (run_id, attempt_no, outcome, token, worker_id, job_version, assigned_at, finished_at) select run_id, 2, outcome, token, worker_id, 1, finished_at - 1, finished_at from tasuki_attempt")).await;
        assert_only_finding(store, "I14", "an attempt was assigned before the previous attempt", &format!("run {run}")).await;
    }

    async fn i16_a_worker_with_more_runs_than_slots(store: TestStore) {
        store.given_run(RunState::Running).await;
        store.given_run(RunState::Assigned).await;
        run_sql(store, "update tasuki_worker set slots = 1, function_slots = 0").await;
        assert_eq!(store.doctor_findings().await, [] as [String; 0]);
        run_sql(store, "update tasuki_worker set slots = 0").await;
        assert_only_finding(store, "I16", "than its slots allow", "1 running, at most 0").await;
    }

    /// A worker may claim again before its reports of ended runs are stored; these runs are still RUNNING in the
    /// database. And commands that it claims have their own slots, besides those of assigned commands.
    async fn i16_unreported_ends_and_claimed_commands_are_allowed(store: TestStore) {
        for _ in 0..6 {
            store.given_run(RunState::Running).await;
        }
        for slots in ["slots = 2, function_slots = 0", "slots = 0, function_slots = 3"] {
            run_sql(store, &format!("update tasuki_worker set {slots}")).await;
            assert_eq!(store.doctor_findings().await, [] as [String; 0]);
        }
        run_sql(store, "update tasuki_worker set slots = 1, function_slots = 1").await;
        assert_only_finding(store, "I16", "than its slots allow", "6 running, at most 5").await;
    }

    async fn i18_events_and_their_runs(store: TestStore) {
        insert_event(store, 1, false, None).await;
        insert_event(store, 2, true, Some(0)).await;
        insert_event(store, 3, true, Some(2)).await;
        create_run_of_event(store, 3).await;
        create_run_of_event(store, 3).await;
        assert_eq!(store.doctor_findings().await, [] as [String; 0]);
        create_run_of_event(store, 3).await;
        assert_only_finding(store, "I18", "differs from the recorded number", "event 3: 3 exist, 2 recorded").await;
    }

    async fn i18_an_open_event_with_runs(store: TestStore) {
        insert_event(store, 1, false, None).await;
        create_run_of_event(store, 1).await;
        assert_only_finding(store, "I18", "not marked as processed", "event 1").await;
    }

    async fn i18_an_event_without_its_runs(store: TestStore) {
        insert_event(store, 1, true, Some(2)).await;
        assert_only_finding(store, "I18", "records runs but has none", "event 1").await;
    }

    async fn i18_an_event_without_run_count(store: TestStore) {
        insert_event(store, 1, true, None).await;
        assert_only_finding(store, "I18", "does not record how many", "event 1").await;
    }

    async fn i19_a_waiting_run_without_due_row(store: TestStore) {
        let run = store.given_run(RunState::RetryWait).await.id;
        run_sql(store, "delete from tasuki_due").await;
        assert_only_finding(store, "I19", "is not in the due table", &format!("run {run}")).await;
    }

    async fn i19_a_due_row_that_differs_from_its_run(store: TestStore) {
        let run = store.given_run_with(RunState::Pending, &one_run_at_a_time()).await.id;
        run_sql(store, "update tasuki_due set exclusive = 0").await;
        assert_only_finding(store, "I19", "is not in the due table, or its due row differs", &format!("run {run}")).await;
    }

    async fn i19_a_leased_run_with_a_due_row(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        run_sql(store, &format!("insert into tasuki_due (lane, due_at, run_id, exclusive) values ('', 1, {run}, 0)")).await;
        assert_only_finding(store, "I19", "in the due table does not wait", &format!("run {run}")).await;
    }

    async fn i19_a_leased_run_without_lease(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        for broken in ["update tasuki_lease set run_ids = '[]'", "update tasuki_lease set run_ids = 'nonsense'", "delete from tasuki_lease"] {
            run_sql(store, broken).await;
            assert_only_finding(store, "I19", "is in no lease", &format!("run {run}")).await;
        }
    }
}
