//! What people type that is more than a word: instants, arguments, variables, scopes, files.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use tasuki_core::{Scope, duration};

use crate::output::Failure;

/// Arguments of a run, as `--arg` and `--args`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// An argument; the value is JSON if it reads as JSON, else text (repeatable)
    #[arg(long = "arg", value_name = "NAME=VALUE")]
    one: Vec<String>,

    /// All arguments as a JSON object; --arg is laid over it
    #[arg(long = "args", value_name = "JSON")]
    all: Option<String>,
}

impl Arguments {
    /// What was typed laid over `before`, or nothing if nothing was typed.
    pub(crate) fn over(&self, before: &Value) -> Result<Option<Value>, Failure> {
        if self.one.is_empty() && self.all.is_none() {
            return Ok(None);
        }
        let mut args = match &self.all {
            Some(typed) => json_object("--args", typed)?,
            None => before.as_object().cloned().unwrap_or_default(),
        };
        for typed in &self.one {
            let (name, value) = pair("--arg", typed)?;
            let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
            args.insert(name.to_owned(), value);
        }
        Ok(Some(Value::Object(args)))
    }

    pub(crate) fn read(&self) -> Result<Option<Value>, Failure> {
        self.over(&Value::Null)
    }
}

/// `NAME=VALUE`
pub(crate) fn pair<'a>(flag: &str, typed: &'a str) -> Result<(&'a str, &'a str), Failure> {
    match typed.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name, value)),
        _ => Err(Failure::bad_usage(format!("{flag}: found {typed:?}, expected NAME=VALUE"))),
    }
}

pub(crate) fn json_object(flag: &str, typed: &str) -> Result<Map<String, Value>, Failure> {
    match json(flag, typed)? {
        Value::Object(object) => Ok(object),
        _ => Err(Failure::bad_usage(format!("{flag}: found {typed:?}, expected a JSON object"))),
    }
}

pub(crate) fn json(flag: &str, typed: &str) -> Result<Value, Failure> {
    serde_json::from_str(typed)
        .map_err(|error| Failure::bad_usage(format!("{flag}: not JSON: {error}")))
}

/// Which way a bare duration counts: `--since 1h` looks back, `--at 1h` looks ahead.
#[derive(Clone, Copy)]
pub(crate) enum From {
    Ago,
    Ahead,
}

/// `2026-11-16T03:00:00Z`, or a duration from now.
pub(crate) fn instant(
    flag: &str,
    typed: &str,
    from: From,
    now: Timestamp,
) -> Result<Timestamp, Failure> {
    if let Ok(instant) = typed.parse() {
        return Ok(instant);
    }
    let refuse = |_| {
        let expected = "an instant such as 2026-11-16T03:00:00Z, or a duration from now such as 90s, 30m, 2h or 7d";
        Failure::bad_usage(format!("{flag}: found {typed:?}, expected {expected}"))
    };
    let length = duration::read("instant", typed).map_err(refuse)?;
    let length = SignedDuration::try_from(length).unwrap_or(SignedDuration::MAX);
    let moved = match from {
        From::Ago => now.checked_sub(length),
        From::Ahead => now.checked_add(length),
    };
    moved.map_err(|_| Failure::bad_usage(format!("{flag}: {typed} from now is out of reach")))
}

/// As `instant`, as the server reads it, if anything was typed.
pub(crate) fn instant_if(
    flag: &str,
    typed: Option<&str>,
    from: From,
    now: Timestamp,
) -> Result<Option<String>, Failure> {
    let read = |typed| instant(flag, typed, from, now).map(|instant| instant.to_string());
    typed.map(read).transpose()
}

/// `tenant/42`
pub(crate) fn scope(typed: &str) -> Result<Value, Failure> {
    let (kind, id) = typed.split_once('/').ok_or_else(|| {
        Failure::bad_usage(format!("--scope: found {typed:?}, expected KIND/ID such as tenant/42"))
    })?;
    let scope = Scope::new(kind, id).map_err(|invalid| Failure::usage(&invalid))?;
    Ok(json!({ "kind": scope.kind(), "id": scope.id() }))
}

/// The text of a file, or of stdin if it is called `-`.
pub(crate) fn file(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = match path.as_os_str() == "-" {
        true => io::stdin().read_to_string(&mut text).map(|_| text),
        false => fs::read_to_string(path),
    };
    read.map_err(|error| Failure::bad_usage(format!("cannot read {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_json_where_they_read_as_json() {
        let arguments = Arguments {
            one: ["n=5", "word=five", "list=[1]", "empty=", "eq=a=b"].map(str::to_owned).to_vec(),
            all: Some(r#"{"n":1,"kept":true}"#.to_owned()),
        };
        let expected =
            json!({"n": 5, "word": "five", "list": [1], "empty": "", "eq": "a=b", "kept": true});
        assert_eq!(arguments.read().unwrap(), Some(expected));
        for wrong in ["", "=x", "x"] {
            let arguments = Arguments { one: vec![wrong.to_owned()], all: None };
            assert!(arguments.read().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_bare_duration_counts_from_now() {
        let now: Timestamp = "2026-11-16T03:00:00Z".parse().unwrap();
        let read = |typed, from| instant("--at", typed, from, now).unwrap().to_string();
        assert_eq!(read("1h", From::Ahead), "2026-11-16T04:00:00Z");
        assert_eq!(read("1h", From::Ago), "2026-11-16T02:00:00Z");
        assert_eq!(read("2026-01-01T00:00:00+09:00", From::Ago), "2025-12-31T15:00:00Z");
        assert!(instant("--at", "soon", From::Ahead, now).is_err());
    }
}
