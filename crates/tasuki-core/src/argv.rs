//! Arguments to argv: what a job's JSON object becomes on a command line. Never a shell.
//!
//! In a command, `{name}` is replaced inside its own argument and the argument is never split, so a
//! value cannot become a second argument, let alone another program. `{{name}}` stands for the
//! text `{name}`; `${name}` and every other use of braces is left as it is, so that `awk`, JSON and
//! a script that the job itself hands to `sh -c` need no escaping.

use serde_json::{Map, Value};

use crate::Invalid;

/// The object a run gets: the job's defaults, overlaid key by key with the trigger's or event's.
pub fn overlay(defaults: &Map<String, Value>, given: &Map<String, Value>) -> Map<String, Value> {
    let mut all = defaults.clone();
    all.extend(given.iter().map(|(name, value)| (name.clone(), value.clone())));
    all
}

/// The argv of a command job: the program and its arguments with every placeholder filled.
pub fn command(template: &[String], args: &Map<String, Value>) -> Result<Vec<String>, Invalid> {
    let Some((program, arguments)) = template.split_first() else {
        return Err(Invalid::described("command", "no program", "a program to run"));
    };
    if program.is_empty() || program.contains('\0') {
        return Err(Invalid::typed("command", program, "a program to run"));
    }
    // Which program runs is the job's to say, whoever triggers it: no placeholder is filled there.
    let mut argv = vec![program.clone()];
    for argument in arguments {
        argv.push(fill(argument, args)?);
    }
    Ok(argv)
}

/// Fills the placeholders of one argument.
fn fill(argument: &str, args: &Map<String, Value>) -> Result<String, Invalid> {
    let mut filled = String::with_capacity(argument.len());
    let mut rest = argument;
    while let Some(brace) = rest.find('{') {
        let (before, at_brace) = rest.split_at(brace);
        filled.push_str(before);
        rest = match Braces::at(at_brace) {
            Some(Braces::Doubled { text, rest }) => {
                filled.push_str(text);
                rest
            }
            Some(Braces::Placeholder { name, rest }) if !before.ends_with('$') => {
                filled.push_str(&text_of(name, args)?);
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

/// What an opening brace begins.
enum Braces<'a> {
    /// `{name}`
    Placeholder { name: &'a str, rest: &'a str },
    /// `{{name}}`, whose text is `{name}`
    Doubled { text: &'a str, rest: &'a str },
}

impl<'a> Braces<'a> {
    fn at(text: &'a str) -> Option<Self> {
        if let Some(inner) = text.strip_prefix("{{") {
            let name = name_at(inner)?;
            let rest = inner[name.len()..].strip_prefix("}}")?;
            return Some(Self::Doubled { text: &text[1..name.len() + 3], rest });
        }
        let inner = text.strip_prefix('{')?;
        let name = name_at(inner)?;
        let rest = inner[name.len()..].strip_prefix('}')?;
        Some(Self::Placeholder { name, rest })
    }
}

/// The name a text begins with.
fn name_at(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let begins = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    begins.then(|| &text[..end])
}

fn text_of(name: &str, args: &Map<String, Value>) -> Result<String, Invalid> {
    match args.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(value) if !value.is_null() => Ok(value.to_string()),
        Some(_) | None => {
            let found = format!("no value for {{{name}}}");
            let expected = format!("an argument called {name}");
            Err(Invalid::described("arguments", found, expected))
        }
    }
}

/// How this worker starts Django: from its own configuration, never from a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Django {
    /// The interpreter: `python`, or a path into an environment.
    pub python: String,
    /// `manage.py`, as seen from the project directory.
    pub manage: String,
}

/// The argv of a `django` job: `python manage.py <command>`, then `options`, then `args`.
pub fn django(
    django: &Django,
    command: &str,
    args: &Map<String, Value>,
) -> Result<Vec<String>, Invalid> {
    if !is_option_name(command) {
        let expected = "the name of a management command";
        return Err(Invalid::typed("command", command, expected));
    }
    if let Some(unknown) = args.keys().find(|key| !["args", "options"].contains(&key.as_str())) {
        return Err(Invalid::typed("arguments", unknown, "only `args` and `options`"));
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
    // Only where it is needed: commands with subcommands do not understand the separator.
    if positionals.iter().any(|text| text.starts_with('-')) {
        argv.push("--".to_owned());
    }
    argv.extend(positionals);
    Ok(argv)
}

/// `true` is the bare flag, `false` and null are nothing, a list repeats the option.
fn push_option(argv: &mut Vec<String>, name: &str, value: &Value) -> Result<(), Invalid> {
    if !is_option_name(name) {
        let expected = "the name of an option: letters, digits, - and _";
        return Err(Invalid::typed("options", name, expected));
    }
    // Where code is loaded from is the worker's to say, not an event's; and argparse takes the
    // beginning of an option for the whole of it.
    if ["settings", "pythonpath"].iter().any(|option| option.starts_with(name)) {
        let expected = "no option that is or begins --settings or --pythonpath: which code is loaded is the worker's configuration";
        return Err(Invalid::typed("options", name, expected));
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

fn scalar(field: &'static str, value: &Value) -> Result<String, Invalid> {
    match value {
        Value::String(text) => without_nul(field, text.clone()),
        Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => {
            Err(wrong_type(field, value, "text, numbers or booleans"))
        }
    }
}

fn wrong_type(field: &'static str, value: &Value, expected: &'static str) -> Invalid {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    Invalid::described(field, found, expected)
}

/// The operating system ends an argument at a NUL byte, so one that holds it cannot be passed.
fn without_nul(field: &'static str, text: String) -> Result<String, Invalid> {
    match text.contains('\0') {
        true => Err(Invalid::described(field, "a NUL character", "text without one")),
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
        let argv = command(&template, &object(args)).map_err(|refused| refused.to_string())?;
        assert_eq!(argv.len(), 2, "an argument is never split");
        Ok(argv[1].clone())
    }

    #[test]
    fn placeholders_are_filled_and_nothing_else_is_touched() {
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
                "arguments: found no value for {day}, expected an argument called day"
            );
        }
        assert!(filled("{x}", json!({"x": "a\0b"})).unwrap_err().contains("NUL"));
        assert!(command(&[], &Map::new()).is_err());
        assert!(command(&[String::new()], &Map::new()).is_err());
        let program = command(&["{day}".to_owned()], &object(json!({"day": "/bin/sh"})));
        assert_eq!(program.unwrap(), ["{day}"], "a trigger does not choose the program");
    }

    #[test]
    fn the_trigger_overlays_the_defaults_key_by_key() {
        let defaults = object(json!({"a": 1, "b": {"c": 2}}));
        let given = object(json!({"b": {"d": 3}, "e": null}));
        assert_eq!(
            Value::Object(overlay(&defaults, &given)),
            json!({"a": 1, "b": {"d": 3}, "e": null})
        );
    }

    fn manage(command: &str, args: Value) -> Result<String, String> {
        let config = Django { python: "python3".to_owned(), manage: "manage.py".to_owned() };
        let argv =
            django(&config, command, &object(args)).map_err(|refused| refused.to_string())?;
        Ok(argv.join("|"))
    }

    #[test]
    fn django_commands() {
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
    fn django_refusals() {
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
