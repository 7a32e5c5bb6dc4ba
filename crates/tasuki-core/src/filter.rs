//! Which events a job takes: by type, and by what their payload says.

use serde_json::Value;

use crate::Invalid;

/// How deep a filter may go: deeper than anybody writes, shallower than a stack.
const DEEPEST: usize = 16;

/// Whether a job that takes `wanted` takes an event of this type: the type itself, or `prefix.*` for
/// everything below a prefix.
pub fn takes_type(wanted: &str, event_type: &str) -> bool {
    match wanted.strip_suffix(".*") {
        Some(prefix) => {
            event_type.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.') && rest != ".")
        }
        None => wanted == event_type,
    }
}

/// Whether a payload is what a filter asks for. An object asks for each of its keys, a list for any one
/// of its values, anything else for exactly itself. What a filter does not mention does not matter.
pub fn takes_payload(filter: &Value, payload: &Value) -> bool {
    match filter {
        Value::Object(keys) => keys.iter().all(|(key, wanted)| {
            payload.get(key).is_some_and(|found| takes_payload(wanted, found))
        }),
        Value::Array(any) => any.iter().any(|wanted| takes_payload(wanted, payload)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => filter == payload,
    }
}

/// Refuses a filter that no payload could be meant by.
pub fn check(filter: &Value) -> Result<(), Invalid> {
    if !filter.is_object() {
        let expected = "a JSON object of keys and the values they must have";
        return Err(Invalid::described("filter", "other JSON", expected));
    }
    match depth(filter) <= DEEPEST {
        true => Ok(()),
        false => Err(Invalid::described("filter", "a deeper one", "at most 16 levels")),
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
    fn types_are_exact_or_everything_below() {
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
            assert_eq!(takes_type(wanted, event_type), taken, "{wanted} {event_type}");
        }
    }

    #[test]
    fn payloads() {
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
            assert_eq!(takes_payload(&filter, &payload), taken, "{filter}");
        }
        assert!(!takes_payload(&json!({"a": 1}), &json!("text")));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(check(&json!({"a": {"b": [1]}})).is_ok());
        assert!(check(&json!([1])).is_err());
        let deep = (0..20).fold(json!(1), |inner, _| json!({ "a": inner }));
        assert!(check(&deep).is_err());
    }
}
