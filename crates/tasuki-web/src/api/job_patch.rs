//! JSON merge patches of jobs.

use serde_json::{Map, Value};
use tasuki_core::InvalidInput;

use super::job_input::NewJob;
use crate::input::from_json_value;
use crate::problem::Problem;

/// Applies a merge patch (RFC 7396) to the JSON of a job, and parses the result like a new job. If the patch changes the kind of
/// the trigger, schedule, policy or work, the old fields of that kind are removed.
pub(crate) fn apply_merge_patch_to_job(
    name: &str,
    job: Value,
    patch: &Map<String, Value>,
) -> Result<NewJob, Problem> {
    let Value::Object(mut job) = job else { return from_json_value(job) };
    if let Some(other) = patch.get("name").filter(|other| **other != name) {
        let found = other.as_str().unwrap_or("a value that is not text");
        let invalid =
            InvalidInput::with_value("", found, "the current name: a job cannot be renamed");
        return Err(Problem::invalid("name", &invalid));
    }
    let sets = |field: &str| patch.get(field).is_some_and(|value| !value.is_null());
    if sets("handler") || sets("command") {
        let other = if sets("handler") { "command" } else { "handler" };
        job.remove(other);
        if sets("command") {
            job.remove("queue");
            job.remove("priority");
        }
        if !sets("kind") && (sets("handler") || job.get("kind") == Some(&"function".into())) {
            job.remove("kind");
        }
    }
    let mut patched = Value::Object(job);
    remove_fields_of_other_kind(&mut patched, patch, &["trigger"], "type", &[]);
    remove_fields_of_other_kind(&mut patched, patch, &["trigger", "schedule"], "type", &["zone"]);
    remove_fields_of_other_kind(&mut patched, patch, &["trigger", "misfire"], "policy", &[]);
    merge(&mut patched, &Value::Object(patch.clone()));
    from_json_value(patched)
}

/// If the patch changes the value of `key` in the object at `path`, removes all other fields of that object except `keep`.
fn remove_fields_of_other_kind(
    job: &mut Value,
    patch: &Map<String, Value>,
    path: &[&str],
    key: &str,
    keep: &[&str],
) {
    let mut change = patch.get(path[0]);
    let mut current = job.get_mut(path[0]);
    for step in &path[1..] {
        change = change.and_then(|value| value.get(step));
        current = current.and_then(|value| value.get_mut(step));
    }
    let (Some(kind), Some(Value::Object(current))) =
        (change.and_then(|value| value.get(key)), current)
    else {
        return;
    };
    if current.get(key) != Some(kind) {
        current.retain(|field, _| keep.contains(&field.as_str()));
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
