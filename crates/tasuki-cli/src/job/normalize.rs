//! Normalization of jobs for comparison: equivalent definitions become equal.
//!
//! A file may contain `300s` where the server returns `5m`, and omits defaults that the server returns. Both are
//! normalized before they are compared, so that every reported difference is a real one.

use serde_json::{Map, Value, json};
use tasuki_core::schedule::{DstRuleOverrides, ScheduleKind};
use tasuki_core::{InvalidInput, Schedule, duration};

use super::job_field_types::{FieldType, JOB_FIELDS};

/// Returns the editable fields of a job in normalized form.
pub(super) fn normalize_job(job: &Value) -> Value {
    let mut object = normalize_fields(job, JOB_FIELDS);
    if let Ok(Some(schedule)) = normalize_schedule(&job["trigger"]["schedule"]) {
        object["trigger"]["schedule"] = schedule;
    }
    object
}

fn normalize_fields(value: &Value, fields: &[(&str, FieldType)]) -> Value {
    let mut object = Map::new();
    for (name, field_type) in fields {
        let part = match (&value[*name], field_type) {
            (Value::Null, _) => continue,
            (part @ Value::Object(_), FieldType::Fields(fields)) => normalize_fields(part, fields),
            (Value::String(input), FieldType::Duration) => {
                match duration::parse_duration_field("duration", input) {
                    Ok(length) => json!(duration::format_exact_duration(length)),
                    Err(_) => json!(input),
                }
            }
            (part, _) => part.clone(),
        };
        object.insert((*name).to_owned(), part);
    }
    Value::Object(object)
}

/// Returns a schedule in normalized form: canonical value and zone, explicit rules for clock changes.
pub(super) fn normalize_schedule(schedule: &Value) -> Result<Option<Value>, InvalidInput> {
    if schedule.is_null() {
        return Ok(None);
    }
    let text_of = |field: &str| schedule[field].as_str();
    let kind: ScheduleKind = text_of("type").unwrap_or_default().parse()?;
    let dst = DstRuleOverrides {
        gap: text_of("dst_gap").map(str::parse).transpose()?,
        fold: text_of("dst_fold").map(str::parse).transpose()?,
    };
    let value = text_of("value").unwrap_or_default();
    let read = Schedule::parse(kind, value, text_of("zone").unwrap_or("UTC"), dst)?;
    let mut normal = json!({
        "type": kind.as_str(), "value": read.value(), "zone": read.zone().name()
    });
    if let Some(rule) = read.dst_rule() {
        normal["dst_gap"] = json!(rule.gap.as_str());
        normal["dst_fold"] = json!(rule.fold.as_str());
    }
    Ok(Some(normal))
}

/// Fields that keep their current value if the file does not contain them: settings or operators decide them.
const KEPT_WHEN_ABSENT: [&str; 4] = ["enabled", "dispatch", "concurrency", "retry"];

/// Returns the job that the file describes, in normalized form. `current` is the existing job.
///
/// Fields that are missing in the file are empty or have their default; those in [`KEPT_WHEN_ABSENT`] keep their
/// current value.
pub(super) fn desired_job(fields: &Map<String, Value>, current: &Value) -> Value {
    let mut desired = Value::Object(fields.clone());
    for (name, empty) in [("args", json!({})), ("env", json!({})), ("labels", json!([]))] {
        if !fields.contains_key(name) {
            desired[name] = empty;
        }
    }
    if !fields.contains_key("kind") {
        desired["kind"] = match fields.contains_key("handler") {
            true => json!("function"),
            false => json!("command"),
        };
    }
    if !fields.contains_key("trigger") {
        desired["trigger"] = json!({ "type": "task" });
    }
    for name in KEPT_WHEN_ABSENT {
        let mut value = current[name].clone();
        match (fields.get(name), value.as_object_mut()) {
            (Some(Value::Object(given)), Some(parts)) => {
                parts.extend(given.clone());
                desired[name] = value;
            }
            (Some(_), _) => {}
            (None, _) => desired[name] = value,
        }
    }
    if desired["kind"] == "function" && desired["dispatch"] != "assign" {
        for (name, default) in [("queue", "default"), ("priority", "normal")] {
            if !fields.contains_key(name) {
                desired[name] = json!(default);
            }
        }
    }
    normalize_job(&desired)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_jobs_are_equal() {
        let file = json!({"name": "x", "timeout": "300s", "command": ["true"], "trigger":
            {"type": "time", "schedule": {"type": "daily_at", "value": "02:30", "zone": "europe/berlin"}}});
        let server = json!({"id": 7, "name": "x", "timeout": "5m", "command": ["true"], "handler": null,
            "kind": "command", "args": {}, "env": {}, "labels": [], "next_fire": "later",
            "dispatch": "assign", "enabled": false, "retry": {"max_retries": 2}, "trigger":
            {"type": "time", "misfire": null, "schedule": {"type": "daily_at", "value": "02:30",
                "zone": "Europe/Berlin", "dst_gap": "shift", "dst_fold": "once"}}});
        let fields = file.as_object().unwrap();
        assert_eq!(desired_job(fields, &server), normalize_job(&server));
    }

    #[test]
    fn a_function_without_a_queue_is_in_the_default_queue() {
        let fields = json!({"name": "x", "handler": "f"});
        let mut server = json!({"name": "x", "handler": "f", "kind": "function", "args": {}, "env": {},
            "labels": [], "dispatch": "claim", "queue": "default", "priority": "normal",
            "trigger": {"type": "task"}});
        assert_eq!(desired_job(fields.as_object().unwrap(), &server), normalize_job(&server));
        server["queue"] = json!("slow");
        assert_eq!(desired_job(fields.as_object().unwrap(), &server)["queue"], json!("default"));
    }

    #[test]
    fn missing_parts_of_retry_keep_their_values() {
        let fields = json!({"name": "x", "command": ["true"], "retry": {"max_retries": 3}});
        let current = json!({"retry": {"max_retries": 0, "backoff": "30s"}});
        assert_eq!(
            desired_job(fields.as_object().unwrap(), &current)["retry"],
            json!({"max_retries": 3, "backoff": "30s"})
        );
    }
}
