//! Audit log: each audited change writes an entry in its own transaction, and every later manipulation of the entries is
//! detected by the hash chain.

use sha2::{Digest as _, Sha256};
use tasuki_core::{AttemptErrorCode, Epoch, Origin, RunState, WorkerId};
use tasuki_store::{
    AuditActor, AuditEntry, AuditHead, AuditVerification, ChainError, Dialect, NewRun, Outcome,
    Writer,
};

use crate::fixtures::{RunOptions, TTL, TestStore, contract, expected_version, noon, run_both};

/// Makes `count` settings changes, each of which writes one audit entry. Returns the head after each change.
async fn make_changes(store: &TestStore, count: i64) -> Vec<AuditHead> {
    let mut heads = Vec::new();
    for version in 0..count {
        let change = store.change_settings("ann", version, &[("max_releases", "5")]).await.unwrap();
        assert!(matches!(change, tasuki_store::SettingsChangeResult::Applied(_)));
        heads.push(store.find_audit_head().await.unwrap());
    }
    heads
}

/// Runs SQL like an attacker who owns the database: first drops the triggers that protect the audit table.
async fn tamper(store: &TestStore, sql: &str) {
    store.skip_doctor();
    let on = if store.dialect() == Dialect::Postgres { " on tasuki_audit" } else { "" };
    for trigger in ["tasuki_audit_no_update", "tasuki_audit_no_delete"] {
        let _ = store.execute_script(&format!("drop trigger if exists {trigger}{on}")).await;
    }
    store.execute_script(sql).await.unwrap();
}

fn literal(dialect: Dialect, bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match dialect {
        Dialect::Postgres => format!("decode('{hex}', 'hex')"),
        Dialect::Sqlite | Dialect::MySql => format!("x'{hex}'"),
    }
}

/// Computes the hash of an entry: a second implementation, written from the documentation.
fn hash_of(row: &AuditEntry) -> [u8; 32] {
    let mut bytes = row.prev_hash.to_vec();
    bytes.extend(row.seq.to_be_bytes());
    bytes.extend(row.at.as_microsecond().to_be_bytes());
    let required = [Some(&row.actor), Some(&row.action), Some(&row.object)];
    for text in
        required.into_iter().chain([row.address.as_ref(), row.before.as_ref(), row.after.as_ref()])
    {
        bytes.push(u8::from(text.is_some()));
        if let Some(text) = text {
            bytes.extend((text.len() as u64).to_be_bytes());
            bytes.extend(text.as_bytes());
        }
    }
    Sha256::digest(&bytes).into()
}

/// Changes the actor of entry `from` and recomputes the hashes of the entries up to `through`.
async fn forge(store: &TestStore, from: i64, actor: &str, through: i64) {
    let mut rows = store.list_audit_entries_after(from - 1, 100).await.unwrap();
    let mut prev = rows[0].prev_hash;
    rows[0].actor = actor.to_owned();
    for row in rows.iter_mut().filter(|row| row.seq <= through) {
        row.prev_hash = prev;
        row.hash = hash_of(row);
        prev = row.hash;
        let sql = format!(
            "update tasuki_audit set actor = '{}', prev_hash = {}, hash = {} where seq = {}",
            row.actor,
            literal(store.dialect(), &row.prev_hash),
            literal(store.dialect(), &row.hash),
            row.seq
        );
        tamper(store, &sql).await;
    }
}

contract! {
    async fn an_unmodified_chain_is_valid(store: TestStore) {
        assert_eq!(store.verify_audit(None).await.unwrap(), AuditVerification::Intact(AuditHead::START));
        let heads = make_changes(store, 3).await;
        assert_eq!(store.verify_audit(None).await.unwrap(), AuditVerification::Intact(heads[2]));
        for saved in heads {
            assert!(matches!(store.verify_audit(Some(saved)).await.unwrap(), AuditVerification::Intact(_)));
        }
        for row in store.list_audit_entries_after(0, 10).await.unwrap() {
            assert_eq!(row.hash, hash_of(&row));
        }
        assert_eq!(store.list_audit_entries_after(1, 1).await.unwrap()[0].seq, 2);
    }

    async fn a_chain_longer_than_one_page_is_valid(store: TestStore) {
        make_changes(store, 3).await;
        let head = store.find_audit_head().await.unwrap();
        // Entries are copied with SQL and hashed here: a thousand real changes would take too long.
        let mut last = store.list_audit_entries_after(head.seq - 1, 1).await.unwrap().remove(0);
        let mut sql = String::new();
        for seq in head.seq + 1..=1001 {
            (last.seq, last.prev_hash) = (seq, last.hash);
            last.hash = hash_of(&last);
            let (prev, hash) = (literal(store.dialect(), &last.prev_hash), literal(store.dialect(), &last.hash));
            sql += &format!("insert into tasuki_audit select {seq}, at, actor, action, object, address, before_state, after_state, {prev}, {hash} from tasuki_audit where seq = {};", head.seq);
        }
        let hash = literal(store.dialect(), &last.hash);
        sql += &format!("update tasuki_audit_head set seq = 1001, hash = {hash};");
        store.execute_script(&sql).await.unwrap();
        let end = AuditHead { seq: 1001, hash: last.hash };
        assert_eq!(store.verify_audit(Some(head)).await.unwrap(), AuditVerification::Intact(end));
        make_one_more_change(store, 3).await;
        assert_eq!(store.find_audit_head().await.unwrap().seq, 1002);
    }

    async fn an_edited_entry_is_detected(store: TestStore) {
        let heads = make_changes(store, 3).await;
        let row = store.list_audit_entries_after(1, 1).await.unwrap().remove(0);
        for (column, was) in [
            ("actor", Some(row.actor)),
            ("action", Some(row.action)),
            ("object", Some(row.object)),
            ("address", row.address),
            ("before_state", row.before),
            ("after_state", row.after),
        ] {
            tamper(store, &format!("update tasuki_audit set {column} = 'eve' where seq = 2")).await;
            let found = store.verify_audit(None).await.unwrap();
            assert_eq!(found, AuditVerification::Broken { seq: 2, error: ChainError::Edited }, "{column}");
            let was = was.map_or("null".to_owned(), |text| format!("'{text}'"));
            tamper(store, &format!("update tasuki_audit set {column} = {was} where seq = 2")).await;
            assert_eq!(store.verify_audit(None).await.unwrap(), AuditVerification::Intact(heads[2]), "{column}");
        }
        tamper(store, "update tasuki_audit set at = at + 1 where seq = 2").await;
        assert!(matches!(store.verify_audit(Some(heads[2])).await.unwrap(), AuditVerification::Broken { seq: 2, .. }));
    }

    async fn a_deleted_entry_is_detected(store: TestStore) {
        make_changes(store, 3).await;
        tamper(store, "delete from tasuki_audit where seq = 2").await;
        let missing = AuditVerification::Broken { seq: 2, error: ChainError::Missing };
        assert_eq!(store.verify_audit(None).await.unwrap(), missing);
        // Renumbering the next entry does not hide the deletion.
        tamper(store, "update tasuki_audit set seq = 2 where seq = 3").await;
        assert_eq!(store.verify_audit(None).await.unwrap(), AuditVerification::Broken { seq: 2, error: ChainError::Unlinked });
    }

    async fn swapped_entries_are_detected(store: TestStore) {
        make_changes(store, 3).await;
        tamper(store, "update tasuki_audit set seq = 99 where seq = 2; update tasuki_audit set seq = 2 where seq = 3; update tasuki_audit set seq = 3 where seq = 99").await;
        assert_eq!(store.verify_audit(None).await.unwrap(), AuditVerification::Broken { seq: 2, error: ChainError::Unlinked });
    }

    async fn an_entry_inserted_before_the_first_is_detected(store: TestStore) {
        store.skip_doctor();
        make_changes(store, 2).await;
        store.execute_script("insert into tasuki_audit select -5, at, actor, action, object, address, before_state, after_state, prev_hash, hash from tasuki_audit where seq = 1").await.unwrap();
        assert_eq!(store.verify_audit(None).await.unwrap(), AuditVerification::Broken { seq: 1, error: ChainError::Missing });
    }

    async fn a_rehashed_entry_is_detected_at_the_next_entry(store: TestStore) {
        make_changes(store, 3).await;
        forge(store, 2, "eve", 2).await;
        assert_eq!(store.verify_audit(None).await.unwrap(), AuditVerification::Broken { seq: 3, error: ChainError::Unlinked });
    }

    async fn a_rehashed_last_entry_is_detected_at_the_head(store: TestStore) {
        make_changes(store, 3).await;
        forge(store, 3, "eve", 3).await;
        assert_eq!(store.verify_audit(None).await.unwrap(), AuditVerification::Broken { seq: 3, error: ChainError::HeadMismatch });
    }

    /// Without a head that was saved before, the manipulation cannot be detected.
    async fn a_rewritten_chain_is_detected_with_a_saved_head(store: TestStore) {
        let heads = make_changes(store, 3).await;
        forge(store, 2, "eve", 3).await;
        let last = store.list_audit_entries_after(2, 1).await.unwrap().remove(0);
        let hash = literal(store.dialect(), &last.hash);
        store.execute_script(&format!("update tasuki_audit_head set hash = {hash}")).await.unwrap();
        assert!(matches!(store.verify_audit(None).await.unwrap(), AuditVerification::Intact(_)));
        assert!(matches!(store.verify_audit(Some(heads[0])).await.unwrap(), AuditVerification::Intact(_)));
        for (saved, seq) in [(heads[1], 2), (heads[2], 3)] {
            assert_eq!(store.verify_audit(Some(saved)).await.unwrap(), AuditVerification::Broken { seq, error: ChainError::Rewritten });
        }
    }

    async fn a_truncated_chain_is_detected(store: TestStore) {
        let heads = make_changes(store, 3).await;
        tamper(store, "delete from tasuki_audit where seq = 3").await;
        let cut = AuditVerification::Broken { seq: 3, error: ChainError::Truncated };
        assert_eq!(store.verify_audit(None).await.unwrap(), cut, "the head still has the old length");
        let hash = literal(store.dialect(), &heads[1].hash);
        store.execute_script(&format!("update tasuki_audit_head set seq = 2, hash = {hash}")).await.unwrap();
        assert_eq!(store.verify_audit(None).await.unwrap(), AuditVerification::Intact(heads[1]), "the head was truncated too");
        assert_eq!(store.verify_audit(Some(heads[2])).await.unwrap(), cut);
    }

    async fn entries_beyond_the_head_are_detected(store: TestStore) {
        store.skip_doctor();
        let heads = make_changes(store, 2).await;
        let hash = literal(store.dialect(), &heads[0].hash);
        store.execute_script(&format!("update tasuki_audit_head set seq = 1, hash = {hash}")).await.unwrap();
        assert_eq!(store.verify_audit(None).await.unwrap(), AuditVerification::Broken { seq: 2, error: ChainError::HeadMismatch });
    }

    async fn operator_actions_on_runs_are_audited(store: TestStore) {
        let ann = AuditActor { name: "ann", address: Some("10.0.0.7") };
        let (pending, running) = (store.given_run(RunState::Pending).await, store.given_run(RunState::Running).await);
        let failed = store.given_run(RunState::Failed).await;
        let start = store.find_audit_head().await.unwrap().seq;
        assert!(store.cancel(Writer::Api, pending.id, ann, Some("wrong day")).await.unwrap().is_applied());
        assert!(store.cancel(Writer::Api, running.id, ann, None).await.unwrap().is_applied());
        assert!(store.retry_manually(failed.id, ann, None).await.unwrap().is_applied());
        let entries = store.list_audit_entries_after(start, 10).await.unwrap();
        let action_summaries: Vec<_> = entries.iter().map(|row| (row.action.as_str(), row.object.clone())).collect();
        assert_eq!(action_summaries, [
            ("cancel", format!("run {}", pending.id)),
            ("cancel", format!("run {}", running.id)),
            ("retry", format!("run {}", failed.id)),
        ]);
        assert_eq!((entries[0].at, entries[0].actor.as_str(), entries[0].address.as_deref()), (noon(), "ann", Some("10.0.0.7")));
        assert_eq!(entries[0].before.as_deref(), Some(r#"{"state":"PENDING"}"#));
        assert_eq!(entries[0].after.as_deref(), Some(r#"{"cancel_requested_by":"ann","reason":"wrong day","state":"CANCELED"}"#));
        assert!(entries[1].after.as_ref().unwrap().contains(r#""state":"RUNNING""#), "the cancel is only requested; the run has not ended");
        assert_eq!(entries[2].before.as_deref(), Some(r#"{"state":"FAILED","tries_allowed":3}"#));
    }

    async fn refused_actions_and_leader_writes_are_not_audited(store: TestStore) {
        let succeeded = store.given_run(RunState::Succeeded).await;
        let pending = store.given_run(RunState::Pending).await;
        let start = store.find_audit_head().await.unwrap();
        assert!(matches!(store.cancel(Writer::Api, succeeded.id, "ann", None).await.unwrap(), Outcome::Lost(_)));
        assert!(matches!(store.retry_manually(succeeded.id, "ann", None).await.unwrap(), Outcome::Lost(_)));
        let replaced = store.cancel(Writer::Leader(store.epoch), pending.id, "leader", None).await.unwrap();
        assert!(replaced.is_applied());
        assert_eq!(store.find_audit_head().await.unwrap(), start);
    }

    async fn a_rerun_is_audited_with_the_new_run(store: TestStore) {
        let ann = AuditActor { name: "ann", address: Some("10.0.0.7") };
        let job = store.given_job(&RunOptions::default()).await;
        let other = store.given_job(&RunOptions::default()).await;
        let run = store.given_waiting_run(&job, &RunOptions::default()).await;
        let start = store.find_audit_head().await.unwrap();
        assert!(!store.rerun(ann, &job, run).await.unwrap().is_applied(), "the run has not ended");
        assert_eq!(store.find_audit_head().await.unwrap(), start, "a refused action is not audited");
        assert!(store.cancel(Writer::Api, run, ann, None).await.unwrap().is_applied());
        assert!(store.rerun(ann, &other, run).await.unwrap_err().is_invalid_input(), "the run belongs to another job");
        let new = store.rerun(ann, &job, run).await.unwrap().into_applied().unwrap();
        let entries = store.list_audit_entries_after(start.seq + 1, 10).await.unwrap();
        assert_eq!(action_summaries(&entries), [("ann", "rerun", format!("run {run}"))]);
        assert_eq!(entries[0].address.as_deref(), Some("10.0.0.7"));
        assert_eq!(entries[0].before.as_deref(), Some(r#"{"job_version":1,"state":"CANCELED"}"#));
        assert_eq!(entries[0].after.clone().unwrap(), format!(r#"{{"job_version":1,"run":{new}}}"#));
    }

    /// The transaction that creates the new run checks that the old run has ended. After a retry of the old run a
    /// rerun is therefore refused, and the two never run side by side.
    async fn a_retried_run_cannot_be_rerun(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        for round in 0..20 {
            let run = store.given_waiting_run(&job, &RunOptions::default()).await;
            store.given_failure(run, AttemptErrorCode::INVALID_INPUT).await;
            let start = store.find_audit_head().await.unwrap().seq;
            let (rerun, retry) = tokio::join!(store.rerun("ann", &job, run), store.retry_manually(run, "bob", None));
            assert!(retry.unwrap().is_applied(), "round {round}");
            let entries = store.list_audit_entries_after(start, 10).await.unwrap();
            let actions: Vec<&str> = entries.iter().map(|row| row.action.as_str()).collect();
            let expected: &[&str] = if rerun.unwrap().is_applied() { &["rerun", "retry"] } else { &["retry"] };
            assert_eq!(actions, expected, "round {round}");
        }
    }

    async fn a_manual_trigger_is_audited_once(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let new = NewRun { idempotency_key: Some("now".to_owned()), args: Some("7".to_owned()), ..NewRun::task(&job) };
        let start = store.find_audit_head().await.unwrap().seq;
        let created = store.trigger("ann", expected_version(&job), &new).await.unwrap().unwrap();
        let again = store.trigger("ann", expected_version(&job), &new).await.unwrap().unwrap();
        assert_eq!((created.existed, again.existed, again.run), (false, true, created.run));
        let run = store.read_run(created.run).await;
        assert_eq!((run.origin, run.args.as_deref()), (Origin::Manual, Some("7")));
        let entries = store.list_audit_entries_after(start, 10).await.unwrap();
        assert_eq!(action_summaries(&entries), [("ann", "trigger", format!("job {}", job.job))]);
        let after = format!(r#"{{"job_version":1,"run":{},"scope":"global/global"}}"#, created.run);
        assert_eq!((&entries[0].before, entries[0].after.as_deref()), (&None, Some(after.as_str())));
    }

    async fn a_manual_trigger_requires_the_expected_job_version(store: TestStore) {
        let (job, other) = (store.given_job(&RunOptions::default()).await, store.given_job(&RunOptions::default()).await);
        let refused = store.trigger("ann", expected_version(&other), &NewRun::task(&job)).await.unwrap_err();
        assert!(refused.is_invalid_input(), "{refused}");
        drop(store.delete_job("bob", expected_version(&job)).await.unwrap());
        assert_eq!(store.trigger("ann", expected_version(&job), &NewRun::task(&job)).await.unwrap(), None);
        for origin in [Origin::Manual, Origin::Rerun] {
            let unaudited = NewRun { origin, ..NewRun::task(&other) };
            assert!(store.create_or_find_runs(Writer::Api, &[unaudited]).await.unwrap_err().is_invalid_input());
        }
        assert!(store.list_due_in_lane("", noon(), 10).await.unwrap().is_empty());
    }

    async fn draining_and_detaching_a_worker_are_audited(store: TestStore) {
        let start = store.find_audit_head().await.unwrap().seq;
        let (worker, leader) = (store.worker, store.worker.to_string());
        assert!(store.drain_worker("ann", worker).await.unwrap());
        assert!(!store.drain_worker("ann", worker).await.unwrap(), "a second time changes nothing");
        assert!(store.detach_worker(Writer::Leader(store.epoch), leader.as_str(), worker, "silent").await.unwrap());
        assert!(!store.detach_worker(Writer::Api, "bob", worker, "silent").await.unwrap(), "a second time changes nothing");
        let unknown = WorkerId::from_random(99);
        assert!(!store.drain_worker("ann", unknown).await.unwrap());
        let entries = store.list_audit_entries_after(start, 10).await.unwrap();
        let object = format!("worker {worker}");
        assert_eq!(action_summaries(&entries), [("ann", "drain", object.clone()), (&leader, "detach", object)]);
        assert_eq!(entries[0].before.as_deref(), Some(r#"{"detached":false,"draining":false,"node":"node"}"#));
        assert_eq!(entries[1].before.as_deref(), Some(r#"{"detached":false,"draining":true,"node":"node"}"#));
        assert_eq!(
            entries[1].after.as_deref(),
            Some(r#"{"detached":true,"draining":true,"epoch":1,"node":"node","reason":"silent"}"#)
        );
    }

    async fn ending_a_leader_term_is_audited(store: TestStore) {
        let start = store.find_audit_head().await.unwrap().seq;
        let (first, rival) = (store.worker.to_string(), WorkerId::from_random(2));
        assert!(!store.end_term("ann", Epoch(7)).await.unwrap(), "the epoch is not the current one");
        assert!(store.end_term(rival.to_string().as_str(), store.epoch).await.unwrap());
        assert!(!store.demote_leader("ann", store.epoch, "slow").await.unwrap(), "the term has already ended");
        let epoch = store.take_leadership(rival, store.epoch, Epoch(0), TTL).await.unwrap().unwrap();
        assert!(!store.demote_leader("ann", store.epoch, "slow").await.unwrap(), "there is a newer term");
        assert!(store.demote_leader("ann", epoch, "slow").await.unwrap());
        assert!(!store.renew_leadership(rival, epoch, TTL, TTL).await.unwrap());
        let entries = store.list_audit_entries_after(start, 10).await.unwrap();
        assert_eq!(action_summaries(&entries), [
            (rival.to_string().as_str(), "end_term", "leader of epoch 1".to_owned()),
            ("ann", "demote", "leader of epoch 2".to_owned()),
        ]);
        assert_eq!(entries[0].before.clone().unwrap(), format!(r#"{{"holder":"{first}"}}"#));
        assert_eq!(entries[1].before.clone().unwrap(), format!(r#"{{"holder":"{rival}"}}"#));
        assert_eq!(entries[1].after.as_deref(), Some(r#"{"holder":null,"reason":"slow"}"#));
    }

    async fn creating_a_job_is_audited(store: TestStore) {
        let job = store.given_job(&RunOptions::default()).await;
        let entries = store.list_audit_entries_after(0, 10).await.unwrap();
        assert_eq!((entries[0].actor.as_str(), entries[0].action.as_str()), ("test", "create"));
        assert_eq!((entries[0].object.clone(), &entries[0].before), (format!("job {}", job.job), &None));
    }

    async fn two_concurrent_entries_form_one_chain(store: TestStore) {
        let (one, other) = (store.given_run(RunState::Pending).await, store.given_run(RunState::Pending).await);
        let start = store.find_audit_head().await.unwrap().seq;
        let both = run_both(
            store.cancel(Writer::Api, one.id, "ann", None),
            store.cancel(Writer::Api, other.id, "bob", None),
        );
        assert!(both.await.into_iter().all(|outcome| outcome.unwrap().is_applied()));
        assert!(matches!(store.verify_audit(None).await.unwrap(), AuditVerification::Intact(head) if head.seq == start + 2));
    }

    /// Sixteen concurrent cancels on four connections do not deadlock.
    async fn many_concurrent_entries_form_one_chain(store: TestStore) {
        let mut cancels = Vec::new();
        for _ in 0..16 {
            let run = store.given_run(RunState::Pending).await.id;
            let store = tasuki_store::Store::clone(store);
            cancels.push(async move { store.cancel(Writer::Api, run, "ann", None).await.unwrap().is_applied() });
        }
        let start = store.find_audit_head().await.unwrap().seq;
        let cancels: Vec<_> = cancels.into_iter().map(tokio::spawn).collect();
        for cancel in cancels {
            assert!(cancel.await.unwrap());
        }
        assert!(matches!(store.verify_audit(None).await.unwrap(), AuditVerification::Intact(head) if head.seq == start + 16));
    }

    /// No database truncates a reason of 1000 characters.
    async fn a_long_reason_is_stored_completely(store: TestStore) {
        let reason = "x".repeat(1_000);
        let run = store.given_run(RunState::Assigned).await.id;
        assert!(store.cancel(Writer::Api, run, "ann", Some(&reason)).await.unwrap().is_applied());
        assert_eq!(store.read_run(run).await.reason, Some(reason));
    }

    async fn triggers_refuse_changes_of_audit_entries(store: TestStore) {
        make_changes(store, 1).await;
        for (sql, expected) in [
            ("update tasuki_audit set actor = 'eve'", "the audit log cannot be changed"),
            ("delete from tasuki_audit", "the audit log cannot be deleted"),
        ] {
            let refused = store.execute_script(sql).await.unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}

/// The actor, the action and the object of each entry.
fn action_summaries(entries: &[AuditEntry]) -> Vec<(&str, &str, String)> {
    entries
        .iter()
        .map(|row| (row.actor.as_str(), row.action.as_str(), row.object.clone()))
        .collect()
}

/// Makes one more settings change; `version` is the number of changes so far.
async fn make_one_more_change(store: &TestStore, version: i64) {
    let change = store.change_settings("ann", version, &[("max_releases", "5")]).await.unwrap();
    assert!(matches!(change, tasuki_store::SettingsChangeResult::Applied(_)));
}
