//! Notifications between processes (LISTEN/NOTIFY of PostgreSQL): which loops of another process should wake up.

use std::time::Duration;

use tasuki_store::{Dialect, Notification};

use crate::fixtures::{TestStore, contract};

contract! {
    async fn a_notification_reaches_listeners_on_postgres(store: TestStore) {
        let notification = Notification { sender: 7, wake_claims: true, ..Notification::default() };
        let Some(mut listener) = store.listen().await.unwrap() else {
            assert_ne!(store.dialect(), Dialect::Postgres);
            store.notify(notification).await.unwrap();
            return;
        };
        let all = Notification { sender: 8, wake_planner: true, wake_claims: true, wake_renew_loop: true, wake_election: true };
        for sent in [notification, all] {
            store.notify(sent).await.unwrap();
            let received = tokio::time::timeout(Duration::from_secs(30), listener.receive()).await;
            assert_eq!(received.expect("a notification arrives in time").unwrap(), Some(sent));
        }
        listener.close().await;
    }
}
