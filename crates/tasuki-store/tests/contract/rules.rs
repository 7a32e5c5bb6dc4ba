//! What holds even for SQL typed by hand.

use tasuki_core::RunState;
use tasuki_store::Dialect;

use crate::given::{TestStore, contract};

contract! {
    /// Every pair of states outside the table is refused by the trigger, one row at a time and many.
    async fn an_illegal_move_is_refused_by_hand(store: TestStore) {
        for &from in RunState::ALL {
            let (one, two) = (store.given_run(from).await, store.given_run(from).await);
            for &to in RunState::ALL {
                if from == to || from.may_become(to) {
                    continue;
                }
                for condition in [format!("id = {}", one.id), format!("id in ({}, {})", one.id, two.id)] {
                    // Everything else as the new state wants it, so that only the move is wrong.
                    let finished = if to.is_ended() { "1" } else { "null" };
                    let tries = if to == RunState::Skipped { "tries = 0, " } else { "" };
                    let token = match store.dialect() {
                        Dialect::Sqlite | Dialect::MySql => "x'00112233445566778899aabbccddeeff'",
                        Dialect::Postgres => "'00112233-4455-6677-8899-aabbccddeeff'",
                    };
                    let typed = format!(
                        "update tasuki_run set {tries}state = '{to}', finished_at = {finished}, lease_token = {token}, started_at = 1 where {condition}"
                    );
                    let refused = store.script(&typed).await.expect_err("refused").to_string();
                    assert!(refused.contains("a run does not move like this"), "{from} -> {to}: {refused}");
                }
            }
            assert_eq!(store.run_now(one.id).await.state, from);
        }
    }

    async fn a_run_begins_as_pending(store: TestStore) {
        store.spoil();
        for &state in RunState::ALL {
            let typed = format!(
                "insert into tasuki_run (job_id, job_version, state, origin, lane, exclusive, max_attempts, tries_allowed, scheduled_for, created_at) values (1, 1, '{state}', 'task', '', 0, 1, 1, 1, 1)"
            );
            match store.script(&typed).await {
                Ok(()) => assert_eq!(state, RunState::FIRST),
                Err(refused) => {
                    assert!(refused.to_string().contains("a run begins as PENDING"), "{state}: {refused}");
                }
            }
        }
    }

    async fn only_what_has_ended_is_deleted(store: TestStore) {
        for &state in RunState::ALL {
            let run = store.given_run(state).await;
            let deleted = store.script(&format!("delete from tasuki_run where id = {}", run.id)).await;
            assert_eq!(deleted.is_ok(), state.is_ended(), "{state}");
        }
    }

    async fn history_is_never_rewritten(store: TestStore) {
        store.given_run(RunState::Orphaned).await;
        store.given_run(RunState::Canceled).await;
        for (typed, expected) in [
            ("update tasuki_attempt set outcome = 'SUCCEEDED'", "an appended attempt is never changed"),
            ("update tasuki_run_note set actor = 'x'", "a note is never changed"),
            ("update tasuki_term_history set epoch = 9", "the term history is never changed"),
            ("delete from tasuki_term_history", "the term history is never deleted"),
            ("update tasuki_job_version set spec = 'x'", "a version of a job is never changed"),
        ] {
            let refused = store.script(typed).await.expect_err(typed).to_string();
            assert!(refused.contains(expected), "{typed}: {refused}");
        }
        store.spoil();
        store.script("delete from tasuki_attempt").await.expect("retention may delete");
    }

    /// The checks say again what must hold, so that even a wrong statement cannot store nonsense.
    async fn nonsense_is_not_stored(store: TestStore) {
        let run = store.given_run(RunState::Pending).await.id;
        for nonsense in [
            "tries = 1",
            "tries = -1",
            "tries_allowed = 0, tries = 1, attempt_no = 1",
            "finished_at = 1",
            "slot = 'x'",
            "continuation = 'MAYBE'",
        ] {
            let typed = format!("update tasuki_run set {nonsense} where id = {run}");
            store.script(&typed).await.expect_err(nonsense);
        }
    }

    /// On SQLite a run is two tables: they are held together, whatever is typed, and what is passed over changes nothing.
    async fn two_tables_are_one_run_by_hand(store: TestStore) {
        if store.dialect() != Dialect::Sqlite {
            return;
        }
        let (one, two) = (store.given_run(RunState::Pending).await, store.given_run(RunState::Pending).await);
        let refused = async |typed: &str| store.script(typed).await.expect_err(typed).to_string();
        assert!(refused(&format!("delete from tasuki_run_birth where id = {}", one.id)).await.contains("as a whole"));
        let life = "insert into tasuki_run_life (id, tries_allowed, scheduled_for) values (999, 1, 1)";
        assert!(refused(life).await.contains("begins as PENDING"));
        assert!(refused(&format!("update tasuki_run set id = 999 where id = {}", one.id)).await.contains("keeps its id"));
        let insert = |how: &str, columns: &str, values: &str| format!(
            "insert {how} into tasuki_run (job_id, job_version, origin, lane, exclusive, max_attempts, scheduled_for, created_at, {columns})
             values (1, 1, 'task', '', 0, 1, 1, 1, {values})"
        );
        for later in ["finished_at", "next_retry_at", "reason", "attempt_no"] {
            assert!(refused(&insert("", later, "3")).await.contains("begins as PENDING"), "{later}");
        }
        let before = [store.run_now(one.id).await, store.run_now(two.id).await];
        store.script(&insert("or ignore", "id, tries_allowed", &format!("{}, 50", two.id))).await.unwrap();
        let halved = format!("update or ignore tasuki_run set lane = 'q', state = 'RUNNING' where id = {}", one.id);
        store.script(&halved).await.unwrap();
        let after = [store.run_now(one.id).await, store.run_now(two.id).await];
        assert_eq!(format!("{after:?}"), format!("{before:?}"));
        store.spoil();
        store.script(&format!("drop trigger tasuki_run_birth_delete; delete from tasuki_run_birth where id = {}", one.id)).await.unwrap();
        let findings = store.findings().await;
        assert!(findings.iter().any(|finding| finding.contains("was never born")), "{findings:?}");
    }
}
