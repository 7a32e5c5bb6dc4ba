//! A merge patch on a job.

use serde_json::{Map, Value};
use tasuki_core::Invalid;

use super::job_input::NewJob;
use crate::input::fit;
use crate::problem::Problem;

/// What a patch makes of a job (RFC 7396), as if it had been sent whole. Where the patch chooses another
/// kind of trigger, schedule, policy or work, nothing of the old one is mixed in.
pub(crate) fn patched(
    name: &str,
    job: Value,
    patch: &Map<String, Value>,
) -> Result<NewJob, Problem> {
    let Value::Object(mut job) = job else { return fit(job) };
    if let Some(other) = patch.get("name").filter(|other| **other != name) {
        let found = other.as_str().unwrap_or("something else");
        let invalid = Invalid::typed("", found, "the name it has: a job keeps its name");
        return Err(Problem::invalid("name", &invalid));
    }
    let gives = |field: &str| patch.get(field).is_some_and(|value| !value.is_null());
    if gives("handler") || gives("command") {
        let other = if gives("handler") { "command" } else { "handler" };
        job.remove(other);
        if gives("command") {
            job.remove("queue");
            job.remove("priority");
        }
        if !gives("kind") && (gives("handler") || job.get("kind") == Some(&"function".into())) {
            job.remove("kind");
        }
    }
    let mut whole = Value::Object(job);
    forget_others(&mut whole, patch, &["trigger"], "type", &[]);
    forget_others(&mut whole, patch, &["trigger", "schedule"], "type", &["zone"]);
    forget_others(&mut whole, patch, &["trigger", "misfire"], "policy", &[]);
    merge(&mut whole, &Value::Object(patch.clone()));
    fit(whole)
}

/// Where the patch chooses another word under this key, the old fields beside it go, but those kept.
fn forget_others(
    whole: &mut Value,
    patch: &Map<String, Value>,
    path: &[&str],
    key: &str,
    kept: &[&str],
) {
    let mut chosen = patch.get(path[0]);
    let mut there = whole.get_mut(path[0]);
    for step in &path[1..] {
        chosen = chosen.and_then(|value| value.get(step));
        there = there.and_then(|value| value.get_mut(step));
    }
    let (Some(word), Some(Value::Object(there))) = (chosen.and_then(|value| value.get(key)), there)
    else {
        return;
    };
    if there.get(key) != Some(word) {
        there.retain(|field, _| kept.contains(&field.as_str()));
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (field, value) in fields {
        match value {
            Value::Null => drop(target.remove(field)),
            value => merge(target.entry(field).or_insert(Value::Null), value),
        }
    }
}
