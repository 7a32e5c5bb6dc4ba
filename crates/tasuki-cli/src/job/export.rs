//! `tasuki job export`: definitions as a file that `tasuki job apply` reads back as the same.

use std::fmt::Write as _;

use clap::Args;
use serde_json::{Value, json};
use toml_edit::{Array, InlineTable};

use super::shape::{JOB, Shape};
use super::{address, all};
use crate::client::Client;
use crate::output::Failure;
use crate::view::{Look, items, text};

/// Print jobs as TOML, all or those named; tasuki job apply reads it back
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job export > jobs.toml
  tasuki job export hello report
  tasuki job export | tasuki job apply -f - --dry-run --url https://other.example")]
pub(super) struct Export {
    /// Only these
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

impl Export {
    pub(super) async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let jobs = match self.names.as_slice() {
            [] => all(client).await?,
            names => {
                let mut jobs = Vec::new();
                for name in names {
                    jobs.push(client.get(address(name)?).send().await?.body);
                }
                json!({ "items": jobs })
            }
        };
        let hidden = |job: &&Value| {
            job["env"].as_object().is_some_and(|env| env.values().any(|value| value == "***"))
        };
        if let Some(job) = items(&jobs, "items").iter().find(hidden) {
            let name = text(job, "name");
            return Err(Failure::refused(format!(
                "the environment of {name} is hidden from this token"
            ))
            .hint("an author's token sees it; without it the file would not make the same jobs"));
        }
        Ok(look.answer(&jobs, |_, jobs| write(items(jobs, "items"))))
    }
}

/// The jobs as TOML: what is nothing is left out.
pub(super) fn write(jobs: &[Value]) -> String {
    let mut text = String::new();
    for job in jobs {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str("[[job]]\n");
        for (name, shape) in JOB {
            if let Some(value) = field(job, name, shape) {
                writeln!(text, "{name} = {value}").expect("a string takes all");
            }
        }
    }
    text
}

fn field(job: &Value, name: &str, shape: &Shape) -> Option<toml_edit::Value> {
    let value = &job[name];
    match name {
        // What every job is unless it says otherwise.
        "enabled" if value == true => None,
        "kind" if value != "django" => None,
        "trigger" if value["type"] == "task" => None,
        "args" | "env" | "labels" if is_empty(value) => None,
        _ => toml(value, shape),
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
        || value.as_array().is_some_and(Vec::is_empty)
}

fn toml(value: &Value, shape: &Shape) -> Option<toml_edit::Value> {
    match shape {
        // What TOML cannot say is said as the JSON it is.
        Shape::Object if !value.is_null() => {
            Some(plain(value).unwrap_or_else(|| value.to_string().into()))
        }
        Shape::Parts(parts) if value.is_object() => {
            let mut table = InlineTable::new();
            for (name, shape) in *parts {
                if let Some(part) = toml(&value[*name], shape) {
                    table.insert(*name, part);
                }
            }
            Some(table.into())
        }
        Shape::Text
        | Shape::Flag
        | Shape::Count
        | Shape::Duration
        | Shape::Texts
        | Shape::TextMap
        | Shape::Object
        | Shape::Parts(_) => plain(value),
    }
}

/// A value of JSON in TOML, if TOML has it.
fn plain(value: &Value) -> Option<toml_edit::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(flag) => (*flag).into(),
        Value::String(text) => text.as_str().into(),
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None if number.is_u64() => return None,
            None => number.as_f64()?.into(),
        },
        Value::Array(list) => list.iter().map(plain).collect::<Option<Array>>()?.into(),
        Value::Object(map) => {
            let mut table = InlineTable::new();
            for (name, value) in map {
                table.insert(name, plain(value)?);
            }
            table.into()
        }
    })
}
