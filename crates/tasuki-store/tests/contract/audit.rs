//! The audit: told with the change, and no change to it goes unnoticed.

use sha2::{Digest as _, Sha256};
use tasuki_core::{Epoch, ErrorCode, Origin, RunState, WorkerId};
use tasuki_store::{Actor, AuditHead, AuditRow, Writer, Dialect, Flaw, NewRun, Outcome, Verified};

use crate::given::{Like, TTL, TestStore, at_once, contract, noon, seen};

/// Some history: a row for each of these changes.
async fn given_changes(store: &TestStore, count: i64) -> Vec<AuditHead> {
    let mut heads = Vec::new();
    for version in 0..count {
        let change = store.change_settings("ann", version, &[("max_releases", "5")]).await.unwrap();
        assert!(matches!(change, tasuki_store::SettingsChange::Applied(_)));
        heads.push(store.audit_head().await.unwrap());
    }
    heads
}

/// What an owner of the database can do: take the guards away.
async fn tamper(store: &TestStore, typed: &str) {
    store.spoil();
    let on = if store.dialect() == Dialect::Postgres { " on tasuki_audit" } else { "" };
    for trigger in ["tasuki_audit_no_update", "tasuki_audit_no_delete"] {
        let _ = store.script(&format!("drop trigger if exists {trigger}{on}")).await;
    }
    store.script(typed).await.unwrap();
}

fn literal(dialect: Dialect, bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match dialect {
        Dialect::Postgres => format!("decode('{hex}', 'hex')"),
        Dialect::Sqlite | Dialect::MySql => format!("x'{hex}'"),
    }
}

/// The hash of a row, written down a second time from what the documents say.
fn hash_of(row: &AuditRow) -> [u8; 32] {
    let mut bytes = row.prev_hash.to_vec();
    bytes.extend(row.seq.to_be_bytes());
    bytes.extend(row.at.as_microsecond().to_be_bytes());
    let given = [Some(&row.actor), Some(&row.action), Some(&row.object)];
    for text in
        given.into_iter().chain([row.address.as_ref(), row.before.as_ref(), row.after.as_ref()])
    {
        bytes.push(u8::from(text.is_some()));
        if let Some(text) = text {
            bytes.extend((text.len() as u64).to_be_bytes());
            bytes.extend(text.as_bytes());
        }
    }
    Sha256::digest(&bytes).into()
}

/// Writes rows anew from the first that was changed, hashes and head and all.
async fn forge(store: &TestStore, from: i64, actor: &str, through: i64) {
    let mut rows = store.audit_list(from - 1, 100).await.unwrap();
    let mut prev = rows[0].prev_hash;
    rows[0].actor = actor.to_owned();
    for row in rows.iter_mut().filter(|row| row.seq <= through) {
        row.prev_hash = prev;
        row.hash = hash_of(row);
        prev = row.hash;
        let typed = format!(
            "update tasuki_audit set actor = '{}', prev_hash = {}, hash = {} where seq = {}",
            row.actor,
            literal(store.dialect(), &row.prev_hash),
            literal(store.dialect(), &row.hash),
            row.seq
        );
        tamper(store, &typed).await;
    }
}

contract! {
    async fn an_untouched_chain_is_whole(store: TestStore) {
        assert_eq!(store.audit_verify(None).await.unwrap(), Verified::Whole(AuditHead::START));
        let heads = given_changes(store, 3).await;
        assert_eq!(store.audit_verify(None).await.unwrap(), Verified::Whole(heads[2]));
        for saved in heads {
            assert!(matches!(store.audit_verify(Some(saved)).await.unwrap(), Verified::Whole(_)));
        }
        for row in store.audit_list(0, 10).await.unwrap() {
            assert_eq!(row.hash, hash_of(&row));
        }
        assert_eq!(store.audit_list(1, 1).await.unwrap()[0].seq, 2);
    }

    async fn a_chain_longer_than_a_page_is_whole(store: TestStore) {
        given_changes(store, 3).await;
        let head = store.audit_head().await.unwrap();
        // Copied by hand, hashed here: five hundred more changes would take their time.
        let mut last = store.audit_list(head.seq - 1, 1).await.unwrap().remove(0);
        let mut typed = String::new();
        for seq in head.seq + 1..=1001 {
            (last.seq, last.prev_hash) = (seq, last.hash);
            last.hash = hash_of(&last);
            let (prev, hash) = (literal(store.dialect(), &last.prev_hash), literal(store.dialect(), &last.hash));
            typed += &format!("insert into tasuki_audit select {seq}, at, actor, action, object, address, before_state, after_state, {prev}, {hash} from tasuki_audit where seq = {};", head.seq);
        }
        let hash = literal(store.dialect(), &last.hash);
        typed += &format!("update tasuki_audit_head set seq = 1001, hash = {hash};");
        store.script(&typed).await.unwrap();
        let end = AuditHead { seq: 1001, hash: last.hash };
        assert_eq!(store.audit_verify(Some(head)).await.unwrap(), Verified::Whole(end));
        given_changes_after(store, 3).await;
        assert_eq!(store.audit_head().await.unwrap().seq, 1002);
    }

    async fn an_edited_row_is_found(store: TestStore) {
        let heads = given_changes(store, 3).await;
        let row = store.audit_list(1, 1).await.unwrap().remove(0);
        for (column, was) in [
            ("actor", Some(row.actor)),
            ("action", Some(row.action)),
            ("object", Some(row.object)),
            ("address", row.address),
            ("before_state", row.before),
            ("after_state", row.after),
        ] {
            tamper(store, &format!("update tasuki_audit set {column} = 'eve' where seq = 2")).await;
            let found = store.audit_verify(None).await.unwrap();
            assert_eq!(found, Verified::Broken { seq: 2, flaw: Flaw::Edited }, "{column}");
            let was = was.map_or("null".to_owned(), |text| format!("'{text}'"));
            tamper(store, &format!("update tasuki_audit set {column} = {was} where seq = 2")).await;
            assert_eq!(store.audit_verify(None).await.unwrap(), Verified::Whole(heads[2]), "{column}");
        }
        tamper(store, "update tasuki_audit set at = at + 1 where seq = 2").await;
        assert!(matches!(store.audit_verify(Some(heads[2])).await.unwrap(), Verified::Broken { seq: 2, .. }));
    }

    async fn a_deleted_row_is_found(store: TestStore) {
        given_changes(store, 3).await;
        tamper(store, "delete from tasuki_audit where seq = 2").await;
        let missing = Verified::Broken { seq: 2, flaw: Flaw::Missing };
        assert_eq!(store.audit_verify(None).await.unwrap(), missing);
        // Closing the gap helps nobody.
        tamper(store, "update tasuki_audit set seq = 2 where seq = 3").await;
        assert_eq!(store.audit_verify(None).await.unwrap(), Verified::Broken { seq: 2, flaw: Flaw::Unlinked });
    }

    async fn rows_that_changed_places_are_found(store: TestStore) {
        given_changes(store, 3).await;
        tamper(store, "update tasuki_audit set seq = 99 where seq = 2; update tasuki_audit set seq = 2 where seq = 3; update tasuki_audit set seq = 3 where seq = 99").await;
        assert_eq!(store.audit_verify(None).await.unwrap(), Verified::Broken { seq: 2, flaw: Flaw::Unlinked });
    }

    async fn a_row_put_before_the_first_is_found(store: TestStore) {
        store.spoil();
        given_changes(store, 2).await;
        store.script("insert into tasuki_audit select -5, at, actor, action, object, address, before_state, after_state, prev_hash, hash from tasuki_audit where seq = 1").await.unwrap();
        assert_eq!(store.audit_verify(None).await.unwrap(), Verified::Broken { seq: 1, flaw: Flaw::Missing });
    }

    async fn a_row_hashed_anew_is_found_at_the_next(store: TestStore) {
        given_changes(store, 3).await;
        forge(store, 2, "eve", 2).await;
        assert_eq!(store.audit_verify(None).await.unwrap(), Verified::Broken { seq: 3, flaw: Flaw::Unlinked });
    }

    async fn a_last_row_hashed_anew_is_found_at_the_head(store: TestStore) {
        given_changes(store, 3).await;
        forge(store, 3, "eve", 3).await;
        assert_eq!(store.audit_verify(None).await.unwrap(), Verified::Broken { seq: 3, flaw: Flaw::Head });
    }

    /// Only somebody who kept a head can tell.
    async fn a_chain_written_anew_is_found_with_a_saved_head(store: TestStore) {
        let heads = given_changes(store, 3).await;
        forge(store, 2, "eve", 3).await;
        let last = store.audit_list(2, 1).await.unwrap().remove(0);
        let hash = literal(store.dialect(), &last.hash);
        store.script(&format!("update tasuki_audit_head set hash = {hash}")).await.unwrap();
        assert!(matches!(store.audit_verify(None).await.unwrap(), Verified::Whole(_)));
        assert!(matches!(store.audit_verify(Some(heads[0])).await.unwrap(), Verified::Whole(_)));
        for (saved, seq) in [(heads[1], 2), (heads[2], 3)] {
            assert_eq!(store.audit_verify(Some(saved)).await.unwrap(), Verified::Broken { seq, flaw: Flaw::Rewritten });
        }
    }

    async fn a_cut_tail_is_found(store: TestStore) {
        let heads = given_changes(store, 3).await;
        tamper(store, "delete from tasuki_audit where seq = 3").await;
        let cut = Verified::Broken { seq: 3, flaw: Flaw::Cut };
        assert_eq!(store.audit_verify(None).await.unwrap(), cut, "the head knows");
        let hash = literal(store.dialect(), &heads[1].hash);
        store.script(&format!("update tasuki_audit_head set seq = 2, hash = {hash}")).await.unwrap();
        assert_eq!(store.audit_verify(None).await.unwrap(), Verified::Whole(heads[1]), "the head was cut too");
        assert_eq!(store.audit_verify(Some(heads[2])).await.unwrap(), cut);
    }

    async fn rows_beyond_the_head_are_found(store: TestStore) {
        store.spoil();
        let heads = given_changes(store, 2).await;
        let hash = literal(store.dialect(), &heads[0].hash);
        store.script(&format!("update tasuki_audit_head set seq = 1, hash = {hash}")).await.unwrap();
        assert_eq!(store.audit_verify(None).await.unwrap(), Verified::Broken { seq: 2, flaw: Flaw::Head });
    }

    async fn what_people_do_to_runs_is_told(store: TestStore) {
        let ann = Actor { name: "ann", address: Some("10.0.0.7") };
        let (pending, running) = (store.given_run(RunState::Pending).await, store.given_run(RunState::Running).await);
        let failed = store.given_run(RunState::Failed).await;
        let start = store.audit_head().await.unwrap().seq;
        assert!(store.cancel(Writer::Api, pending.id, ann, Some("wrong day")).await.unwrap().is_applied());
        assert!(store.cancel(Writer::Api, running.id, ann, None).await.unwrap().is_applied());
        assert!(store.retry(failed.id, ann, None).await.unwrap().is_applied());
        let told = store.audit_list(start, 10).await.unwrap();
        let words: Vec<_> = told.iter().map(|row| (row.action.as_str(), row.object.clone())).collect();
        assert_eq!(words, [
            ("cancel", format!("run {}", pending.id)),
            ("cancel", format!("run {}", running.id)),
            ("retry", format!("run {}", failed.id)),
        ]);
        assert_eq!((told[0].at, told[0].actor.as_str(), told[0].address.as_deref()), (noon(), "ann", Some("10.0.0.7")));
        assert_eq!(told[0].before.as_deref(), Some(r#"{"state":"PENDING"}"#));
        assert_eq!(told[0].after.as_deref(), Some(r#"{"cancel_requested_by":"ann","reason":"wrong day","state":"CANCELED"}"#));
        assert!(told[1].after.as_ref().unwrap().contains(r#""state":"RUNNING""#), "asked, not ended");
        assert_eq!(told[2].before.as_deref(), Some(r#"{"state":"FAILED","tries_allowed":3}"#));
    }

    async fn what_was_refused_or_done_by_the_leader_is_not_told(store: TestStore) {
        let succeeded = store.given_run(RunState::Succeeded).await;
        let pending = store.given_run(RunState::Pending).await;
        let start = store.audit_head().await.unwrap();
        assert!(matches!(store.cancel(Writer::Api, succeeded.id, "ann", None).await.unwrap(), Outcome::Lost(_)));
        assert!(matches!(store.retry(succeeded.id, "ann", None).await.unwrap(), Outcome::Lost(_)));
        let replaced = store.cancel(Writer::Leader(store.epoch), pending.id, "leader", None).await.unwrap();
        assert!(replaced.is_applied());
        assert_eq!(store.audit_head().await.unwrap(), start);
    }

    async fn a_rerun_is_told_with_the_new_run(store: TestStore) {
        let ann = Actor { name: "ann", address: Some("10.0.0.7") };
        let job = store.given_job(&Like::default()).await;
        let other = store.given_job(&Like::default()).await;
        let run = store.given_waiting(&job, &Like::default()).await;
        let start = store.audit_head().await.unwrap();
        assert!(!store.rerun(ann, &job, run).await.unwrap().is_applied(), "it has not ended");
        assert_eq!(store.audit_head().await.unwrap(), start, "what was refused is not told");
        assert!(store.cancel(Writer::Api, run, ann, None).await.unwrap().is_applied());
        assert!(store.rerun(ann, &other, run).await.unwrap_err().is_invalid_input(), "another job's");
        let new = store.rerun(ann, &job, run).await.unwrap().applied().unwrap();
        let told = store.audit_list(start.seq + 1, 10).await.unwrap();
        assert_eq!(words(&told), [("ann", "rerun", format!("run {run}"))]);
        assert_eq!(told[0].address.as_deref(), Some("10.0.0.7"));
        assert_eq!(told[0].before.as_deref(), Some(r#"{"job_version":1,"state":"CANCELED"}"#));
        assert_eq!(told[0].after.clone().unwrap(), format!(r#"{{"job_version":1,"run":{new}}}"#));
    }

    /// Whether it has ended is asked in the transaction that makes the new run: once somebody has
    /// given it one more try, nobody runs it again beside that.
    async fn no_rerun_follows_a_retry(store: TestStore) {
        let job = store.given_job(&Like::default()).await;
        for round in 0..20 {
            let run = store.given_waiting(&job, &Like::default()).await;
            store.given_failure(run, ErrorCode::INVALID_INPUT).await;
            let start = store.audit_head().await.unwrap().seq;
            let (rerun, retry) = tokio::join!(store.rerun("ann", &job, run), store.retry(run, "bob", None));
            assert!(retry.unwrap().is_applied(), "round {round}");
            let told = store.audit_list(start, 10).await.unwrap();
            let actions: Vec<&str> = told.iter().map(|row| row.action.as_str()).collect();
            let expected: &[&str] = if rerun.unwrap().is_applied() { &["rerun", "retry"] } else { &["retry"] };
            assert_eq!(actions, expected, "round {round}");
        }
    }

    async fn a_run_by_hand_is_told_once(store: TestStore) {
        let job = store.given_job(&Like::default()).await;
        let new = NewRun { idempotency_key: Some("now".to_owned()), args: Some("7".to_owned()), ..NewRun::task(&job) };
        let start = store.audit_head().await.unwrap().seq;
        let made = store.trigger("ann", seen(&job), &new).await.unwrap().unwrap();
        let again = store.trigger("ann", seen(&job), &new).await.unwrap().unwrap();
        assert_eq!((made.existed, again.existed, again.run), (false, true, made.run));
        let run = store.run_now(made.run).await;
        assert_eq!((run.origin, run.args.as_deref()), (Origin::Manual, Some("7")));
        let told = store.audit_list(start, 10).await.unwrap();
        assert_eq!(words(&told), [("ann", "trigger", format!("job {}", job.job))]);
        let after = format!(r#"{{"job_version":1,"run":{},"scope":"global/global"}}"#, made.run);
        assert_eq!((&told[0].before, told[0].after.as_deref()), (&None, Some(after.as_str())));
    }

    async fn a_run_by_hand_is_of_the_job_that_was_seen(store: TestStore) {
        let (job, other) = (store.given_job(&Like::default()).await, store.given_job(&Like::default()).await);
        let refused = store.trigger("ann", seen(&other), &NewRun::task(&job)).await.unwrap_err();
        assert!(refused.is_invalid_input(), "{refused}");
        drop(store.delete_job("bob", seen(&job)).await.unwrap());
        assert_eq!(store.trigger("ann", seen(&job), &NewRun::task(&job)).await.unwrap(), None);
        for origin in [Origin::Manual, Origin::Rerun] {
            let untold = NewRun { origin, ..NewRun::task(&other) };
            assert!(store.create(Writer::Api, &[untold]).await.unwrap_err().is_invalid_input());
        }
        assert!(store.due("", noon(), 10).await.unwrap().is_empty());
    }

    async fn putting_a_worker_aside_is_told(store: TestStore) {
        let start = store.audit_head().await.unwrap().seq;
        let (worker, leader) = (store.worker, store.worker.to_string());
        assert!(store.drain_worker("ann", worker).await.unwrap());
        assert!(!store.drain_worker("ann", worker).await.unwrap(), "once");
        assert!(store.detach_worker(Writer::Leader(store.epoch), leader.as_str(), worker, "silent").await.unwrap());
        assert!(!store.detach_worker(Writer::Api, "bob", worker, "silent").await.unwrap(), "once");
        let nobody = WorkerId::from_random(99);
        assert!(!store.drain_worker("ann", nobody).await.unwrap());
        let told = store.audit_list(start, 10).await.unwrap();
        let object = format!("worker {worker}");
        assert_eq!(words(&told), [("ann", "drain", object.clone()), (&leader, "detach", object)]);
        assert_eq!(told[0].before.as_deref(), Some(r#"{"detached":false,"draining":false,"node":"node"}"#));
        assert_eq!(told[1].before.as_deref(), Some(r#"{"detached":false,"draining":true,"node":"node"}"#));
        assert_eq!(
            told[1].after.as_deref(),
            Some(r#"{"detached":true,"draining":true,"epoch":1,"node":"node","reason":"silent"}"#)
        );
    }

    async fn taking_the_lead_away_is_told(store: TestStore) {
        let start = store.audit_head().await.unwrap().seq;
        let (first, rival) = (store.worker.to_string(), WorkerId::from_random(2));
        assert!(!store.depose("ann", Epoch(7)).await.unwrap(), "not the epoch");
        assert!(store.depose(rival.to_string().as_str(), store.epoch).await.unwrap());
        assert!(!store.demote("ann", store.epoch, "slow").await.unwrap(), "given up already");
        let epoch = store.mint(rival, store.epoch, Epoch(0), TTL).await.unwrap().unwrap();
        assert!(!store.demote("ann", store.epoch, "slow").await.unwrap(), "there is another");
        assert!(store.demote("ann", epoch, "slow").await.unwrap());
        assert!(!store.renew_term(rival, epoch, TTL, TTL).await.unwrap());
        let told = store.audit_list(start, 10).await.unwrap();
        assert_eq!(words(&told), [
            (rival.to_string().as_str(), "depose", "leader of epoch 1".to_owned()),
            ("ann", "demote", "leader of epoch 2".to_owned()),
        ]);
        assert_eq!(told[0].before.clone().unwrap(), format!(r#"{{"holder":"{first}"}}"#));
        assert_eq!(told[1].before.clone().unwrap(), format!(r#"{{"holder":"{rival}"}}"#));
        assert_eq!(told[1].after.as_deref(), Some(r#"{"holder":null,"reason":"slow"}"#));
    }

    async fn a_new_job_is_told(store: TestStore) {
        let job = store.given_job(&Like::default()).await;
        let told = store.audit_list(0, 10).await.unwrap();
        assert_eq!((told[0].actor.as_str(), told[0].action.as_str()), ("test", "create"));
        assert_eq!((told[0].object.clone(), &told[0].before), (format!("job {}", job.job), &None));
    }

    async fn two_who_tell_at_once_follow_one_another(store: TestStore) {
        let (one, other) = (store.given_run(RunState::Pending).await, store.given_run(RunState::Pending).await);
        let start = store.audit_head().await.unwrap().seq;
        let both = at_once(
            store.cancel(Writer::Api, one.id, "ann", None),
            store.cancel(Writer::Api, other.id, "bob", None),
        );
        assert!(both.await.into_iter().all(|outcome| outcome.unwrap().is_applied()));
        assert!(matches!(store.audit_verify(None).await.unwrap(), Verified::Whole(head) if head.seq == start + 2));
    }

    /// Sixteen at once on four connections: nobody waits for somebody who waits for them.
    async fn many_who_tell_at_once_follow_one_another(store: TestStore) {
        let mut cancels = Vec::new();
        for _ in 0..16 {
            let run = store.given_run(RunState::Pending).await.id;
            let store = tasuki_store::Store::clone(store);
            cancels.push(async move { store.cancel(Writer::Api, run, "ann", None).await.unwrap().is_applied() });
        }
        let start = store.audit_head().await.unwrap().seq;
        let cancels: Vec<_> = cancels.into_iter().map(tokio::spawn).collect();
        for cancel in cancels {
            assert!(cancel.await.unwrap());
        }
        assert!(matches!(store.audit_verify(None).await.unwrap(), Verified::Whole(head) if head.seq == start + 16));
    }

    /// A reason is a sentence, on every database.
    async fn a_long_reason_is_kept_whole(store: TestStore) {
        let reason = "x".repeat(1_000);
        let run = store.given_run(RunState::Assigned).await.id;
        assert!(store.cancel(Writer::Api, run, "ann", Some(&reason)).await.unwrap().is_applied());
        assert_eq!(store.run_now(run).await.reason, Some(reason));
    }

    async fn the_audit_is_not_changed_by_hand(store: TestStore) {
        given_changes(store, 1).await;
        for (typed, expected) in [
            ("update tasuki_audit set actor = 'eve'", "the audit is never changed"),
            ("delete from tasuki_audit", "the audit is never deleted"),
        ] {
            let refused = store.script(typed).await.unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}

/// Who did what on what.
fn words(told: &[AuditRow]) -> Vec<(&str, &str, String)> {
    told.iter().map(|row| (row.actor.as_str(), row.action.as_str(), row.object.clone())).collect()
}

/// One more change, when so many have been made.
async fn given_changes_after(store: &TestStore, version: i64) {
    let change = store.change_settings("ann", version, &[("max_releases", "5")]).await.unwrap();
    assert!(matches!(change, tasuki_store::SettingsChange::Applied(_)));
}
