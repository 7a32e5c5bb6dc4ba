//! Builds command lines (argv) from a job's template and JSON arguments. No shell is involved.
//!
//! In a command, `{name}` is replaced within its own argument, and an argument is never split: a value
//! cannot become a second argument or another program. `{{name}}` produces the text `{name}`. `${name}`
//! and every other use of braces stays unchanged, so that `awk`, JSON and scripts for `sh -c` need no
//! escaping.

use serde_json::{Map, Value};

use crate::InvalidInput;

/// The arguments of a run: the job's defaults, overridden key by key by those of the trigger or event.
pub fn merge_args(
    defaults: &Map<String, Value>,
    overrides: &Map<String, Value>,
) -> Map<String, Value> {
    let mut merged = defaults.clone();
    merged.extend(overrides.iter().map(|(name, value)| (name.clone(), value.clone())));
    merged
}

/// The argv of a command job: the program, and its arguments with every placeholder filled in.
pub fn command_argv(
    template: &[String],
    args: &Map<String, Value>,
) -> Result<Vec<String>, InvalidInput> {
    let Some((program, arguments)) = template.split_first() else {
        return Err(InvalidInput::with_described_value(
            "command",
            "no program",
            "a program to run",
        ));
    };
    if program.is_empty() || program.contains('\0') {
        return Err(InvalidInput::with_value("command", program, "a program to run"));
    }
    // Placeholders in the program name are not filled in: only the job chooses the program, never the
    // arguments of a trigger.
    let mut argv = vec![program.clone()];
    for argument in arguments {
        argv.push(fill_placeholders(argument, args)?);
    }
    Ok(argv)
}

/// Fills in the placeholders of one argument.
fn fill_placeholders(argument: &str, args: &Map<String, Value>) -> Result<String, InvalidInput> {
    let mut filled = String::with_capacity(argument.len());
    let mut rest = argument;
    while let Some(brace) = rest.find('{') {
        let (before, at_brace) = rest.split_at(brace);
        filled.push_str(before);
        rest = match Braces::parse(at_brace) {
            Some(Braces::Doubled { text, rest }) => {
                filled.push_str(text);
                rest
            }
            Some(Braces::Placeholder { name, rest }) if !before.ends_with('$') => {
                filled.push_str(&argument_text(name, args)?);
                rest
            }
            Some(Braces::Placeholder { .. }) | None => {
                filled.push('{');
                &at_brace[1..]
            }
        };
    }
    filled.push_str(rest);
    without_nul("command", filled)
}

/// A brace expression at the start of a text.
enum Braces<'a> {
    /// `{name}`
    Placeholder { name: &'a str, rest: &'a str },
    /// `{{name}}`, whose text is `{name}`
    Doubled { text: &'a str, rest: &'a str },
}

impl<'a> Braces<'a> {
    /// Parses the brace expression that `text` starts with, if it does.
    fn parse(text: &'a str) -> Option<Self> {
        if let Some(inner) = text.strip_prefix("{{") {
            let name = leading_name(inner)?;
            let rest = inner[name.len()..].strip_prefix("}}")?;
            return Some(Self::Doubled { text: &text[1..name.len() + 3], rest });
        }
        let inner = text.strip_prefix('{')?;
        let name = leading_name(inner)?;
        let rest = inner[name.len()..].strip_prefix('}')?;
        Some(Self::Placeholder { name, rest })
    }
}

/// The name at the start of a text, if there is one.
fn leading_name(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let begins = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    begins.then(|| &text[..end])
}

/// The value of an argument as text: strings without quotes, everything else as JSON.
fn argument_text(name: &str, args: &Map<String, Value>) -> Result<String, InvalidInput> {
    match args.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(value) if !value.is_null() => Ok(value.to_string()),
        Some(_) | None => {
            let found = format!("no value for {{{name}}}");
            let expected = format!("an argument named {name}");
            Err(InvalidInput::with_described_value("arguments", found, expected))
        }
    }
}

/// How a worker starts Django. It comes from the worker's configuration, never from a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DjangoConfig {
    /// The Python interpreter: `python`, or a path into a virtual environment.
    pub python: String,
    /// The path of `manage.py`, relative to the project directory.
    pub manage: String,
}

/// The argv of a Django job: `python manage.py <command>`, then `options`, then `args`.
pub fn django_argv(
    django: &DjangoConfig,
    command: &str,
    args: &Map<String, Value>,
) -> Result<Vec<String>, InvalidInput> {
    if !is_option_name(command) {
        let expected = "the name of a management command";
        return Err(InvalidInput::with_value("command", command, expected));
    }
    if let Some(unknown) = args.keys().find(|key| !["args", "options"].contains(&key.as_str())) {
        return Err(InvalidInput::with_value("arguments", unknown, "only `args` and `options`"));
    }
    let mut argv = vec![django.python.clone(), django.manage.clone(), command.to_owned()];
    match args.get("options") {
        None | Some(Value::Null) => {}
        Some(Value::Object(options)) => {
            for (name, value) in options {
                push_option(&mut argv, name, value)?;
            }
        }
        Some(other) => return Err(wrong_type("options", other, "an object of names and values")),
    }
    let positionals = match args.get("args") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(values)) => {
            values.iter().map(|value| scalar("args", value)).collect::<Result<Vec<_>, _>>()?
        }
        Some(other) => return Err(wrong_type("args", other, "a list of values")),
    };
    // `--` only where it is needed: commands with subcommands do not support it.
    if positionals.iter().any(|text| text.starts_with('-')) {
        argv.push("--".to_owned());
    }
    argv.extend(positionals);
    Ok(argv)
}

/// Appends one option. `true` gives the flag without a value, `false` and null give nothing, a list
/// repeats the option.
fn push_option(argv: &mut Vec<String>, name: &str, value: &Value) -> Result<(), InvalidInput> {
    if !is_option_name(name) {
        let expected = "the name of an option: letters, digits, - and _";
        return Err(InvalidInput::with_value("options", name, expected));
    }
    // The worker's configuration decides which code is loaded, never the arguments of an event.
    // Prefixes are rejected too, because argparse accepts abbreviated options.
    if ["settings", "pythonpath"].iter().any(|option| option.starts_with(name)) {
        let expected = "no option that is --settings, --pythonpath or a prefix of them: the worker's configuration chooses the code to load";
        return Err(InvalidInput::with_value("options", name, expected));
    }
    match value {
        Value::Bool(true) => argv.push(format!("--{name}")),
        Value::Bool(false) | Value::Null => {}
        Value::Array(values) => {
            for value in values {
                argv.push(format!("--{name}={}", scalar("options", value)?));
            }
        }
        Value::String(_) | Value::Number(_) | Value::Object(_) => {
            argv.push(format!("--{name}={}", scalar("options", value)?));
        }
    }
    Ok(())
}

fn is_option_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

fn scalar(field: &'static str, value: &Value) -> Result<String, InvalidInput> {
    match value {
        Value::String(text) => without_nul(field, text.clone()),
        Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => {
            Err(wrong_type(field, value, "text, numbers or booleans"))
        }
    }
}

fn wrong_type(field: &'static str, value: &Value, expected: &'static str) -> InvalidInput {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    InvalidInput::with_described_value(field, found, expected)
}

/// Rejects NUL: the operating system ends an argument at a NUL byte, so such text cannot be passed.
fn without_nul(field: &'static str, text: String) -> Result<String, InvalidInput> {
    match text.contains('\0') {
        true => {
            Err(InvalidInput::with_described_value(field, "a NUL character", "text without one"))
        }
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(object) = value else { panic!("not an object: {value}") };
        object
    }

    fn filled(argument: &str, args: Value) -> Result<String, String> {
        let template = ["prog".to_owned(), argument.to_owned()];
        let argv = command_argv(&template, &object(args)).map_err(|error| error.to_string())?;
        assert_eq!(argv.len(), 2, "an argument is never split");
        Ok(argv[1].clone())
    }

    #[test]
    fn placeholders_are_filled_in_and_all_other_text_is_unchanged() {
        let args = json!({
            "day": "2026-11-15", "n": 3, "on": true, "list": [1, 2], "evil": "a b; rm -rf / {n} $(id)",
        });
        let table = [
            ("--day={day}", "--day=2026-11-15"),
            ("{n}{n}", "33"),
            ("{on}", "true"),
            ("{list}", "[1,2]"),
            ("{evil}", "a b; rm -rf / {n} $(id)"),
            ("{{day}}", "{day}"),
            ("{{{day}}}", "{{day}}"),
            ("${day}", "${day}"),
            ("$${n}", "$${n}"),
            ("awk '{print $1}'", "awk '{print $1}'"),
            (r#"{"a":{"b":1}}"#, r#"{"a":{"b":1}}"#),
            ("{}", "{}"),
            ("{", "{"),
            ("{day", "{day"),
            ("日{n}本", "日3本"),
            ("", ""),
        ];
        for (argument, expected) in table {
            assert_eq!(filled(argument, args.clone()).as_deref(), Ok(expected), "{argument}");
        }
    }

    #[test]
    fn a_missing_argument_is_an_error_not_an_empty_string() {
        for args in [json!({}), json!({"day": null})] {
            assert_eq!(
                filled("--day={day}", args).unwrap_err(),
                "arguments: found no value for {day}, expected an argument named day"
            );
        }
        assert!(filled("{x}", json!({"x": "a\0b"})).unwrap_err().contains("NUL"));
        assert!(command_argv(&[], &Map::new()).is_err());
        assert!(command_argv(&[String::new()], &Map::new()).is_err());
        let program = command_argv(&["{day}".to_owned()], &object(json!({"day": "/bin/sh"})));
        assert_eq!(program.unwrap(), ["{day}"], "an argument cannot choose the program");
    }

    #[test]
    fn arguments_override_the_defaults_key_by_key() {
        let defaults = object(json!({"a": 1, "b": {"c": 2}}));
        let overrides = object(json!({"b": {"d": 3}, "e": null}));
        assert_eq!(
            Value::Object(merge_args(&defaults, &overrides)),
            json!({"a": 1, "b": {"d": 3}, "e": null})
        );
    }

    fn manage(command: &str, args: Value) -> Result<String, String> {
        let config = DjangoConfig { python: "python3".to_owned(), manage: "manage.py".to_owned() };
        let argv =
            django_argv(&config, command, &object(args)).map_err(|error| error.to_string())?;
        Ok(argv.join("|"))
    }

    #[test]
    fn django_options_and_arguments_become_an_argv() {
        let table = [
            (json!({}), ""),
            (json!({"args": ["a b", 2]}), "|a b|2"),
            (
                json!({"options": {"dry-run": true, "verbosity": 2, "quiet": false, "none": null}}),
                "|--dry-run|--verbosity=2",
            ),
            (json!({"options": {"tag": ["x", "y"]}, "args": ["z"]}), "|--tag=x|--tag=y|z"),
            (json!({"args": ["--settings=evil"]}), "|--|--settings=evil"),
            (json!({"options": {"name": "--evil"}}), "|--name=--evil"),
        ];
        for (args, expected) in table {
            let expected = format!("python3|manage.py|import_data{expected}");
            assert_eq!(manage("import_data", args.clone()), Ok(expected), "{args}");
        }
    }

    #[test]
    fn invalid_django_arguments_are_errors() {
        let table = [
            ("-h", json!({}), "command: found \"-h\""),
            ("a b", json!({}), "command: found \"a b\""),
            (
                "c",
                json!({"arg": 1}),
                "arguments: found \"arg\", expected only `args` and `options`",
            ),
            ("c", json!({"args": {"a": 1}}), "args: found an object, expected a list of values"),
            ("c", json!({"args": [[1]]}), "args: found a list, expected text, numbers or booleans"),
            ("c", json!({"options": [1]}), "options: found a list"),
            ("c", json!({"options": {"a b": 1}}), "options: found \"a b\""),
            ("c", json!({"options": {"-x": 1}}), "options: found \"-x\""),
            ("c", json!({"options": {"x": {"y": 1}}}), "options: found an object"),
            (
                "c",
                json!({"options": {"pythonpat": "evil"}}),
                "options: found \"pythonpat\", expected no option",
            ),
            ("c", json!({"options": {"s": "evil"}}), "options: found \"s\", expected no option"),
            (
                "c",
                json!({"options": {"settings": "evil"}}),
                "options: found \"settings\", expected no option",
            ),
            ("c", json!({"args": ["\0"]}), "args: found a NUL character"),
        ];
        for (command, args, expected) in table {
            let message = manage(command, args.clone()).unwrap_err();
            assert!(message.starts_with(expected), "{args}: {message}");
        }
    }
}
