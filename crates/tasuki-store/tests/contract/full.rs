//! A disk that is full, and then is not.

use tasuki_store::{NewEvent, Store};

#[test]
fn what_did_not_fit_is_refused_and_what_comes_after_is_kept() {
    let name = format!("tasuki_full_{}.db", std::process::id());
    let file = std::env::temp_dir().join(name);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&format!("sqlite:{}", file.display()), 2).await.unwrap();
        store.migrate().await.unwrap();
        // No more pages than there are: for this session the disk is full.
        store.script("pragma max_page_count = 1").await.unwrap();
        let payload = format!("{:?}", "x".repeat(500_000));
        let event = NewEvent {
            event_type: "big",
            source: "test",
            dedupe_key: None,
            job_name: None,
            payload: Some(&payload),
        };
        let refused = store.emit(&event).await.unwrap_err().to_string();
        assert!(refused.contains("full"), "{refused}");
        assert_eq!(store.open_events(10).await.unwrap().len(), 0);
        store.script("pragma max_page_count = 1000000").await.unwrap();
        store.emit(&event).await.unwrap();
        assert_eq!(store.open_events(10).await.unwrap().len(), 1);
        store.close().await;
    });
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
}
