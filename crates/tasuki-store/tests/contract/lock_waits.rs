//! Writes that wait for a lock: the write of an old leader that waits for a row while another worker takes
//! leadership, and the write of a worker that waits for its lease. The result must depend on the state after the
//! wait, not before it.

use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use sqlx::{Connection as _, Executor as _, MySqlConnection, PgConnection, SqliteConnection};
use tasuki_core::{Epoch, RunId, RunState, WorkerId};
use tasuki_store::{Dialect, Error, NewRun, RenewResult, Store, Writer};

use crate::fixtures::{self, RunOptions, TTL, TestStore};

/// A separate connection that holds locks in an open transaction.
enum LockHolder {
    Postgres(PgConnection),
    MySql(MySqlConnection),
}

impl LockHolder {
    async fn lock_run(store: &TestStore, run: RunId) -> Self {
        Self::lock_with(store, format!("select id from tasuki_run where id = {run} for update"))
            .await
    }

    async fn lock_with(store: &TestStore, sql: String) -> Self {
        let lock = sqlx::AssertSqlSafe(sql);
        match store.dialect() {
            Dialect::Postgres => {
                let mut connection = PgConnection::connect(&store.url).await.unwrap();
                connection.execute("begin").await.unwrap();
                connection.execute(sqlx::raw_sql(lock)).await.unwrap();
                Self::Postgres(connection)
            }
            Dialect::MySql => {
                let mut connection = MySqlConnection::connect(&store.url).await.unwrap();
                connection.execute("start transaction").await.unwrap();
                connection.execute(sqlx::raw_sql(lock)).await.unwrap();
                Self::MySql(connection)
            }
            Dialect::Sqlite => unreachable!("SQLite has one writer at a time and no row locks"),
        }
    }

    async fn rollback(self) {
        self.execute_and_close("rollback").await;
    }

    async fn execute_and_close(self, statement: &'static str) {
        match self {
            Self::Postgres(mut connection) => drop(connection.execute(statement).await.unwrap()),
            Self::MySql(mut connection) => drop(connection.execute(statement).await.unwrap()),
        }
    }
}

/// The cancel of the old leader has locked the term row and waits for the run's row; taking leadership waits for the
/// term row. So the old leader's write is committed before the new term starts, and none of its writes is committed
/// later.
fn blocked_write_commits_before_a_new_term_or_never(dialect: Dialect) {
    fixtures::run_in_parallel(dialect, 4, |store| async move {
        let run = store.given_run(RunState::Running).await.id;
        let other = store.given_run(RunState::Running).await.id;
        store.set_time(31);
        let (old, rival) = (store.epoch, WorkerId::from_random(2));
        let lock_holder = LockHolder::lock_run(&store, run).await;

        let writer = std::sync::Arc::clone(&store);
        let write =
            tokio::spawn(
                async move { writer.cancel(Writer::Leader(old), run, "replace", None).await },
            );
        while count_waiting_transactions(&store).await < 1 {
            assert!(!write.is_finished(), "the write must wait for the row lock");
        }
        let rival_store = std::sync::Arc::clone(&store);
        let new_term =
            tokio::spawn(
                async move { rival_store.take_leadership(rival, old, Epoch(0), TTL).await },
            );
        while count_waiting_transactions(&store).await < 2 {
            assert!(
                !new_term.is_finished(),
                "a new term must wait for a write that has locked the term row"
            );
        }
        assert_eq!(store.get_leader_record().await.unwrap().epoch, old);

        lock_holder.rollback().await;
        let written = write.await.unwrap().unwrap();
        assert_eq!(new_term.await.unwrap().unwrap(), Some(Epoch(old.0 + 1)));
        assert!(written.is_applied(), "the writer was still the leader");

        let late = store.cancel(Writer::Leader(old), other, "replace", None).await;
        assert!(matches!(late, Err(Error::Fenced(_))), "{late:?}");
        assert_eq!(store.read_run(other).await.cancel_requested_at, None);
    });
}

/// A worker renews a lease while its own start of a run is not committed yet. The renewal waits for the lease row and
/// returns the state after the wait: a worker that lost the response to its start learns that the run has started.
fn renewal_returns_the_state_after_its_wait(dialect: Dialect) {
    fixtures::run_in_parallel(dialect, 4, |store| async move {
        let run = store.given_run(RunState::Assigned).await;
        let (id, token) = (run.id, run.token.unwrap());
        let start = format!(
            "update tasuki_lease set heartbeat_at = heartbeat_at + 1;
             update tasuki_run set state = 'RUNNING', tries = tries + 1, started_at = assigned_at, version = version + 1
              where id = {id}"
        );
        let lock_holder = LockHolder::lock_with(&store, start).await;
        let worker = std::sync::Arc::clone(&store);
        let renew = tokio::spawn(async move { worker.renew_one(token).await });
        while count_waiting_transactions(&store).await < 1 {
            assert!(!renew.is_finished(), "the call must wait for the lease row");
        }
        lock_holder.execute_and_close("commit").await;
        let RenewResult::Held { runs, .. } = renew.await.unwrap() else {
            panic!("the lease is held")
        };
        assert_eq!(
            runs.iter().map(|run| (run.run, run.state)).collect::<Vec<_>>(),
            [(id, RunState::Running)]
        );
    });
}

#[test]
fn a_renewal_returns_the_state_after_its_wait_postgres() {
    renewal_returns_the_state_after_its_wait(Dialect::Postgres);
}

#[test]
fn a_renewal_returns_the_state_after_its_wait_mysql() {
    renewal_returns_the_state_after_its_wait(Dialect::MySql);
}

/// Another transaction updates waiting runs, as retention does, during a claim: the claim waits and then returns as many
/// runs as requested.
fn claim_that_waited_returns_all_requested_runs(dialect: Dialect) {
    fixtures::run_in_parallel(dialect, 4, |store| async move {
        let job = store.given_job(&RunOptions { lane: "q", ..RunOptions::default() }).await;
        let runs: Vec<NewRun<'_>> = (0..128).map(|_| NewRun::task(&job)).collect();
        let created = store.create_or_find_runs(Writer::Api, &runs).await.unwrap();
        let touch = format!(
            "update tasuki_run set args = '{{}}' where id in ({}, {})",
            created[2].run, created[70].run
        );
        let lock_holder = LockHolder::lock_with(&store, touch).await;
        let worker = std::sync::Arc::clone(&store);
        let claim = tokio::spawn(async move { worker.try_claim("q", 100).await.1 });
        while count_waiting_transactions(&store).await < 1 {
            assert!(!claim.is_finished(), "the claim must wait for the rows of the runs");
        }
        lock_holder.execute_and_close("commit").await;
        let claimed: Vec<RunId> = claim.await.unwrap().iter().map(|claimed| claimed.id).collect();
        let first: Vec<RunId> = created[..100].iter().map(|created| created.run).collect();
        assert_eq!(claimed, first);
    });
}

#[test]
fn a_claim_that_waited_returns_all_requested_runs_postgres() {
    claim_that_waited_returns_all_requested_runs(Dialect::Postgres);
}

#[test]
fn a_claim_that_waited_returns_all_requested_runs_mysql() {
    claim_that_waited_returns_all_requested_runs(Dialect::MySql);
}

/// The worker is detached while its start waits for the lease row: the run is not started.
#[test]
fn a_start_that_waited_fails_if_its_worker_was_detached_postgres() {
    fixtures::run_in_parallel(Dialect::Postgres, 4, |store| async move {
        let run = store.given_run(RunState::Assigned).await;
        let (id, token) = (run.id, run.token.unwrap());
        let busy = "update tasuki_lease set heartbeat_at = heartbeat_at + 1".to_owned();
        let lock_holder = LockHolder::lock_with(&store, busy).await;
        let worker = std::sync::Arc::clone(&store);
        let start = tokio::spawn(async move { worker.try_start(token, id).await });
        while count_waiting_transactions(&store).await < 1 {
            assert!(!start.is_finished(), "the call must wait for the lease row");
        }
        let mut other = PgConnection::connect(&store.url).await.unwrap();
        other.execute("update tasuki_worker set detached_at = heartbeat_at").await.unwrap();
        lock_holder.rollback().await;
        assert!(!start.await.unwrap().is_applied());
        assert_eq!(store.read_run(id).await.state, RunState::Assigned);
    });
}

/// Elsewhere leases are locked before their runs. Confirming locks the runs first, so it must read the leases without
/// a lock: otherwise it could deadlock with a renewal.
fn confirming_waits_for_no_lease(dialect: Dialect) {
    fixtures::run_in_parallel(dialect, 4, |store| async move {
        let run = store.given_run(RunState::Running).await;
        let requests = [(run.id, run.token.unwrap())];
        let busy = "update tasuki_lease set heartbeat_at = heartbeat_at + 1".to_owned();
        let lock_holder = LockHolder::lock_with(&store, busy).await;
        let started_at = async {
            assert_eq!(
                store.begin_confirming_after_detach(&requests, TTL).await.unwrap(),
                [run.id]
            );
            assert_eq!(store.end_confirming_after_detach(&requests).await.unwrap(), [run.id]);
        };
        tokio::time::timeout(TTL / 3, started_at)
            .await
            .expect("confirming waited for the lease lock");
        lock_holder.rollback().await;
    });
}

#[test]
fn confirming_waits_for_no_lease_postgres() {
    confirming_waits_for_no_lease(Dialect::Postgres);
}

#[test]
fn confirming_waits_for_no_lease_mysql() {
    confirming_waits_for_no_lease(Dialect::MySql);
}

/// Number of transactions on this test's database that wait for a lock.
async fn count_waiting_transactions(store: &TestStore) -> i64 {
    match store.dialect() {
        Dialect::Postgres => {
            let mut connection = PgConnection::connect(&store.url).await.unwrap();
            sqlx::query_scalar(
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
            )
            .fetch_one(&mut connection)
            .await
            .unwrap()
        }
        Dialect::MySql => {
            // information_schema.innodb_trx is refreshed at most every 0.1 s.
            tokio::time::sleep(std::time::Duration::from_millis(150)).await;
            let mut connection = MySqlConnection::connect(&store.url).await.unwrap();
            sqlx::query_scalar(
                "select count(*) from information_schema.innodb_trx t
                   join information_schema.processlist p on p.id = t.trx_mysql_thread_id
                  where t.trx_state = 'LOCK WAIT' and p.db = database()",
            )
            .fetch_one(&mut connection)
            .await
            .unwrap()
        }
        Dialect::Sqlite => unreachable!("SQLite has one writer at a time"),
    }
}

/// SQLite has no row locks, but one lock for all writers: the old leader waits for it while the transaction that has
/// the lock starts a newer term.
#[test]
fn a_blocked_write_of_an_old_leader_is_refused_after_the_new_term_sqlite() {
    fixtures::run_in_parallel(Dialect::Sqlite, 2, |store| async move {
        let run = store.given_run(RunState::Running).await;
        store.set_time(31);
        let old = store.epoch;
        let mut rival = SqliteConnection::connect(&store.url).await.unwrap();
        let now = store.test_time().as_microsecond();
        // The writes of taking leadership, in a transaction that stays open for a while.
        let new_term = format!(
            "begin immediate;
             update tasuki_leader_lease set epoch = epoch + 1, holder = zeroblob(16), lease_until = {now} + 30000000,
                    renewed_at = {now}, unbroken_since = {now};
             update tasuki_leader_term set epoch = epoch + 1, holder = zeroblob(16), began_at = {now};
             insert into tasuki_term_history (epoch, holder, began_at) values ({old} + 1, zeroblob(16), {now})"
        );
        rival.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(new_term))).await.unwrap();
        let writer = std::sync::Arc::clone(&store);
        let (id, (sender, receiver)) = (run.id, tokio::sync::oneshot::channel());
        let write = tokio::spawn(async move {
            sender.send(()).unwrap();
            writer.cancel(Writer::Leader(old), id, "replace", None).await
        });
        receiver.await.unwrap();
        assert_eq!(
            store.get_leader_record().await.unwrap().epoch,
            old,
            "the new term is not committed yet"
        );
        assert!(!write.is_finished(), "the write must wait for the lock");
        rival.execute("commit").await.unwrap();
        let late = write.await.unwrap();
        assert!(matches!(late, Err(Error::Fenced(_))), "{late:?}");
        assert_eq!(store.read_run(run.id).await, run, "the refused write changed nothing");
    });
}

const STOPPED_LEADER_ARGUMENTS: &str = "TASUKI_TEST_STOPPED";

/// Stops a child process and returns when all its threads have stopped. Sending SIGSTOP is not enough: the signal
/// takes effect when the child's first thread is scheduled, and on a busy machine the other threads can finish their
/// write before that.
fn stop(child: Pid) {
    kill(child, Signal::SIGSTOP).unwrap();
    let status = waitpid(child, Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert_eq!(
        status,
        WaitStatus::Stopped(child, Signal::SIGSTOP),
        "the child must not have ended"
    );
}

/// A leader in a child process is stopped during a write, while it has locked the term row. The database ends the idle
/// connection after its timeout, another worker takes leadership, and the half-done write is rolled back.
fn stopped_leader_does_not_block_the_next(dialect: Dialect) {
    fixtures::run_in_parallel(dialect, 4, |store| async move {
        let run = store.given_run(RunState::Running).await;
        store.set_time(31);
        let lock_holder = LockHolder::lock_run(&store, run.id).await;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["lock_waits::write_of_the_stopped_leader", "--exact", "--nocapture"])
            .env(STOPPED_LEADER_ARGUMENTS, format!("{} {} {}", store.epoch, run.id, store.url))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while count_waiting_transactions(&store).await < 1 {
            assert!(child.try_wait().unwrap().is_none(), "the write must wait for the row lock");
        }
        let pid = Pid::from_raw(child.id() as i32);
        stop(pid);
        lock_holder.rollback().await;

        let started_at = Instant::now();
        let new_epoch =
            store.take_leadership(WorkerId::from_random(2), store.epoch, Epoch(0), TTL).await;
        println!("{dialect:?}: taking leadership took {:?}", started_at.elapsed());
        assert_eq!(new_epoch.unwrap(), Some(Epoch(store.epoch.0 + 1)));

        kill(pid, Signal::SIGCONT).unwrap();
        assert_eq!(
            child.wait().unwrap().code(),
            Some(0),
            "the child expects that its write is refused"
        );
        assert_eq!(store.read_run(run.id).await, run, "the refused write changed nothing");
    });
}

/// The child process of the test above: one write of a leader, which must fail. Without the environment variable it only
/// tests that the ids can be parsed.
#[test]
fn write_of_the_stopped_leader() {
    let Ok(arguments) = std::env::var(STOPPED_LEADER_ARGUMENTS) else {
        let none = "1 2".split_once(' ').map(|(epoch, run)| (epoch.parse(), run.parse()));
        assert_eq!(none, Some((Ok(Epoch(1)), Ok(RunId(2)))), "the ids can be parsed");
        return;
    };
    let arguments: Vec<&str> = arguments.splitn(3, ' ').collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let written = runtime.block_on(async {
        let store = Store::open(arguments[2], 1).await.unwrap();
        let (epoch, run) = (arguments[0].parse().unwrap(), arguments[1].parse().unwrap());
        store.cancel(Writer::Leader(epoch), run, "replace", None).await
    });
    assert!(written.is_err(), "{written:?}");
}

#[test]
fn a_stopped_leader_does_not_block_the_next_postgres() {
    stopped_leader_does_not_block_the_next(Dialect::Postgres);
}

#[test]
fn a_stopped_leader_does_not_block_the_next_mysql() {
    stopped_leader_does_not_block_the_next(Dialect::MySql);
}

#[test]
fn a_blocked_write_commits_before_a_new_term_or_never_postgres() {
    blocked_write_commits_before_a_new_term_or_never(Dialect::Postgres);
}

#[test]
fn a_blocked_write_commits_before_a_new_term_or_never_mysql() {
    blocked_write_commits_before_a_new_term_or_never(Dialect::MySql);
}
