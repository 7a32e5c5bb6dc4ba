//! Parsers of command-line values: instants, run arguments, NAME=VALUE pairs, scopes, JSON, and file contents.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use tasuki_core::{RunScope, duration};

use crate::failure::Failure;

/// Arguments of a run: `--arg` and `--args`.
#[derive(Args)]
pub(crate) struct RunArguments {
    /// Argument; a VALUE that is valid JSON is stored as JSON, any other VALUE as a string (repeatable)
    #[arg(long = "arg", value_name = "NAME=VALUE")]
    pairs: Vec<String>,

    /// All arguments as a JSON object. Each --arg adds a key to this object or replaces the value of a key
    #[arg(long = "args", value_name = "JSON")]
    object: Option<String>,
}

impl RunArguments {
    /// Returns the arguments in `before` with the given ones added, or `None` if no argument was given.
    pub(crate) fn build_run_args(&self, before: &Value) -> Result<Option<Value>, Failure> {
        if self.pairs.is_empty() && self.object.is_none() {
            return Ok(None);
        }
        let mut args = match &self.object {
            Some(input) => parse_json_object_flag("--args", input)?,
            None => before.as_object().cloned().unwrap_or_default(),
        };
        for input in &self.pairs {
            let (name, value) = split_name_value("--arg", input)?;
            let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
            args.insert(name.to_owned(), value);
        }
        Ok(Some(Value::Object(args)))
    }

    pub(crate) fn parse(&self) -> Result<Option<Value>, Failure> {
        self.build_run_args(&Value::Null)
    }
}

/// Splits `NAME=VALUE`.
pub(crate) fn split_name_value<'a>(
    flag: &str,
    input: &'a str,
) -> Result<(&'a str, &'a str), Failure> {
    match input.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name, value)),
        _ => Err(Failure::bad_usage(format!("{flag}: found {input:?}, expected NAME=VALUE"))),
    }
}

pub(crate) fn parse_json_object_flag(
    flag: &str,
    input: &str,
) -> Result<Map<String, Value>, Failure> {
    match parse_json_flag(flag, input)? {
        Value::Object(object) => Ok(object),
        _ => Err(Failure::bad_usage(format!("{flag}: found {input:?}, expected a JSON object"))),
    }
}

pub(crate) fn parse_json_flag(flag: &str, input: &str) -> Result<Value, Failure> {
    serde_json::from_str(input)
        .map_err(|error| Failure::bad_usage(format!("{flag}: not JSON: {error}")))
}

/// The direction of a duration that is given instead of an instant: `--since 1h` is in the past, `--at 1h` in the future.
#[derive(Clone, Copy)]
pub(crate) enum PastOrFuture {
    Past,
    Future,
}

/// Parses an instant (`2026-11-16T03:00:00Z`) or a duration relative to now.
pub(crate) fn parse_instant_flag(
    flag: &str,
    input: &str,
    direction: PastOrFuture,
    now: Timestamp,
) -> Result<Timestamp, Failure> {
    if let Ok(instant) = input.parse() {
        return Ok(instant);
    }
    let failure = |_| {
        let expected = "an instant such as 2026-11-16T03:00:00Z, or a duration from now such as 90s, 30m, 2h or 7d";
        Failure::bad_usage(format!("{flag}: found {input:?}, expected {expected}"))
    };
    let length = duration::parse_duration_field("instant", input).map_err(failure)?;
    let length = SignedDuration::try_from(length).unwrap_or(SignedDuration::MAX);
    let moved = match direction {
        PastOrFuture::Past => now.checked_sub(length),
        PastOrFuture::Future => now.checked_add(length),
    };
    moved.map_err(|_| {
        Failure::bad_usage(format!(
            "{flag}: {input} from now is outside the supported range of time"
        ))
    })
}

/// Parses an optional value as [`instant`] does and returns it in the format of the API.
pub(crate) fn instant_flag_to_api_text(
    flag: &str,
    input: Option<&str>,
    direction: PastOrFuture,
    now: Timestamp,
) -> Result<Option<String>, Failure> {
    let read =
        |input| parse_instant_flag(flag, input, direction, now).map(|instant| instant.to_string());
    input.map(read).transpose()
}

/// Parses a scope such as `tenant/42`.
pub(crate) fn parse_run_scope_flag(input: &str) -> Result<Value, Failure> {
    let (kind, id) = input.split_once('/').ok_or_else(|| {
        Failure::bad_usage(format!("--scope: found {input:?}, expected KIND/ID such as tenant/42"))
    })?;
    let scope = RunScope::new(kind, id).map_err(|invalid| Failure::invalid_input(&invalid))?;
    Ok(json!({ "kind": scope.kind(), "id": scope.id() }))
}

/// Reads a text file, or stdin if the path is `-`.
pub(crate) fn read_file_or_stdin(path: &Path) -> Result<String, Failure> {
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
    fn arguments_that_parse_as_json_are_json() {
        let arguments = RunArguments {
            pairs: ["n=5", "word=five", "list=[1]", "empty=", "eq=a=b"].map(str::to_owned).to_vec(),
            object: Some(r#"{"n":1,"kept":true}"#.to_owned()),
        };
        let expected =
            json!({"n": 5, "word": "five", "list": [1], "empty": "", "eq": "a=b", "kept": true});
        assert_eq!(arguments.parse().unwrap(), Some(expected));
        for wrong in ["", "=x", "x"] {
            let arguments = RunArguments { pairs: vec![wrong.to_owned()], object: None };
            assert!(arguments.parse().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn durations_are_relative_to_now() {
        let now: Timestamp = "2026-11-16T03:00:00Z".parse().unwrap();
        let read = |input, direction| {
            parse_instant_flag("--at", input, direction, now).unwrap().to_string()
        };
        assert_eq!(read("1h", PastOrFuture::Future), "2026-11-16T04:00:00Z");
        assert_eq!(read("1h", PastOrFuture::Past), "2026-11-16T02:00:00Z");
        assert_eq!(read("2026-01-01T00:00:00+09:00", PastOrFuture::Past), "2025-12-31T15:00:00Z");
        assert!(parse_instant_flag("--at", "soon", PastOrFuture::Future, now).is_err());
    }
}
