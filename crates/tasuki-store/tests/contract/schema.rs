//! Migrations: each is applied exactly once, also when several processes migrate, and never to a newer schema.

use tasuki_store::{Dialect, Error, Migration, Store};

use crate::fixtures::{TestDatabase, TestStore, contract};

contract! {
    async fn migrating_again_does_nothing(store: TestStore) {
        assert!(store.pending_migrations().await.unwrap().is_empty());
        assert!(store.migrate().await.unwrap().is_empty());
    }

    async fn a_newer_schema_is_refused_with_a_readable_error(store: TestStore) {
        store.skip_doctor();
        store.execute_script("insert into tasuki_migration (version, name, checksum, applied_at) values (99, 'x', 'y', 1)").await.unwrap();
        let refused = store.migrate().await.unwrap_err();
        assert!(matches!(refused, Error::NewerSchema { found: 99, .. }), "{refused}");
        assert_eq!(refused.to_string(), "the database has schema version 99, but this tasuki supports only versions up to 1");
    }

    async fn an_edited_migration_is_detected(store: TestStore) {
        store.skip_doctor();
        store.execute_script("update tasuki_migration set checksum = 'edited' where version = 1").await.unwrap();
        let refused = store.migrate().await.unwrap_err().to_string();
        assert_eq!(refused, "migration 1 (initial) differs from the migration with this number in this version of tasuki");
    }

    async fn an_interrupted_migration_is_detected(store: TestStore) {
        store.skip_doctor();
        store.execute_script("update tasuki_migration set applied_at = null where version = 1").await.unwrap();
        let refused = store.migrate().await.unwrap_err().to_string();
        assert!(refused.starts_with("migration 1 (initial) was not completed"), "{refused}");
    }
}

/// Listing the pending migrations only reads: it does not wait for a writer.
#[test]
fn pending_migrations_are_listed_during_a_write() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let place = TestDatabase::new(Dialect::Sqlite).await;
        let (store, writer) =
            (Store::open(&place.url, 2).await.unwrap(), Store::open(&place.url, 1).await.unwrap());
        assert_eq!(
            store.pending_migrations().await.unwrap().len(),
            Migration::all(Dialect::Sqlite).len()
        );
        writer.execute_script("begin immediate").await.unwrap();
        let pending =
            tokio::time::timeout(std::time::Duration::from_secs(2), store.pending_migrations())
                .await;
        assert_eq!(
            pending.expect("listing waited for the writer").unwrap().len(),
            Migration::all(Dialect::Sqlite).len()
        );
        writer.execute_script("rollback").await.unwrap();
        assert!(!store.migrate().await.unwrap().is_empty());
        assert!(store.pending_migrations().await.unwrap().is_empty());
        writer.close().await;
        store.close().await;
        place.remove().await;
    });
}

#[test]
fn all_dialects_have_migrations_with_the_same_numbers_and_names() {
    let names = |dialect| -> Vec<(i64, &str)> {
        Migration::all(dialect).iter().map(|one| (one.version, one.name)).collect()
    };
    assert_eq!(names(Dialect::Sqlite), names(Dialect::Postgres));
    assert_eq!(names(Dialect::Sqlite), names(Dialect::MySql));
    for folder in ["sqlite", "postgres", "mysql"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(folder);
        assert_eq!(
            std::fs::read_dir(path).unwrap().count(),
            names(Dialect::Sqlite).len(),
            "{folder}"
        );
    }
}

fn migrate_twice_at_once(dialect: Dialect) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let place = TestDatabase::new(dialect).await;
        let one = Store::open(&place.url, 2).await.unwrap();
        let other = Store::open(&place.url, 2).await.unwrap();
        let (first, second) = tokio::join!(one.migrate(), other.migrate());
        let applied = first.unwrap().len() + second.unwrap().len();
        assert_eq!(applied, Migration::all(dialect).len(), "each migration is applied once");
        one.close().await;
        other.close().await;
        place.remove().await;
    });
}

#[test]
fn concurrent_migrations_apply_each_migration_once_sqlite() {
    migrate_twice_at_once(Dialect::Sqlite);
}

#[test]
fn concurrent_migrations_apply_each_migration_once_postgres() {
    migrate_twice_at_once(Dialect::Postgres);
}

#[test]
fn concurrent_migrations_apply_each_migration_once_mysql() {
    migrate_twice_at_once(Dialect::MySql);
}
