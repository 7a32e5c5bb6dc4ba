//! The examples, run as their first lines say.

use std::path::PathBuf;

#[path = "../../examples/import.rs"]
mod import;
#[path = "../../examples/roll_up.rs"]
mod roll_up;
#[path = "../../examples/shop.rs"]
mod shop;

/// A database file that is not there yet.
struct Fresh(PathBuf);

impl Fresh {
    fn new(name: &str) -> Self {
        let file = format!("tasuki_example_{name}_{}.db", std::process::id());
        let fresh = Self(std::env::temp_dir().join(file));
        fresh.remove();
        fresh
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.0.display())
    }

    fn remove(&self) {
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{suffix}", self.0.display()));
        }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        self.remove();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_import() {
    let fresh = Fresh::new("import");
    let told = import::run(&fresh.url()).await.unwrap();
    let expected = "tea: SUCCEEDED 320\ncup: SUCCEEDED 1250\npot: FAILED \"ask us\" is no price\nspoon: SUCCEEDED 99\n";
    assert_eq!(told, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roll_up_for_each_shop() {
    let fresh = Fresh::new("roll_up");
    let told = roll_up::run(&fresh.url()).await.unwrap();
    assert_eq!(told, "berlin: 1350\nkyoto: 1450\nlima: 1550\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_whose_orders_and_mails_are_one() {
    let fresh = Fresh::new("shop");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let url = fresh.url();
    let serving = tokio::spawn(async move {
        shop::run(&url, listener, async { drop(stopped.await) }).await.map_err(|e| e.to_string())
    });
    let ask = async |method: &str, path: &str, body: &str| {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let body = |answer: &str| answer.rsplit("\r\n\r\n").next().unwrap().to_owned();
    let ordered = ask("POST", "/orders", "tea").await;
    assert!(ordered.starts_with("HTTP/1.1 200"), "{ordered}");
    let run = body(&ordered);
    let refused = ask("POST", "/orders", "nothing").await;
    assert!(refused.starts_with("HTTP/1.1 422"), "{refused}");
    assert_eq!(body(&ask("GET", &format!("/mails/{run}"), "").await), "SUCCEEDED");
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    let pool = sqlx::SqlitePool::connect(&fresh.url()).await.unwrap();
    for table in ["purchase", "tasuki_run"] {
        let count = sqlx::AssertSqlSafe(format!("select count(*) from {table}"));
        let count: i64 = sqlx::query_scalar(count).fetch_one(&pool).await.unwrap();
        assert_eq!(count, 1, "{table}");
    }
    pool.close().await;
}
