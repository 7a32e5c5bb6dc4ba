//! Matches events against the event types and the payload filter of a job.

use serde_json::Value;

use crate::InvalidInput;

/// Maximum nesting of a filter. Real filters are less deep; matching is recursive, so a limit protects
/// the stack.
const MAX_DEPTH: usize = 16;

/// Whether an event type matches a job's pattern: an exact type, or `prefix.*` for all types below a
/// prefix.
pub fn matches_type(wanted: &str, event_type: &str) -> bool {
    match wanted.strip_suffix(".*") {
        Some(prefix) => {
            event_type.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.') && rest != ".")
        }
        None => wanted == event_type,
    }
}

/// Whether a payload matches a filter. An object in the filter requires each of its keys to match, a
/// list requires one of its values to match, any other value must be equal. Keys of the payload that
/// the filter does not mention are ignored.
pub fn matches_payload(filter: &Value, payload: &Value) -> bool {
    match filter {
        Value::Object(keys) => keys.iter().all(|(key, wanted)| {
            payload.get(key).is_some_and(|found| matches_payload(wanted, found))
        }),
        Value::Array(any) => any.iter().any(|wanted| matches_payload(wanted, payload)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => filter == payload,
    }
}

/// Checks that a filter is a JSON object within the depth limit.
pub fn check_filter(filter: &Value) -> Result<(), InvalidInput> {
    if !filter.is_object() {
        let expected = "a JSON object of keys and the values they must have";
        return Err(InvalidInput::with_described_value("filter", "other JSON", expected));
    }
    match depth(filter) <= MAX_DEPTH {
        true => Ok(()),
        false => Err(InvalidInput::with_described_value(
            "filter",
            "a deeper object",
            "at most 16 levels",
        )),
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Object(keys) => 1 + keys.values().map(depth).max().unwrap_or(0),
        Value::Array(values) => 1 + values.iter().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_type_pattern_is_exact_or_a_prefix() {
        for (wanted, event_type, taken) in [
            ("order.paid", "order.paid", true),
            ("order.paid", "order.paid.late", false),
            ("order.*", "order.paid", true),
            ("order.*", "order.paid.late", true),
            ("order.*", "order", false),
            ("order.*", "order.", false),
            ("order.*", "orders.paid", false),
            ("注文.*", "注文.支払", true),
        ] {
            assert_eq!(matches_type(wanted, event_type), taken, "{wanted} {event_type}");
        }
    }

    #[test]
    fn a_payload_matches_by_its_keys() {
        let payload = json!({"shop": "tokyo", "total": 10, "who": {"vip": true}, "tags": ["a"]});
        for (filter, taken) in [
            (json!({}), true),
            (json!({"shop": "tokyo"}), true),
            (json!({"shop": ["osaka", "tokyo"], "total": 10}), true),
            (json!({"shop": "osaka"}), false),
            (json!({"who": {"vip": true}}), true),
            (json!({"who": {"vip": false}}), false),
            (json!({"missing": null}), false),
            (json!({"shop": []}), false),
            (json!({"tags": [["a"]]}), false),
        ] {
            assert_eq!(matches_payload(&filter, &payload), taken, "{filter}");
        }
        assert!(!matches_payload(&json!({"a": 1}), &json!("text")));
    }

    #[test]
    fn a_filter_must_be_an_object_within_the_depth_limit() {
        assert!(check_filter(&json!({"a": {"b": [1]}})).is_ok());
        assert!(check_filter(&json!([1])).is_err());
        let deep = (0..20).fold(json!(1), |inner, _| json!({ "a": inner }));
        assert!(check_filter(&deep).is_err());
    }
}
