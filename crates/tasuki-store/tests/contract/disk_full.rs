//! A full disk: the write that does not fit is refused, and writes succeed again when there is space.

use tasuki_store::{NewEvent, Store};

#[test]
fn a_write_to_a_full_disk_is_refused_and_later_writes_succeed() {
    let name = format!("tasuki_full_{}.db", std::process::id());
    let file = std::env::temp_dir().join(name);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&format!("sqlite:{}", file.display()), 2).await.unwrap();
        store.migrate().await.unwrap();
        // The database may not grow beyond its current pages: for this connection the disk is full.
        store.execute_script("pragma max_page_count = 1").await.unwrap();
        let payload = format!("{:?}", "x".repeat(500_000));
        let event = NewEvent {
            event_type: "big",
            source: "test",
            dedupe_key: None,
            job_name: None,
            payload: Some(&payload),
        };
        let refused = store.emit_event(&event).await.unwrap_err().to_string();
        assert!(refused.contains("full"), "{refused}");
        assert_eq!(store.list_unprocessed_events(10).await.unwrap().len(), 0);
        store.execute_script("pragma max_page_count = 1000000").await.unwrap();
        store.emit_event(&event).await.unwrap();
        assert_eq!(store.list_unprocessed_events(10).await.unwrap().len(), 1);
        store.close().await;
    });
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
}
