//! Migrations: applied once, by one of many, and never over a newer schema.

use tasuki_store::{Dialect, Error, Migration, Store};

use crate::given::{Place, TestStore, contract};

contract! {
    async fn migrating_again_does_nothing(store: TestStore) {
        assert!(store.pending().await.unwrap().is_empty());
        assert!(store.migrate().await.unwrap().is_empty());
    }

    async fn a_newer_schema_is_refused_in_words(store: TestStore) {
        store.spoil();
        store.script("insert into tasuki_migration (version, name, checksum, applied_at) values (99, 'x', 'y', 1)").await.unwrap();
        let refused = store.migrate().await.unwrap_err();
        assert!(matches!(refused, Error::NewerSchema { found: 99, .. }), "{refused}");
        assert_eq!(refused.to_string(), "the database has schema 99, but this tasuki knows only up to 8");
    }

    async fn an_edited_migration_is_noticed(store: TestStore) {
        store.spoil();
        store.script("update tasuki_migration set checksum = 'edited' where version = 3").await.unwrap();
        let refused = store.migrate().await.unwrap_err().to_string();
        assert_eq!(refused, "migration 3 (records) is not the one this tasuki knows by that number");
    }

    async fn one_that_broke_off_is_noticed(store: TestStore) {
        store.spoil();
        store.script("update tasuki_migration set applied_at = null where version = 5").await.unwrap();
        let refused = store.migrate().await.unwrap_err().to_string();
        assert!(refused.starts_with("migration 5 (views) broke off half-way"), "{refused}");
    }
}

/// A look does not wait for whoever writes.
#[test]
fn what_is_pending_is_told_while_somebody_writes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let place = Place::new(Dialect::Sqlite).await;
        let (store, writer) =
            (Store::open(&place.url, 2).await.unwrap(), Store::open(&place.url, 1).await.unwrap());
        assert_eq!(store.pending().await.unwrap().len(), Migration::all(Dialect::Sqlite).len());
        writer.script("begin immediate").await.unwrap();
        let told = tokio::time::timeout(std::time::Duration::from_secs(2), store.pending()).await;
        assert_eq!(told.expect("it waits").unwrap().len(), Migration::all(Dialect::Sqlite).len());
        writer.script("rollback").await.unwrap();
        assert!(!store.migrate().await.unwrap().is_empty());
        assert!(store.pending().await.unwrap().is_empty());
        writer.close().await;
        store.close().await;
        place.remove().await;
    });
}

#[test]
fn the_three_folders_have_the_same_numbers_and_names() {
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

fn two_at_once(dialect: Dialect) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let place = Place::new(dialect).await;
        let one = Store::open(&place.url, 2).await.unwrap();
        let other = Store::open(&place.url, 2).await.unwrap();
        let (first, second) = tokio::join!(one.migrate(), other.migrate());
        let applied = first.unwrap().len() + second.unwrap().len();
        assert_eq!(applied, Migration::all(dialect).len(), "each once");
        one.close().await;
        other.close().await;
        place.remove().await;
    });
}

#[test]
fn two_that_migrate_at_once_take_turns_sqlite() {
    two_at_once(Dialect::Sqlite);
}

#[test]
fn two_that_migrate_at_once_take_turns_postgres() {
    two_at_once(Dialect::Postgres);
}

#[test]
fn two_that_migrate_at_once_take_turns_mysql() {
    two_at_once(Dialect::MySql);
}
