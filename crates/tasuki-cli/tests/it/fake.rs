//! A server that says what a test wants to hear, and remembers what it was asked.
//!
//! For what a real one cannot be made to do at will: fall silent, break off, refuse, speak oddly.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// `GET /api/v1/jobs?limit=200`, without the `/api/v1`.
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

/// What is answered: a status, headers and a body; or bytes just as they are.
pub(crate) enum Reply {
    Json(u16, Value),
    Raw(String),
}

pub(crate) struct Fake {
    pub(crate) url: String,
    pub(crate) folder: PathBuf,
    asked: Arc<Mutex<Vec<Request>>>,
}

pub(crate) const TOKEN: &str = "tsk_0123456789abcdef";

impl Fake {
    /// Answers from now on, and is found in a data directory of its own.
    pub(crate) fn new(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("tasuki-fake-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let api = serde_json::json!({ "url": url, "token": TOKEN });
        fs::write(folder.join("api.json"), api.to_string()).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answer, remembered) = (Arc::new(answer), asked.clone());
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (answer, remembered) = (answer.clone(), remembered.clone());
                std::thread::spawn(move || serve(&connection.unwrap(), &*answer, &remembered));
            }
        });
        Self { url, folder, asked }
    }

    /// The binary, pointed at this server.
    pub(crate) fn tasuki(&self, arguments: &[&str]) -> Command {
        let mut command = tasuki(arguments);
        command.env("TASUKI_DATA", &self.folder);
        command
    }

    pub(crate) fn told(&self, arguments: &[&str]) -> String {
        told(&mut self.tasuki(arguments))
    }

    pub(crate) fn asked(&self) -> Vec<Request> {
        self.asked.lock().unwrap().clone()
    }

    /// The lines of the requests so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.asked().into_iter().map(|request| request.line).collect()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The binary with nothing around it that could point it elsewhere.
pub(crate) fn tasuki(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tasuki"));
    for variable in ["TASUKI_URL", "TASUKI_TOKEN", "TASUKI_DATA", "NO_COLOR"] {
        command.env_remove(variable);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Exit code, stdout and stderr as one text.
pub(crate) fn told(command: &mut Command) -> String {
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
    answer: &dyn Fn(&Request) -> Reply,
    remembered: &Mutex<Vec<Request>>,
) {
    let mut reader = BufReader::new(connection);
    let Some(request) = read(&mut reader) else { return };
    remembered.lock().unwrap().push(request.clone());
    let text = match answer(&request) {
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
