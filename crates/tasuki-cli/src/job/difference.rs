//! What is different between two jobs, as a patch for the server and as lines for people.

use serde_json::{Map, Value};

/// The merge patch (RFC 7396) that turns one value into the other: what is gone becomes null.
///
/// What becomes of another type is said whole, even where parts of it stay the same by chance: at
/// 09:00 every day is not at 09:00 on weekdays.
pub(crate) fn patch(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else { return to.clone() };
    let other_type = ["type", "policy"].iter().any(|key| from.get(*key) != to.get(*key));
    let mut patch = Map::new();
    for name in from.keys().filter(|name| !to.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, value) in to {
        match from.get(name) {
            Some(before) if before == value && !other_type => {}
            Some(before) => drop(patch.insert(name.clone(), self::patch(before, value))),
            None => drop(patch.insert(name.clone(), value.clone())),
        }
    }
    Value::Object(patch)
}

/// A field that differs.
#[derive(Debug, PartialEq)]
pub(crate) struct Change {
    /// `trigger.schedule.value`
    pub(crate) field: String,
    pub(crate) before: Value,
    pub(crate) after: Value,
}

/// Every field that differs, down to the parts. Nothing and null are the same.
pub(crate) fn changes(before: &Value, after: &Value) -> Vec<Change> {
    let mut found = Vec::new();
    collect("", before, after, &mut found);
    found
}

fn collect(field: &str, before: &Value, after: &Value, found: &mut Vec<Change>) {
    let none = Map::new();
    let (old, new) = match (before, after) {
        (Value::Object(old), Value::Object(new)) => (old, new),
        // What comes or goes as a whole is told part by part too.
        (Value::Null, Value::Object(new)) if !new.is_empty() => (&none, new),
        (Value::Object(old), Value::Null) if !old.is_empty() => (old, &none),
        (before, after) => {
            if before != after {
                let (before, after) = (before.clone(), after.clone());
                found.push(Change { field: field.to_owned(), before, after });
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
        collect(&part, &before[name], &after[name], found);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_says_only_what_changes() {
        let from = json!({"a": 1, "b": {"c": 1, "d": 2}, "gone": 1, "same": [1]});
        let to = json!({"a": 2, "b": {"c": 1, "d": 3}, "new": {"x": 1}, "same": [1]});
        assert_eq!(
            patch(&from, &to),
            json!({"a": 2, "b": {"d": 3}, "gone": null, "new": {"x": 1}})
        );
        assert_eq!(patch(&to, &to), json!({}));
    }

    #[test]
    fn what_becomes_of_another_type_is_said_whole() {
        let from =
            json!({"s": {"type": "daily_at", "value": "09:00", "zone": "UTC", "gap": "skip"}});
        let to = json!({"s": {"type": "weekdays_at", "value": "09:00", "zone": "UTC"}});
        assert_eq!(
            patch(&from, &to),
            json!({"s": {"type": "weekdays_at", "value": "09:00", "zone": "UTC", "gap": null}})
        );
    }

    #[test]
    fn changes_are_told_by_their_path() {
        let before = json!({"a": {"b": 1, "c": null}, "l": [1]});
        let after = json!({"a": {"b": 2}, "l": [1, 2]});
        let told: Vec<String> = changes(&before, &after).into_iter().map(|one| one.field).collect();
        assert_eq!(told, ["a.b", "l"]);
    }
}
