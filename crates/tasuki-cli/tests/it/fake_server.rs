//! A fake HTTP server: returns the responses that a test defines, and records the requests.
//!
//! It can do what a real server does not do on demand: not respond, close a connection, refuse, send invalid data.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// Method and path without `/api/v1`, such as `GET /jobs?limit=200`.
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    }
}

/// A response: status and JSON body, or raw bytes.
pub(crate) enum Reply {
    Json(u16, Value),
    Raw(String),
}

pub(crate) struct FakeServer {
    pub(crate) url: String,
    pub(crate) folder: PathBuf,
    requests: Arc<Mutex<Vec<Request>>>,
}

pub(crate) const TOKEN: &str = "tsk_0123456789abcdef";

impl FakeServer {
    /// Starts the server, with a data directory in which the commands find it.
    pub(crate) fn new(respond: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("tasuki-fake-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let api = serde_json::json!({ "url": url, "token": TOKEN });
        fs::write(folder.join("api.json"), api.to_string()).unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (respond, recorded) = (Arc::new(respond), requests.clone());
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (respond, recorded) = (respond.clone(), recorded.clone());
                std::thread::spawn(move || serve(&connection.unwrap(), &*respond, &recorded));
            }
        });
        Self { url, folder, requests }
    }

    /// A command of the binary that uses this server.
    pub(crate) fn tasuki(&self, arguments: &[&str]) -> Command {
        let mut command = tasuki(arguments);
        command.env("TASUKI_DATA", &self.folder);
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> String {
        output_of(&mut self.tasuki(arguments))
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Method and path of all requests so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.requests().into_iter().map(|request| request.line).collect()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A command of the binary, without environment variables that select a server.
pub(crate) fn tasuki(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tasuki"));
    for variable in ["TASUKI_URL", "TASUKI_TOKEN", "TASUKI_DATA", "NO_COLOR"] {
        command.env_remove(variable);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command and returns exit code, stdout and stderr as one text.
pub(crate) fn output_of(command: &mut Command) -> String {
    let output = command.output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let code = output.status.code().expect("not killed");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    match stderr.is_empty() {
        true => format!("exit {code}\n{stdout}"),
        false => format!("exit {code}\n{stdout}--\n{stderr}"),
    }
}

fn serve(
    mut connection: &TcpStream,
    respond: &dyn Fn(&Request) -> Reply,
    recorded: &Mutex<Vec<Request>>,
) {
    let mut reader = BufReader::new(connection);
    let Some(request) = read(&mut reader) else { return };
    recorded.lock().unwrap().push(request.clone());
    let text = match respond(&request) {
        Reply::Raw(text) => text,
        Reply::Json(status, body) => {
            let kind = if status < 400 { "application/json" } else { "application/problem+json" };
            let tag = match body["version"].as_i64() {
                Some(version) => format!("etag: \"{version}\"\r\n"),
                None => String::new(),
            };
            let body = body.to_string();
            let length = body.len();
            format!(
                "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{tag}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
            )
        }
    };
    let _ = connection.write_all(text.as_bytes());
}

fn read(reader: &mut impl BufRead) -> Option<Request> {
    let mut head = reader.lines();
    let first = head.next()?.ok()?;
    let (method, rest) = first.split_once(' ')?;
    let path = rest.strip_suffix(" HTTP/1.1")?.strip_prefix("/api/v1")?;
    let line = format!("{method} {path}");
    let mut headers = Vec::new();
    for header in head.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()) {
        let (name, value) = header.split_once(": ")?;
        headers.push((name.to_owned(), value.to_owned()));
    }
    let mut request = Request { line, headers, body: Value::Null };
    let length = request.header("content-length").parse().unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.body = serde_json::from_slice(&body).unwrap_or_default();
    Some(request)
}
