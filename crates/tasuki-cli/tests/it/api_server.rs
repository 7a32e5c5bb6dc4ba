//! The real REST API on a SQLite database, with a data directory in which the binary finds it. There is no leader and no
//! worker: waiting runs stay in the queue unless the test acts as a worker.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tasuki::operator::{AccessRole, Actor};
use tasuki::{Operator, Wakeups};
use tasuki_store::Store;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::fake_server::{output_of, tasuki};

/// A running API server with its own data directory. Dropping it stops the server and removes the directory.
pub(crate) struct ApiServer {
    pub(crate) folder: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ApiServer {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tasuki-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder); // left by a test that failed
        fs::create_dir_all(&folder).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (sender, receiver) = std::sync::mpsc::channel();
        let url = database(&folder);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let store = Store::open(&url, 4).await.unwrap();
                store.migrate().await.unwrap();
                let operator = Operator::new(store, Wakeups::default());
                let actor =
                    Actor { name: "test".to_owned(), address: None, role: AccessRole::Admin };
                let created =
                    operator.create_token(&actor, "test", AccessRole::Admin, None).await.unwrap();
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                let url = format!("http://{}", listener.local_addr().unwrap());
                sender.send(json!({ "url": url, "token": created.secret })).unwrap();
                let router = tasuki_web::router(operator);
                let stopped = async { drop(stopped.await) };
                tasuki_web::serve(listener, router, stopped).await.unwrap();
            });
        });
        fs::write(folder.join("api.json"), receiver.recv().unwrap().to_string()).unwrap();
        Self { folder, stop: Some(stop), thread: Some(thread) }
    }

    /// Opens its database, for a test that acts as a worker.
    pub(crate) async fn store(&self) -> Store {
        Store::open(&database(&self.folder), 1).await.unwrap()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = tasuki(arguments);
        command.env("TASUKI_DATA", &self.folder);
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> String {
        output_of(&mut self.command(arguments))
    }

    /// Runs a command that must succeed and returns its output.
    pub(crate) fn expect_success(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let Some(text) = output.strip_prefix("exit 0\n") else { panic!("{arguments:?}: {output}") };
        text.to_owned()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command(&[arguments, &["--json"]].concat()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    }

    pub(crate) fn expect_refusal(&self, arguments: &[&str], expected: &str) {
        let output = self.output(arguments);
        assert!(
            output.starts_with("exit 1\n") && output.contains(expected),
            "{arguments:?}: {output}"
        );
    }
}

fn database(folder: &Path) -> String {
    format!("sqlite:{}/test.db", folder.display())
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().unwrap().join();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
