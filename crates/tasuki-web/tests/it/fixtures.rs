//! Fixtures: a running server with its database, tokens, and a fake worker that a test controls.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tasuki::operator::{AccessRole, Actor};
use tasuki::{Operator, Wakeups};
use tasuki_core::{LeaseToken, RunId, WorkerId};
use tasuki_store::{
    AttemptReport, AttemptResult, ClaimRequest, ClaimResult, LogLine, NewWorker, OutputStream,
    Store,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A running server with its database, and a client with an administrator token.
pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) operator: Operator,
    pub(crate) url: String,
    client: reqwest::Client,
    token: String,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<std::io::Result<()>>>,
    folder: PathBuf,
}

/// A response whose body has been read.
#[derive(Debug)]
pub(crate) struct ApiResponse {
    pub(crate) status: u16,
    pub(crate) etag: Option<String>,
    pub(crate) location: Option<String>,
    pub(crate) content_type: String,
    pub(crate) body: Value,
}

impl ApiResponse {
    async fn read(response: Response) -> Self {
        let header = |name: &str| {
            response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
        };
        let (etag, location) = (header("etag"), header("location"));
        let (content_type, status) =
            (header("content-type").unwrap_or_default(), response.status());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        let response = Self { status: status.as_u16(), etag, location, content_type, body };
        if status.is_client_error() || status.is_server_error() {
            response.check_problem(status);
        }
        response
    }

    /// Checks the format of an error response.
    fn check_problem(&self, status: StatusCode) {
        assert_eq!(self.content_type, "application/problem+json", "{self:?}");
        assert_eq!(self.body["status"], status.as_u16(), "{self:?}");
        let code = self.body["code"].as_str().unwrap();
        assert_eq!(self.body["type"], format!("/docs/errors#{code}"));
        assert!(tasuki_web::CODES.iter().any(|known| known.code == code), "{code}");
        for field in ["title", "detail"] {
            assert!(!self.body[field].as_str().unwrap().is_empty(), "{self:?}");
        }
    }

    /// Status, code and field of an error response.
    pub(crate) fn error(&self) -> (u16, &str, &str) {
        let text = |name: &str| self.body[name].as_str().unwrap_or_default();
        (self.status, text("code"), text("field"))
    }

    /// Returns the body; panics if the response has another status.
    #[track_caller]
    pub(crate) fn expect_status(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.body
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("tasuki_web_{}_{count}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let url = format!("sqlite:{}", folder.join("test.db").display());
        let store = Store::open(&url, 4).await.unwrap();
        store.migrate().await.unwrap();
        let operator = Operator::new(store.clone(), Wakeups::default());
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let router = tasuki_web::router(operator.clone());
        let task = tokio::spawn(tasuki_web::serve(listener, router, async {
            let _ = stopped.await;
        }));
        let mut server = Self {
            store,
            operator,
            url,
            client: reqwest::Client::new(),
            token: String::new(),
            stop: Some(stop),
            task: Some(task),
            folder,
        };
        server.token = server.create_token(AccessRole::Admin).await;
        server
    }

    /// Creates a token with a role; its name is that of the role.
    pub(crate) async fn create_token(&self, role: AccessRole) -> String {
        let root = Actor { name: "root".to_owned(), address: None, role: AccessRole::Admin };
        self.operator.create_token(&root, role.as_str(), role, None).await.unwrap().secret
    }

    /// A request without a token.
    pub(crate) fn request_without_token(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).timeout(Duration::from_secs(20))
    }

    /// A request with the administrator token.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.request_without_token(method, &format!("/api/v1{path}")).bearer_auth(&self.token)
    }

    pub(crate) async fn get(&self, path: &str) -> ApiResponse {
        send_request(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> ApiResponse {
        send_request(self.request(Method::POST, path).json(&body)).await
    }

    /// Sends a change with an `If-Match` header.
    pub(crate) async fn change(
        &self,
        method: Method,
        path: &str,
        if_match: &str,
        body: Option<Value>,
    ) -> ApiResponse {
        let request = self.request(method, path).header("If-Match", if_match);
        send_request(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await
    }

    /// Creates a job whose runs workers claim.
    pub(crate) async fn create_job(&self, name: &str) -> Value {
        let job = json!({ "name": name, "command": ["true"], "dispatch": "claim" });
        self.post("/jobs", job).await.expect_status(201)
    }

    /// Submits a task and returns the id of its run.
    pub(crate) async fn submit_task(&self, job: &str) -> i64 {
        self.post("/tasks", json!({ "job": job })).await.expect_status(201)["id"].as_i64().unwrap()
    }

    /// Numbers of jobs, runs, events and audit entries in the database.
    pub(crate) async fn count_stored(&self) -> [usize; 4] {
        let runs = self.store.list_runs(&Default::default(), None, 200).await.unwrap().runs.len();
        [
            self.store.list_jobs(None, 200).await.unwrap().len(),
            runs,
            self.store.list_events(None, 200).await.unwrap().len(),
            self.store.find_audit_head().await.unwrap().seq as usize,
        ]
    }

    /// Stops the server. Returns how long that took.
    pub(crate) async fn stop(&mut self) -> Duration {
        let started = std::time::Instant::now();
        drop(self.stop.take());
        self.task.take().unwrap().await.unwrap().unwrap();
        started.elapsed()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(crate) async fn send_request(request: RequestBuilder) -> ApiResponse {
    ApiResponse::read(request.send().await.unwrap()).await
}

/// A worker that claims and finishes runs as the test requests.
pub(crate) struct FakeWorker<'a> {
    store: &'a Store,
    pub(crate) id: WorkerId,
    token: LeaseToken,
}

impl<'a> FakeWorker<'a> {
    pub(crate) async fn new(store: &'a Store) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let number = u128::from(COUNT.fetch_add(1, Ordering::Relaxed));
        let id = WorkerId::from_random(number);
        let new = NewWorker {
            id,
            node: "node".parse().unwrap(),
            pid: None,
            address: None,
            labels: None,
            slots: 8,
            function_slots: 8,
        };
        store.register_worker(&new).await.unwrap();
        Self { store, id, token: LeaseToken::from_random(number << 64) }
    }

    /// Claims the waiting runs.
    pub(crate) async fn claim(&mut self) -> Vec<RunId> {
        let bits = u128::from_be_bytes(*self.token.as_bytes());
        self.token = LeaseToken::from_random(bits + (1 << 40));
        let request = ClaimRequest {
            worker: self.id,
            token: self.token,
            lane: "commands",
            max_runs: 8,
            lease_ttl: Duration::from_secs(60),
            after: None,
        };
        let ClaimResult::Runs(runs) = self.store.claim(&request).await.unwrap() else {
            panic!("the token must be new");
        };
        runs.iter().map(|run| run.id).collect()
    }

    /// Appends lines of output.
    pub(crate) async fn print(&self, run: RunId, attempt: u32, from: i64, lines: &[&str]) {
        let at = self.store.read_clock().await.unwrap();
        let line =
            |text: &&str| LogLine { stream: OutputStream::Stdout, at, text: (*text).to_owned() };
        let lines: Vec<LogLine> = lines.iter().map(line).collect();
        self.store.append_log(run, attempt, from, &lines, 1 << 20).await.unwrap().unwrap();
    }

    /// Reports the end of a claimed run.
    pub(crate) async fn finish(&self, run: RunId, attempt_result: AttemptResult) {
        let report = AttemptReport { token: self.token, run, attempt_result, output: None };
        let outcomes = self.store.finish(&[report], &[]).await.unwrap();
        assert!(outcomes[0].is_applied());
    }
}
