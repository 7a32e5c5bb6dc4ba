//! The difference between two jobs: as a merge patch for the server and as a list of changed fields.

use serde_json::{Map, Value};

/// The merge patch (RFC 7396) that turns `from` into `to`: removed fields become null.
///
/// An object whose `type` or `policy` changes is contained completely, even where parts have equal values by chance:
/// daily at 09:00 is not weekdays at 09:00.
pub(crate) fn compute_merge_patch(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else { return to.clone() };
    let type_changed = ["type", "policy"].iter().any(|key| from.get(*key) != to.get(*key));
    let mut patch = Map::new();
    for name in from.keys().filter(|name| !to.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, value) in to {
        match from.get(name) {
            Some(before) if before == value && !type_changed => {}
            Some(before) => drop(patch.insert(name.clone(), compute_merge_patch(before, value))),
            None => drop(patch.insert(name.clone(), value.clone())),
        }
    }
    Value::Object(patch)
}

/// A changed field.
#[derive(Debug, PartialEq)]
pub(crate) struct FieldChange {
    /// Path of the field, such as `trigger.schedule.value`.
    pub(crate) field: String,
    pub(crate) before: Value,
    pub(crate) after: Value,
}

/// Lists the fields that differ, down to the innermost parts. A missing field equals null.
pub(crate) fn list_changed_fields(before: &Value, after: &Value) -> Vec<FieldChange> {
    let mut changes = Vec::new();
    collect_changes("", before, after, &mut changes);
    changes
}

fn collect_changes(field: &str, before: &Value, after: &Value, changes: &mut Vec<FieldChange>) {
    let none = Map::new();
    let (old, new) = match (before, after) {
        (Value::Object(old), Value::Object(new)) => (old, new),
        // An added or removed object is listed part by part too.
        (Value::Null, Value::Object(new)) if !new.is_empty() => (&none, new),
        (Value::Object(old), Value::Null) if !old.is_empty() => (old, &none),
        (before, after) => {
            if before != after {
                let (before, after) = (before.clone(), after.clone());
                changes.push(FieldChange { field: field.to_owned(), before, after });
            }
            return;
        }
    };
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let part = match field {
            "" => name.clone(),
            field => format!("{field}.{name}"),
        };
        collect_changes(&part, &before[name], &after[name], changes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_contains_only_changes() {
        let from = json!({"a": 1, "b": {"c": 1, "d": 2}, "gone": 1, "same": [1]});
        let to = json!({"a": 2, "b": {"c": 1, "d": 3}, "new": {"x": 1}, "same": [1]});
        assert_eq!(
            compute_merge_patch(&from, &to),
            json!({"a": 2, "b": {"d": 3}, "gone": null, "new": {"x": 1}})
        );
        assert_eq!(compute_merge_patch(&to, &to), json!({}));
    }

    #[test]
    fn an_object_with_a_new_type_is_contained_completely() {
        let from =
            json!({"s": {"type": "daily_at", "value": "09:00", "zone": "UTC", "gap": "skip"}});
        let to = json!({"s": {"type": "weekdays_at", "value": "09:00", "zone": "UTC"}});
        assert_eq!(
            compute_merge_patch(&from, &to),
            json!({"s": {"type": "weekdays_at", "value": "09:00", "zone": "UTC", "gap": null}})
        );
    }

    #[test]
    fn changes_have_the_path_of_their_field() {
        let before = json!({"a": {"b": 1, "c": null}, "l": [1]});
        let after = json!({"a": {"b": 2}, "l": [1, 2]});
        let fields: Vec<String> =
            list_changed_fields(&before, &after).into_iter().map(|change| change.field).collect();
        assert_eq!(fields, ["a.b", "l"]);
    }
}
