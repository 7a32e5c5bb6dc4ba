//! Triggers and check constraints: rules that the database enforces even for SQL that a person types.

use tasuki_core::RunState;
use tasuki_store::Dialect;

use crate::fixtures::{TestStore, contract};

contract! {
    /// The trigger refuses every state change outside the transition table, in statements for one row and for several
    /// rows.
    async fn an_illegal_transition_is_refused(store: TestStore) {
        for &from in RunState::ALL {
            let (one, two) = (store.given_run(from).await, store.given_run(from).await);
            for &to in RunState::ALL {
                if from == to || from.may_become(to) {
                    continue;
                }
                for condition in [format!("id = {}", one.id), format!("id in ({}, {})", one.id, two.id)] {
                    // All other columns suit the new state, so that only the transition is illegal.
                    let finished = if to.is_ended() { "1" } else { "null" };
                    let tries = if to == RunState::Skipped { "tries = 0, " } else { "" };
                    let token = match store.dialect() {
                        Dialect::Sqlite | Dialect::MySql => "x'00112233445566778899aabbccddeeff'",
                        Dialect::Postgres => "'00112233-4455-6677-8899-aabbccddeeff'",
                    };
                    let sql = format!(
                        "update tasuki_run set {tries}state = '{to}', finished_at = {finished}, lease_token = {token}, started_at = 1 where {condition}"
                    );
                    let refused = store.execute_script(&sql).await.expect_err("refused").to_string();
                    assert!(refused.contains("illegal state transition of a run"), "{from} -> {to}: {refused}");
                }
            }
            assert_eq!(store.read_run(one.id).await.state, from);
        }
    }

    async fn a_run_must_be_inserted_as_pending(store: TestStore) {
        store.skip_doctor();
        for &state in RunState::ALL {
            let sql = format!(
                "insert into tasuki_run (job_id, job_version, state, origin, lane, exclusive, max_attempts, tries_allowed, scheduled_for, created_at) values (1, 1, '{state}', 'task', '', 0, 1, 1, 1, 1)"
            );
            match store.execute_script(&sql).await {
                Ok(()) => assert_eq!(state, RunState::INITIAL),
                Err(refused) => {
                    assert!(refused.to_string().contains("a new run must be PENDING"), "{state}: {refused}");
                }
            }
        }
    }

    async fn only_an_ended_run_can_be_deleted(store: TestStore) {
        for &state in RunState::ALL {
            let run = store.given_run(state).await;
            let deleted = store.execute_script(&format!("delete from tasuki_run where id = {}", run.id)).await;
            assert_eq!(deleted.is_ok(), state.is_ended(), "{state}");
        }
    }

    async fn history_cannot_be_updated(store: TestStore) {
        store.given_run(RunState::Orphaned).await;
        store.given_run(RunState::Canceled).await;
        for (sql, expected) in [
            ("update tasuki_attempt set outcome = 'SUCCEEDED'", "a recorded attempt cannot be changed"),
            ("update tasuki_run_note set actor = 'x'", "a transition record cannot be changed"),
            ("update tasuki_term_history set epoch = 9", "the term history cannot be changed"),
            ("delete from tasuki_term_history", "the term history cannot be deleted"),
            ("update tasuki_job_version set spec = 'x'", "a job version cannot be changed"),
        ] {
            let refused = store.execute_script(sql).await.expect_err(sql).to_string();
            assert!(refused.contains(expected), "{sql}: {refused}");
        }
        store.skip_doctor();
        store.execute_script("delete from tasuki_attempt").await.expect("retention may delete");
    }

    /// Check constraints repeat the rules of the code, so that even a wrong statement cannot store invalid data.
    async fn invalid_values_are_refused(store: TestStore) {
        let run = store.given_run(RunState::Pending).await.id;
        for invalid in [
            "tries = 1",
            "tries = -1",
            "tries_allowed = 0, tries = 1, attempt_no = 1",
            "finished_at = 1",
            "slot = 'x'",
            "continuation = 'MAYBE'",
        ] {
            let sql = format!("update tasuki_run set {invalid} where id = {run}");
            store.execute_script(&sql).await.expect_err(invalid);
        }
    }

    /// On SQLite a run is stored in two tables. Triggers keep them consistent for any statement, and a statement with
    /// `or ignore` that would be refused changes nothing.
    async fn the_two_tables_of_a_run_stay_consistent(store: TestStore) {
        if store.dialect() != Dialect::Sqlite {
            return;
        }
        let (one, two) = (store.given_run(RunState::Pending).await, store.given_run(RunState::Pending).await);
        let refused = async |sql: &str| store.execute_script(sql).await.expect_err(sql).to_string();
        assert!(refused(&format!("delete from tasuki_run_data where id = {}", one.id)).await.contains("from tasuki_run_data alone"));
        let insert_state = "insert into tasuki_run_state (id, tries_allowed, scheduled_for) values (999, 1, 1)";
        assert!(refused(insert_state).await.contains("a new run must be PENDING"));
        assert!(refused(&format!("update tasuki_run set id = 999 where id = {}", one.id)).await.contains("the id of a run cannot be changed"));
        let insert = |how: &str, columns: &str, values: &str| format!(
            "insert {how} into tasuki_run (job_id, job_version, origin, lane, exclusive, max_attempts, scheduled_for, created_at, {columns})
             values (1, 1, 'task', '', 0, 1, 1, 1, {values})"
        );
        for later in ["finished_at", "next_retry_at", "reason", "attempt_no"] {
            assert!(refused(&insert("", later, "3")).await.contains("a new run must be PENDING"), "{later}");
        }
        let before = [store.read_run(one.id).await, store.read_run(two.id).await];
        store.execute_script(&insert("or ignore", "id, tries_allowed", &format!("{}, 50", two.id))).await.unwrap();
        let ignored_update = format!("update or ignore tasuki_run set lane = 'q', state = 'RUNNING' where id = {}", one.id);
        store.execute_script(&ignored_update).await.unwrap();
        let after = [store.read_run(one.id).await, store.read_run(two.id).await];
        assert_eq!(format!("{after:?}"), format!("{before:?}"));
        store.skip_doctor();
        store.execute_script(&format!("drop trigger tasuki_run_data_delete; delete from tasuki_run_data where id = {}", one.id)).await.unwrap();
        let findings = store.doctor_findings().await;
        assert!(findings.iter().any(|finding| finding.contains("only one of its two tables")), "{findings:?}");
    }
}
