//! A server, people with tokens, and a worker that does as it is told.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tasuki::operator::{Actor, Role};
use tasuki::{Operator, Wake};
use tasuki_core::{LeaseToken, RunId, WorkerId};
use tasuki_store::{ClaimBatch, ClaimResult, AttemptResult, LogLine, NewWorker, Store, Stream};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A running server.
pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) operator: Operator,
    pub(crate) url: String,
    client: reqwest::Client,
    token: String,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<std::io::Result<()>>>,
    folder: PathBuf,
}

/// An answer that has been read.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) etag: Option<String>,
    pub(crate) location: Option<String>,
    pub(crate) kind: String,
    pub(crate) body: Value,
}

impl Answer {
    async fn read(response: Response) -> Self {
        let header = |name: &str| {
            response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
        };
        let (etag, location) = (header("etag"), header("location"));
        let (kind, status) = (header("content-type").unwrap_or_default(), response.status());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        let answer = Self { status: status.as_u16(), etag, location, kind, body };
        if status.is_client_error() || status.is_server_error() {
            answer.is_a_problem(status);
        }
        answer
    }

    /// Every refusal has the same shape.
    fn is_a_problem(&self, status: StatusCode) {
        assert_eq!(self.kind, "application/problem+json", "{self:?}");
        assert_eq!(self.body["status"], status.as_u16(), "{self:?}");
        let code = self.body["code"].as_str().unwrap();
        assert_eq!(self.body["type"], format!("/docs/errors#{code}"));
        assert!(tasuki_web::CODES.iter().any(|known| known.code == code), "{code}");
        for told in ["title", "detail"] {
            assert!(!self.body[told].as_str().unwrap().is_empty(), "{self:?}");
        }
    }

    /// The status, the code and the field of a refusal.
    pub(crate) fn refusal(&self) -> (u16, &str, &str) {
        let word = |name: &str| self.body[name].as_str().unwrap_or_default();
        (self.status, word("code"), word("field"))
    }

    /// What was answered, if it was this.
    #[track_caller]
    pub(crate) fn ok(self, status: u16) -> Value {
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
        let operator = Operator::new(store.clone(), Wake::default());
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let router = tasuki_web::router(operator.clone());
        let serving = tokio::spawn(tasuki_web::serve(listener, router, async {
            let _ = stopped.await;
        }));
        let mut server = Self {
            store,
            operator,
            url,
            client: reqwest::Client::new(),
            token: String::new(),
            stop: Some(stop),
            serving: Some(serving),
            folder,
        };
        server.token = server.token_of(Role::Admin).await;
        server
    }

    /// A token of somebody with this role, who is called like it.
    pub(crate) async fn token_of(&self, role: Role) -> String {
        let root = Actor { name: "root".to_owned(), address: None, role: Role::Admin };
        self.operator.create_token(&root, role.as_str(), role, None).await.unwrap().secret
    }

    /// A request without a token.
    pub(crate) fn stranger(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).timeout(Duration::from_secs(20))
    }

    /// A request of the administrator.
    pub(crate) fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.stranger(method, &format!("/api/v1{path}")).bearer_auth(&self.token)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        answer(self.ask(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        answer(self.ask(Method::POST, path).json(&body)).await
    }

    /// A change of what was seen at a version.
    pub(crate) async fn change(
        &self,
        method: Method,
        path: &str,
        seen: &str,
        body: Option<Value>,
    ) -> Answer {
        let request = self.ask(method, path).header("If-Match", seen);
        answer(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await
    }

    /// A job that any worker claims.
    pub(crate) async fn given_job(&self, name: &str) -> Value {
        let job = json!({ "name": name, "command": ["true"], "dispatch": "claim" });
        self.post("/jobs", job).await.ok(201)
    }

    /// A run of it that waits.
    pub(crate) async fn given_task(&self, job: &str) -> i64 {
        self.post("/tasks", json!({ "job": job })).await.ok(201)["id"].as_i64().unwrap()
    }

    /// What is in the database: how many jobs, runs, events and rows of the audit.
    pub(crate) async fn stored(&self) -> [usize; 4] {
        let runs = self.store.runs(&Default::default(), None, 200).await.unwrap().runs.len();
        [
            self.store.jobs(None, 200).await.unwrap().len(),
            runs,
            self.store.events(None, 200).await.unwrap().len(),
            self.store.audit_head().await.unwrap().seq as usize,
        ]
    }

    /// Everything stops; how long that took.
    pub(crate) async fn stop(&mut self) -> Duration {
        let began = std::time::Instant::now();
        drop(self.stop.take());
        self.serving.take().unwrap().await.unwrap().unwrap();
        began.elapsed()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(crate) async fn answer(request: RequestBuilder) -> Answer {
    Answer::read(request.send().await.unwrap()).await
}

/// A worker that claims commands and ends them as it is told.
pub(crate) struct Hand<'a> {
    store: &'a Store,
    pub(crate) id: WorkerId,
    token: LeaseToken,
}

impl<'a> Hand<'a> {
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

    /// Takes what waits.
    pub(crate) async fn claim(&mut self) -> Vec<RunId> {
        let bits = u128::from_be_bytes(*self.token.as_bytes());
        self.token = LeaseToken::from_random(bits + (1 << 40));
        let batch = ClaimBatch {
            worker: self.id,
            token: self.token,
            lane: "commands",
            most: 8,
            lease_ttl: Duration::from_secs(60),
        };
        let ClaimResult::Runs(runs) = self.store.claim(&batch).await.unwrap() else {
            panic!("a token of its own");
        };
        runs.iter().map(|run| run.id).collect()
    }

    /// Prints lines.
    pub(crate) async fn print(&self, run: RunId, attempt: u32, from: i64, lines: &[&str]) {
        let at = self.store.clock().await.unwrap();
        let line = |text: &&str| LogLine { stream: Stream::Out, at, text: (*text).to_owned() };
        let lines: Vec<LogLine> = lines.iter().map(line).collect();
        self.store.append_log(run, attempt, from, &lines, 1 << 20).await.unwrap().unwrap();
    }

    pub(crate) async fn finish(&self, run: RunId, finish: AttemptResult) {
        assert!(self.store.finish(self.token, run, &finish).await.unwrap().is_applied());
    }
}
