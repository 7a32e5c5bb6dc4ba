//! Runs the examples and checks their results.

use std::path::PathBuf;

#[path = "../../examples/import.rs"]
mod import;
#[path = "../../examples/roll_up.rs"]
mod roll_up;
#[path = "../../examples/shop.rs"]
mod shop;

/// A path for a new SQLite database. The file is removed on drop.
struct TestDatabase(PathBuf);

impl TestDatabase {
    fn new(name: &str) -> Self {
        let file = format!("tasuki_example_{name}_{}.db", std::process::id());
        let database = Self(std::env::temp_dir().join(file));
        database.remove();
        database
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

impl Drop for TestDatabase {
    fn drop(&mut self) {
        self.remove();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_import_example_imports_each_row_once() {
    let database = TestDatabase::new("import");
    let output = import::run(&database.url()).await.unwrap();
    let expected = "tea: SUCCEEDED 320\ncup: SUCCEEDED 1250\npot: FAILED \"ask us\" is not a price\nspoon: SUCCEEDED 99\n";
    assert_eq!(output, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_roll_up_example_adds_up_the_sales_of_each_shop() {
    let database = TestDatabase::new("roll_up");
    let output = roll_up::run(&database.url()).await.unwrap();
    assert_eq!(output, "berlin: 1350\nkyoto: 1450\nlima: 1550\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shop_example_stores_orders_and_mails_in_one_transaction() {
    let database = TestDatabase::new("shop");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let url = database.url();
    let serving = tokio::spawn(async move {
        shop::run(&url, listener, async { drop(stopped.await) }).await.map_err(|e| e.to_string())
    });
    let request = async |method: &str, path: &str, body: &str| {
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
    let ordered = request("POST", "/orders", "tea").await;
    assert!(ordered.starts_with("HTTP/1.1 200"), "{ordered}");
    let run = body(&ordered);
    let rejected = request("POST", "/orders", "nothing").await;
    assert!(rejected.starts_with("HTTP/1.1 422"), "{rejected}");
    assert_eq!(body(&request("GET", &format!("/mails/{run}"), "").await), "SUCCEEDED");
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    let pool = sqlx::SqlitePool::connect(&database.url()).await.unwrap();
    for table in ["purchase", "tasuki_run"] {
        let count = sqlx::AssertSqlSafe(format!("select count(*) from {table}"));
        let count: i64 = sqlx::query_scalar(count).fetch_one(&pool).await.unwrap();
        assert_eq!(count, 1, "{table}");
    }
    pool.close().await;
}
