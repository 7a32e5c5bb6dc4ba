//! News: whom another process should wake, on a database that carries it.

use std::time::Duration;

use tasuki_store::{Dialect, News};

use crate::given::{TestStore, contract};

contract! {
    async fn what_is_told_is_heard_where_news_travel(store: TestStore) {
        let news = News { from: 7, claims: true, ..News::default() };
        let Some(mut listener) = store.listen().await.unwrap() else {
            assert_ne!(store.dialect(), Dialect::Postgres);
            store.tell(news).await.unwrap();
            return;
        };
        let all = News { from: 8, leader: true, claims: true, leases: true, lead: true };
        for told in [news, all] {
            store.tell(told).await.unwrap();
            let heard = tokio::time::timeout(Duration::from_secs(30), listener.heard()).await;
            assert_eq!(heard.expect("it is heard").unwrap(), Some(told));
        }
        listener.close().await;
    }
}
