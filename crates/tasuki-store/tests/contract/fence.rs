//! Writes that wait: an old leader's that already waits for a row when a newer term is wanted; a worker's
//! that waits for its lease. What counts is what is true after the wait.

use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use sqlx::{Connection as _, Executor as _, MySqlConnection, PgConnection, SqliteConnection};
use tasuki_core::{Epoch, RunId, RunState, WorkerId};
use tasuki_store::{Writer, Dialect, Error, NewRun, Renewed, Store};

use crate::given::{self, Like, TTL, TestStore};

/// Somebody who holds a run's row in an open transaction.
enum Bystander {
    Postgres(PgConnection),
    MySql(MySqlConnection),
}

impl Bystander {
    async fn holding(store: &TestStore, run: RunId) -> Self {
        Self::doing(store, format!("select id from tasuki_run where id = {run} for update")).await
    }

    async fn doing(store: &TestStore, what: String) -> Self {
        let lock = sqlx::AssertSqlSafe(what);
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
            Dialect::Sqlite => unreachable!("one writer at a time: nobody waits for a row"),
        }
    }

    async fn let_go(self) {
        self.end("rollback").await;
    }

    async fn end(self, how: &'static str) {
        match self {
            Self::Postgres(mut connection) => drop(connection.execute(how).await.unwrap()),
            Self::MySql(mut connection) => drop(connection.execute(how).await.unwrap()),
        }
    }
}

/// The old leader's cancel holds the fence and waits for the run; the mint waits for it. Whatever the
/// old leader wrote was there before the new term, and nothing of it comes after.
fn an_old_write_that_waits_lands_before_the_mint_or_never(dialect: Dialect) {
    given::run_in_parallel(dialect, 4, |store| async move {
        let run = store.given_run(RunState::Running).await.id;
        let other = store.given_run(RunState::Running).await.id;
        store.at(31);
        let (old, rival) = (store.epoch, WorkerId::from_random(2));
        let bystander = Bystander::holding(&store, run).await;

        let writer = std::sync::Arc::clone(&store);
        let write =
            tokio::spawn(
                async move { writer.cancel(Writer::Leader(old), run, "replace", None).await },
            );
        while waiting(&store).await < 1 {
            assert!(!write.is_finished(), "it has to wait for the row");
        }
        let minter = std::sync::Arc::clone(&store);
        let mint = tokio::spawn(async move { minter.mint(rival, old, Epoch(0), TTL).await });
        while waiting(&store).await < 2 {
            assert!(!mint.is_finished(), "a mint does not overtake a write that has the fence");
        }
        assert_eq!(store.leader().await.unwrap().epoch, old);

        bystander.let_go().await;
        let written = write.await.unwrap().unwrap();
        assert_eq!(mint.await.unwrap().unwrap(), Some(Epoch(old.0 + 1)));
        assert!(written.is_applied(), "it was the leader's when it was written");

        let late = store.cancel(Writer::Leader(old), other, "replace", None).await;
        assert!(matches!(late, Err(Error::Fenced(_))), "{late:?}");
        assert_eq!(store.run_now(other).await.cancel_requested_at, None);
    });
}

/// A start is under way when its worker renews. The renewal waits for the lease, and tells what is true
/// then: the worker that had no answer to its start learns that it has started.
fn a_renewal_tells_what_is_true_after_its_wait(dialect: Dialect) {
    given::run_in_parallel(dialect, 4, |store| async move {
        let run = store.given_run(RunState::Assigned).await;
        let (id, token) = (run.id, run.token.unwrap());
        let start = format!(
            "update tasuki_lease set heartbeat_at = heartbeat_at + 1;
             update tasuki_run set state = 'RUNNING', tries = tries + 1, started_at = assigned_at, version = version + 1
              where id = {id}"
        );
        let bystander = Bystander::doing(&store, start).await;
        let worker = std::sync::Arc::clone(&store);
        let renew = tokio::spawn(async move { worker.renew(worker.worker, token, TTL).await });
        while waiting(&store).await < 1 {
            assert!(!renew.is_finished(), "it has to wait for the lease");
        }
        bystander.end("commit").await;
        let Renewed::Held { runs, .. } = renew.await.unwrap().unwrap() else {
            panic!("it is held")
        };
        assert_eq!(
            runs.iter().map(|run| (run.run, run.state)).collect::<Vec<_>>(),
            [(id, RunState::Running)]
        );
    });
}

#[test]
fn a_renewal_tells_what_is_true_after_its_wait_postgres() {
    a_renewal_tells_what_is_true_after_its_wait(Dialect::Postgres);
}

#[test]
fn a_renewal_tells_what_is_true_after_its_wait_mysql() {
    a_renewal_tells_what_is_true_after_its_wait(Dialect::MySql);
}

/// Somebody lists a waiting run anew, as retention does, while it is claimed: the claim waits, and takes all it asked for.
fn a_claim_that_waited_for_a_run_takes_it(dialect: Dialect) {
    given::run_in_parallel(dialect, 4, |store| async move {
        let job = store.given_job(&Like { lane: "q", ..Like::default() }).await;
        let runs: Vec<NewRun<'_>> = (0..128).map(|_| NewRun::task(&job)).collect();
        let made = store.create(Writer::Api, &runs).await.unwrap();
        let touch = format!(
            "update tasuki_run set args = '{{}}' where id in ({}, {})",
            made[2].run, made[70].run
        );
        let bystander = Bystander::doing(&store, touch).await;
        let worker = std::sync::Arc::clone(&store);
        let claim = tokio::spawn(async move { worker.try_claim("q", 100).await.1 });
        while waiting(&store).await < 1 {
            assert!(!claim.is_finished(), "it has to wait for the runs");
        }
        bystander.end("commit").await;
        let taken: Vec<RunId> = claim.await.unwrap().iter().map(|taken| taken.id).collect();
        let first: Vec<RunId> = made[..100].iter().map(|made| made.run).collect();
        assert_eq!(taken, first);
    });
}

#[test]
fn a_claim_that_waited_for_a_run_takes_it_postgres() {
    a_claim_that_waited_for_a_run_takes_it(Dialect::Postgres);
}

#[test]
fn a_claim_that_waited_for_a_run_takes_it_mysql() {
    a_claim_that_waited_for_a_run_takes_it(Dialect::MySql);
}

/// Cut off while its start waits for the lease: nothing starts.
#[test]
fn a_start_that_waited_sees_that_its_worker_was_cut_off_postgres() {
    given::run_in_parallel(Dialect::Postgres, 4, |store| async move {
        let run = store.given_run(RunState::Assigned).await;
        let (id, token) = (run.id, run.token.unwrap());
        let busy = "update tasuki_lease set heartbeat_at = heartbeat_at + 1".to_owned();
        let bystander = Bystander::doing(&store, busy).await;
        let worker = std::sync::Arc::clone(&store);
        let start = tokio::spawn(async move { worker.try_start(token, id).await });
        while waiting(&store).await < 1 {
            assert!(!start.is_finished(), "it has to wait for the lease");
        }
        let mut other = PgConnection::connect(&store.url).await.unwrap();
        other.execute("update tasuki_worker set detached_at = heartbeat_at").await.unwrap();
        bystander.let_go().await;
        assert!(!start.await.unwrap().is_applied());
        assert_eq!(store.run_now(id).await.state, RunState::Assigned);
    });
}

/// Leases are locked before their runs. Who asks about runs has them in its hand, and only reads the leases: somebody
/// renews them meanwhile.
fn who_asks_whether_it_may_go_on_waits_for_no_lease(dialect: Dialect) {
    given::run_in_parallel(dialect, 4, |store| async move {
        let run = store.given_run(RunState::Running).await;
        let asks = [(run.id, run.token.unwrap())];
        let busy = "update tasuki_lease set heartbeat_at = heartbeat_at + 1".to_owned();
        let bystander = Bystander::doing(&store, busy).await;
        let asked = async {
            assert_eq!(store.confirm(&asks, TTL).await.unwrap(), [run.id]);
            assert_eq!(store.confirmed(&asks).await.unwrap(), [run.id]);
        };
        tokio::time::timeout(TTL / 3, asked).await.expect("it need not wait");
        bystander.let_go().await;
    });
}

#[test]
fn who_asks_whether_it_may_go_on_waits_for_no_lease_postgres() {
    who_asks_whether_it_may_go_on_waits_for_no_lease(Dialect::Postgres);
}

#[test]
fn who_asks_whether_it_may_go_on_waits_for_no_lease_mysql() {
    who_asks_whether_it_may_go_on_waits_for_no_lease(Dialect::MySql);
}

/// How many transactions of this test wait for a lock.
async fn waiting(store: &TestStore) -> i64 {
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
            // It looks anew only at questions that are a tenth of a second apart.
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
        Dialect::Sqlite => unreachable!("one writer at a time"),
    }
}

/// SQLite has no rows to wait for, but one lock for all writers: the old leader waits for it while a
/// newer term is minted under it.
#[test]
fn an_old_write_that_waits_comes_after_the_mint_and_is_refused_sqlite() {
    given::run_in_parallel(Dialect::Sqlite, 2, |store| async move {
        let run = store.given_run(RunState::Running).await;
        store.at(31);
        let old = store.epoch;
        let mut rival = SqliteConnection::connect(&store.url).await.unwrap();
        let now = store.clock().as_microsecond();
        // What a mint writes, in a transaction that stays open for a while.
        let mint = format!(
            "begin immediate;
             update tasuki_leader_lease set epoch = epoch + 1, holder = zeroblob(16), lease_until = {now} + 30000000,
                    renewed_at = {now}, fresh_since = {now};
             update tasuki_leader_term set epoch = epoch + 1, holder = zeroblob(16), minted_at = {now};
             insert into tasuki_term_history (epoch, holder, minted_at) values ({old} + 1, zeroblob(16), {now})"
        );
        rival.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(mint))).await.unwrap();
        let writer = std::sync::Arc::clone(&store);
        let (id, (begun, begins)) = (run.id, tokio::sync::oneshot::channel());
        let write = tokio::spawn(async move {
            begun.send(()).unwrap();
            writer.cancel(Writer::Leader(old), id, "replace", None).await
        });
        begins.await.unwrap();
        assert_eq!(store.leader().await.unwrap().epoch, old, "nothing is committed yet");
        assert!(!write.is_finished(), "it has to wait for the lock");
        rival.execute("commit").await.unwrap();
        let late = write.await.unwrap();
        assert!(matches!(late, Err(Error::Fenced(_))), "{late:?}");
        assert_eq!(store.run_now(run.id).await, run, "and nothing of it is there");
    });
}

const STOPPED: &str = "TASUKI_TEST_STOPPED";

/// Stops a child, and returns when it stands still. The signal alone does not say so: it goes to the child's first thread, and
/// until that one has had its turn on a busy machine, the others go on and finish what they write.
fn stop(child: Pid) {
    kill(child, Signal::SIGSTOP).unwrap();
    let stands = waitpid(child, Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert_eq!(stands, WaitStatus::Stopped(child, Signal::SIGSTOP), "it was not done before");
}

/// A leader in a process of its own is stopped in mid-write, with the fence in its hand. The database
/// ends its session by itself, the mint goes on, and what was half written never was.
fn a_leader_that_is_stopped_in_mid_write_does_not_hold_up_the_next(dialect: Dialect) {
    given::run_in_parallel(dialect, 4, |store| async move {
        let run = store.given_run(RunState::Running).await;
        store.at(31);
        let bystander = Bystander::holding(&store, run.id).await;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["fence::the_leader_that_is_stopped", "--exact", "--nocapture"])
            .env(STOPPED, format!("{} {} {}", store.epoch, run.id, store.url))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while waiting(&store).await < 1 {
            assert!(child.try_wait().unwrap().is_none(), "it has to wait for the row");
        }
        let pid = Pid::from_raw(child.id() as i32);
        stop(pid);
        bystander.let_go().await;

        let asked = Instant::now();
        let minted = store.mint(WorkerId::from_random(2), store.epoch, Epoch(0), TTL).await;
        println!("{dialect:?}: the mint took {:?}", asked.elapsed());
        assert_eq!(minted.unwrap(), Some(Epoch(store.epoch.0 + 1)));

        kill(pid, Signal::SIGCONT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "its write was refused");
        assert_eq!(store.run_now(run.id).await, run, "and nothing of it is there");
    });
}

/// What is run as a process of its own: one write of a leader, which must not succeed.
#[test]
fn the_leader_that_is_stopped() {
    let Ok(told) = std::env::var(STOPPED) else {
        let none = "1 2".split_once(' ').map(|(epoch, run)| (epoch.parse(), run.parse()));
        assert_eq!(none, Some((Ok(Epoch(1)), Ok(RunId(2)))), "its orders can be read");
        return;
    };
    let orders: Vec<&str> = told.splitn(3, ' ').collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let written = runtime.block_on(async {
        let store = Store::open(orders[2], 1).await.unwrap();
        let (epoch, run) = (orders[0].parse().unwrap(), orders[1].parse().unwrap());
        store.cancel(Writer::Leader(epoch), run, "replace", None).await
    });
    assert!(written.is_err(), "{written:?}");
}

#[test]
fn a_stopped_leader_does_not_hold_up_the_next_postgres() {
    a_leader_that_is_stopped_in_mid_write_does_not_hold_up_the_next(Dialect::Postgres);
}

#[test]
fn a_stopped_leader_does_not_hold_up_the_next_mysql() {
    a_leader_that_is_stopped_in_mid_write_does_not_hold_up_the_next(Dialect::MySql);
}

#[test]
fn an_old_write_that_waits_lands_before_the_mint_or_never_postgres() {
    an_old_write_that_waits_lands_before_the_mint_or_never(Dialect::Postgres);
}

#[test]
fn an_old_write_that_waits_lands_before_the_mint_or_never_mysql() {
    an_old_write_that_waits_lands_before_the_mint_or_never(Dialect::MySql);
}
