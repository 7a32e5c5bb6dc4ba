//! Jobs in a form in which two that mean the same are the same.
//!
//! A file says `300s` where the server says `5m`, and leaves out what the server spells out. Both are
//! brought to one form before they are compared, so that a difference is a difference.

use serde_json::{Map, Value, json};
use tasuki_core::schedule::{DstChoice, ScheduleKind};
use tasuki_core::{Invalid, Schedule, duration};

use super::shape::{JOB, Shape};

/// What people can write of a job, in the one form.
pub(super) fn normal(job: &Value) -> Value {
    let mut object = parts(job, JOB);
    if let Ok(Some(schedule)) = schedule(&job["trigger"]["schedule"]) {
        object["trigger"]["schedule"] = schedule;
    }
    object
}

fn parts(value: &Value, shape: &[(&str, Shape)]) -> Value {
    let mut object = Map::new();
    for (name, shape) in shape {
        let part = match (&value[*name], shape) {
            (Value::Null, _) => continue,
            (part @ Value::Object(_), Shape::Parts(shape)) => parts(part, shape),
            (Value::String(typed), Shape::Duration) => match duration::read("duration", typed) {
                Ok(length) => json!(duration::show(length)),
                Err(_) => json!(typed),
            },
            (part, _) => part.clone(),
        };
        object.insert((*name).to_owned(), part);
    }
    Value::Object(object)
}

/// A schedule as it is understood: its value and zone as we spell them, its rules spelled out.
pub(super) fn schedule(schedule: &Value) -> Result<Option<Value>, Invalid> {
    if schedule.is_null() {
        return Ok(None);
    }
    let word = |field: &str| schedule[field].as_str();
    let kind: ScheduleKind = word("type").unwrap_or_default().parse()?;
    let dst = DstChoice {
        gap: word("dst_gap").map(str::parse).transpose()?,
        fold: word("dst_fold").map(str::parse).transpose()?,
    };
    let value = word("value").unwrap_or_default();
    let read = Schedule::parse(kind, value, word("zone").unwrap_or("UTC"), dst)?;
    let mut normal = json!({
        "type": kind.as_str(), "value": read.value(), "zone": read.zone().name()
    });
    if let Some(rule) = read.dst_rule() {
        normal["dst_gap"] = json!(rule.gap.as_str());
        normal["dst_fold"] = json!(rule.fold.as_str());
    }
    Ok(Some(normal))
}

/// What the server's settings decide, or an operator: a file that does not mention it leaves it alone.
const LEFT_ALONE: [&str; 4] = ["enabled", "dispatch", "concurrency", "retry"];

/// What the file wants a job to be that is now `current`, in the one form.
///
/// What the file leaves out is nothing, or what it is for every job; only what the settings or an
/// operator decide stays as it is.
pub(super) fn wanted(fields: &Map<String, Value>, current: &Value) -> Value {
    let mut wanted = Value::Object(fields.clone());
    for (name, nothing) in [("args", json!({})), ("env", json!({})), ("labels", json!([]))] {
        if !fields.contains_key(name) {
            wanted[name] = nothing;
        }
    }
    if !fields.contains_key("kind") {
        wanted["kind"] = match fields.contains_key("handler") {
            true => json!("function"),
            false => json!("command"),
        };
    }
    if !fields.contains_key("trigger") {
        wanted["trigger"] = json!({ "type": "task" });
    }
    for name in LEFT_ALONE {
        let mut value = current[name].clone();
        match (fields.get(name), value.as_object_mut()) {
            (Some(Value::Object(given)), Some(parts)) => {
                parts.extend(given.clone());
                wanted[name] = value;
            }
            (Some(_), _) => {}
            (None, _) => wanted[name] = value,
        }
    }
    if wanted["kind"] == "function" && wanted["dispatch"] != "assign" {
        for (name, usual) in [("queue", "default"), ("priority", "normal")] {
            if !fields.contains_key(name) {
                wanted[name] = json!(usual);
            }
        }
    }
    normal(&wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_the_same_is_the_same() {
        let file = json!({"name": "x", "timeout": "300s", "command": ["true"], "trigger":
            {"type": "time", "schedule": {"type": "daily_at", "value": "02:30", "zone": "europe/berlin"}}});
        let server = json!({"id": 7, "name": "x", "timeout": "5m", "command": ["true"], "handler": null,
            "kind": "command", "args": {}, "env": {}, "labels": [], "next_fire": "later",
            "dispatch": "assign", "enabled": false, "retry": {"max_retries": 2}, "trigger":
            {"type": "time", "misfire": null, "schedule": {"type": "daily_at", "value": "02:30",
                "zone": "Europe/Berlin", "dst_gap": "shift", "dst_fold": "once"}}});
        let fields = file.as_object().unwrap();
        assert_eq!(wanted(fields, &server), normal(&server));
    }

    #[test]
    fn a_function_that_says_nothing_of_its_queue_is_in_the_usual_one() {
        let fields = json!({"name": "x", "handler": "f"});
        let mut server = json!({"name": "x", "handler": "f", "kind": "function", "args": {}, "env": {},
            "labels": [], "dispatch": "claim", "queue": "default", "priority": "normal",
            "trigger": {"type": "task"}});
        assert_eq!(wanted(fields.as_object().unwrap(), &server), normal(&server));
        server["queue"] = json!("slow");
        assert_eq!(wanted(fields.as_object().unwrap(), &server)["queue"], json!("default"));
    }

    #[test]
    fn a_part_of_the_retries_leaves_the_others_alone() {
        let fields = json!({"name": "x", "command": ["true"], "retry": {"max_retries": 3}});
        let current = json!({"retry": {"max_retries": 0, "backoff": "30s"}});
        assert_eq!(
            wanted(fields.as_object().unwrap(), &current)["retry"],
            json!({"max_retries": 3, "backoff": "30s"})
        );
    }
}
