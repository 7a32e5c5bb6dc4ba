//! A fake server that stores jobs only. Tests can also change the stored jobs directly, as another user would.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::fake_server::{FakeServer, Reply, Request};
use crate::jobs::hello;

/// Stores jobs as the API contract requires: versions, merge patches, `If-Match`.
#[derive(Clone, Default)]
pub(crate) struct FakeJobServer(Arc<Mutex<BTreeMap<String, Value>>>);

impl FakeJobServer {
    pub(crate) fn put(&self, job: Value) {
        self.0.lock().unwrap().insert(job["name"].as_str().unwrap().to_owned(), job);
    }

    pub(crate) fn job(&self, name: &str) -> Value {
        self.0.lock().unwrap()[name].clone()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }

    pub(crate) fn respond(&self, request: &Request) -> Reply {
        let mut jobs = self.0.lock().unwrap();
        let (verb, path) = request.line.split_once(' ').unwrap();
        let name = decoded(path.strip_prefix("/jobs/").unwrap_or_default());
        match (verb, jobs.get(&name).cloned()) {
            ("GET", None) if name.is_empty() => {
                let items: Vec<&Value> = jobs.values().collect();
                Reply::Json(200, json!({ "items": items, "next": null }))
            }
            ("POST", _) => {
                let mut job = hello();
                job["trigger"] = json!({ "type": "task" });
                job["version"] = json!(1);
                merge(&mut job, &request.body);
                if !request.body["handler"].is_null() {
                    job["kind"] = json!("function");
                    job["command"] = Value::Null;
                }
                jobs.insert(job["name"].as_str().unwrap().to_owned(), job.clone());
                Reply::Json(201, job)
            }
            ("GET", Some(job)) => Reply::Json(200, job),
            (_, Some(job)) if request.header("if-match") != format!("\"{}\"", job["version"]) => {
                let detail = format!("job {name} has version {}", job["version"]);
                Reply::Json(409, json!({ "code": "conflict", "detail": detail, "current": job }))
            }
            ("PATCH", Some(mut job)) => {
                merge(&mut job, &request.body);
                job["version"] = json!(job["version"].as_i64().unwrap() + 1);
                jobs.insert(name, job.clone());
                Reply::Json(200, json!({ "job": job, "canceled_runs": [] }))
            }
            ("DELETE", Some(_)) => {
                jobs.remove(&name);
                Reply::Json(200, json!({ "canceled_runs": [] }))
            }
            _ => Reply::Json(404, json!({ "code": "not_found", "detail": "there is no such job" })),
        }
    }
}

fn decoded(segment: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}

/// Merge patch by RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in patch {
        match value {
            Value::Null => drop(target.as_object_mut().unwrap().remove(name)),
            value => merge(&mut target[name], value),
        }
    }
}

pub(crate) fn start_job_server() -> (FakeJobServer, FakeServer) {
    let job_server = FakeJobServer::default();
    let server = job_server.clone();
    (job_server, FakeServer::new(move |request| server.respond(request)))
}
