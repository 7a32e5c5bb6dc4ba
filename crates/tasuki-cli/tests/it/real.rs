//! The real REST API over SQLite, with a data directory of its own where the binary finds it. Nobody
//! leads and nobody works here: what waits goes on waiting, unless the test does something about it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tasuki::operator::{Actor, Role};
use tasuki::{Operator, Wake};
use tasuki_store::Store;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::fake::{tasuki, told};

/// A server with a data directory of its own; both end with it.
pub(crate) struct Server {
    pub(crate) folder: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tasuki-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder); // left by a test that failed
        fs::create_dir_all(&folder).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let url = database(&folder);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let store = Store::open(&url, 4).await.unwrap();
                store.migrate().await.unwrap();
                let operator = Operator::new(store, Wake::default());
                let me = Actor { name: "test".to_owned(), address: None, role: Role::Admin };
                let given = operator.create_token(&me, "test", Role::Admin, None).await.unwrap();
                let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
                let url = format!("http://{}", listener.local_addr().unwrap());
                tell.send(json!({ "url": url, "token": given.secret })).unwrap();
                let router = tasuki_web::router(operator);
                let stopped = async { drop(stopped.await) };
                tasuki_web::serve(listener, router, stopped).await.unwrap();
            });
        });
        fs::write(folder.join("api.json"), told.recv().unwrap().to_string()).unwrap();
        Self { folder, stop: Some(stop), thread: Some(thread) }
    }

    /// Its database, for a test that plays the worker.
    pub(crate) async fn store(&self) -> Store {
        Store::open(&database(&self.folder), 1).await.unwrap()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = tasuki(arguments);
        command.env("TASUKI_DATA", &self.folder);
        command
    }

    pub(crate) fn told(&self, arguments: &[&str]) -> String {
        told(&mut self.command(arguments))
    }

    /// What is printed when all goes well.
    pub(crate) fn done(&self, arguments: &[&str]) -> String {
        let told = self.told(arguments);
        let Some(text) = told.strip_prefix("exit 0\n") else { panic!("{arguments:?}: {told}") };
        text.to_owned()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command(&[arguments, &["--json"]].concat()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    }

    pub(crate) fn refused(&self, arguments: &[&str], expected: &str) {
        let told = self.told(arguments);
        assert!(told.starts_with("exit 1\n") && told.contains(expected), "{arguments:?}: {told}");
    }
}

fn database(folder: &Path) -> String {
    format!("sqlite:{}/test.db", folder.display())
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().unwrap().join();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
