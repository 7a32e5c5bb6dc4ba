//! A separate PostgreSQL database for each test, and scripts that fill and empty its tables.

use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::{Connection as _, PgConnection};

use super::explain::execute;
use crate::Store;

/// A migrated database, with a connection that does not belong to a store.
pub(super) struct TestDatabase {
    pub(super) url: String,
    pub(super) connection: PgConnection,
    server: String,
    name: String,
}

impl TestDatabase {
    pub(super) async fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tasuki_plans_{}_{count}", std::process::id());
        let server = std::env::var("TASUKI_TEST_PG")
            .expect("TASUKI_TEST_PG is not set: run ./test, which starts the server");
        let mut admin = PgConnection::connect(&server).await.unwrap();
        // A failed test may have left a database with this name, because process ids are reused.
        execute(&mut admin, &format!("drop database if exists {name}")).await;
        execute(&mut admin, &format!("create database {name}")).await;
        admin.close().await.unwrap();
        let (start, _) = server.rsplit_once('/').unwrap();
        let url = format!("{start}/{name}");
        let store = Store::open(&url, 1).await.unwrap();
        store.migrate().await.unwrap();
        store.close().await;
        let mut connection = PgConnection::connect(&url).await.unwrap();
        execute(&mut connection, DISABLE_AUTOVACUUM).await;
        Self { url, connection, server, name }
    }

    pub(super) async fn remove(self) {
        self.connection.close().await.unwrap();
        let mut admin = PgConnection::connect(&self.server).await.unwrap();
        execute(&mut admin, &format!("drop database {}", self.name)).await;
        admin.close().await.unwrap();
    }
}

/// Disables autovacuum, so that statistics change only when a test runs `analyze`.
const DISABLE_AUTOVACUUM: &str = "
set synchronous_commit = off;
do $$
declare t text;
begin
    for t in select relname from pg_class where relkind = 'r' and relname like 'tasuki\\_%' loop
        execute format('alter table %I set (autovacuum_enabled = off)', t);
    end loop;
end
$$";

/// Fills all tables: 50,000 waiting runs, and similar numbers of other rows.
pub(super) const FILL_TABLES: &str = "
insert into tasuki_job (id, name, trigger_type, created_at, updated_at)
    select i, 'job ' || i, 'task', i, i from generate_series(1, 2000) i;
insert into tasuki_job_version (job_id, version, kind, spec, lane, concurrency, max_attempts, max_releases, backoff_us,
        backoff_cap_us, created_at)
    select 1 + i % 2000, 1 + i / 2000, 'command', '{}', 'bulk', 'allow', 3, 3, 1, 1, i from generate_series(0, 9999) i;
insert into tasuki_run (job_id, scheduled_for, created_at, job_version, max_attempts, tries_allowed, exclusive, origin,
        scope_kind, scope_id, lane, slot, idempotency_key)
    select 1 + i % 2000, i, i, 1, 3, 3, 0, case when i % 2 = 0 then 'time' else 'task' end, 'tenant', i::text,
           case when i % 10 = 0 then '' else 'bulk' end, case when i % 2 = 0 then i::text end, 'key ' || i
      from generate_series(1, 50000) i;
insert into tasuki_due (lane, due_at, run_id, exclusive) select lane, scheduled_for, id, exclusive from tasuki_run;
insert into tasuki_worker (id, node, slots, function_slots, started_at, heartbeat_at)
    select md5(i::text)::uuid, 'node', 8, 8, i, i from generate_series(1, 500) i;
insert into tasuki_hold (job_id, scope_kind, scope_id, run_id, token)
    select job_id, scope_kind, scope_id, id, md5(id::text)::uuid from tasuki_run where id <= 20000;
insert into tasuki_lease (token, worker_id, lease_until, heartbeat_at, run_ids)
    select md5(i::text)::uuid, md5((1 + i % 500)::text)::uuid, i, i, '[' || i || ']' from generate_series(1, 20000) i;
insert into tasuki_attempt (run_id, attempt_no, outcome, token, worker_id, job_version, assigned_at, started_at,
        finished_at)
    select 1 + i / 2, 1 + i % 2, 'FAILED', md5(i::text)::uuid, md5('1')::uuid, 1, i, i, i from generate_series(0, 49999) i;
insert into tasuki_run_note (run_id, attempt_no, verb, actor, at)
    select 1 + i / 2, 1, 'cancel', 'test', i from generate_series(0, 49999) i;
insert into tasuki_log (run_id, attempt_no) select 1 + i, 1 from generate_series(0, 19999) i;
insert into tasuki_log_chunk (run_id, attempt_no, first_line, last_line, at, body)
    select 1 + i / 10, 1, i % 10, i % 10, i, 'line' from generate_series(0, 49999) i;
insert into tasuki_event (event_type, dedupe_key) select 'sold', i::text from generate_series(1, 50000) i;
insert into tasuki_cursor (job_id, scope_id, next_fire)
    select 1 + i % 2000, i::text, i from generate_series(1, 20000) i;
insert into tasuki_stat (minute, job_id, outcome, worker_id, shard, runs, wait_us, run_us)
    select i / 100, i % 100, 'SUCCEEDED', md5('1')::uuid, 0, 1, 1, 1 from generate_series(1, 20000) i;
insert into tasuki_audit (seq, at, actor, action, object, prev_hash, hash)
    select i, i, 'test', 'run', 'job', '', '' from generate_series(1, 20000) i;
insert into tasuki_term_history (epoch, holder, began_at)
    select i, md5('1')::uuid, i from generate_series(1, 2000) i;
insert into tasuki_api_token (name, token_hash, role, created_at, created_by)
    select 'token', sha256(i::text::bytea), 'viewer', i, 'test' from generate_series(1, 2000) i;
insert into tasuki_setting (name, value, changed_at, changed_by)
    select 'setting ' || i, '1', 1, 'test' from generate_series(1, 50) i";

/// Ends nearly all runs: the history remains, and the queues are almost empty.
pub(super) const DRAIN_QUEUES: &str = "
update tasuki_run set state = 'CANCELED', finished_at = 1 where id > 10;
delete from tasuki_due where run_id > 10;
delete from tasuki_hold where run_id > 10;
delete from tasuki_lease where lease_until > 10;
delete from tasuki_cursor where next_fire > 10;
update tasuki_event set processed_at = 1, runs = 0 where id > 10";
