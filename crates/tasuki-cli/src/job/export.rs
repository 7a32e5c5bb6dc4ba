//! `tasuki job export`: writes jobs as a TOML file. `tasuki job apply` of that file results in no changes.

use std::fmt::Write as _;

use clap::Args;
use serde_json::{Value, json};
use toml_edit::{Array, InlineTable};

use super::job_field_types::{FieldType, JOB_FIELDS};
use super::{fetch_all_jobs, job_path};
use crate::client::ApiClient;
use crate::failure::Failure;
use crate::view::{OutputStyle, field_items, field_text};

/// Print all jobs, or the named ones, as TOML for `tasuki job apply`
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki job export > jobs.toml
  tasuki job export hello report
  tasuki job export | tasuki job apply -f - --dry-run --url https://other.example")]
pub(super) struct Export {
    /// Names of the jobs [default: all jobs]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

impl Export {
    pub(super) async fn run(
        &self,
        client: &ApiClient,
        style: &OutputStyle,
    ) -> Result<String, Failure> {
        let jobs = match self.names.as_slice() {
            [] => fetch_all_jobs(client).await?,
            names => {
                let mut jobs = Vec::new();
                for name in names {
                    jobs.push(client.get(job_path(name)?).send().await?.body);
                }
                json!({ "items": jobs })
            }
        };
        let has_hidden_value = |job: &&Value| {
            job["env"].as_object().is_some_and(|env| env.values().any(|value| value == "***"))
        };
        if let Some(job) = field_items(&jobs, "items").iter().find(has_hidden_value) {
            let name = field_text(job, "name");
            return Err(Failure::new(format!(
                "the environment of job {name} is hidden from this token"
            ))
            .hint("use a token with role author; without the environment the export would be incomplete"));
        }
        Ok(style.render(&jobs, |_, jobs| to_toml(field_items(jobs, "items"))))
    }
}

/// Writes jobs as TOML, without empty fields.
pub(super) fn to_toml(jobs: &[Value]) -> String {
    let mut text = String::new();
    for job in jobs {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str("[[job]]\n");
        for (name, field_type) in JOB_FIELDS {
            if let Some(value) = field_to_toml(job, name, field_type) {
                writeln!(text, "{name} = {value}").expect("writing to a string does not fail");
            }
        }
    }
    text
}

fn field_to_toml(job: &Value, name: &str, field_type: &FieldType) -> Option<toml_edit::Value> {
    let value = &job[name];
    match name {
        // Default values of every job are omitted.
        "enabled" if value == true => None,
        "kind" if value != "django" => None,
        "trigger" if value["type"] == "task" => None,
        "args" | "env" | "labels" if is_empty(value) => None,
        _ => typed_to_toml(value, field_type),
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
        || value.as_array().is_some_and(Vec::is_empty)
}

fn typed_to_toml(value: &Value, field_type: &FieldType) -> Option<toml_edit::Value> {
    match field_type {
        // TOML has no null and no integers above i64: such objects are written as a JSON string.
        FieldType::Object if !value.is_null() => {
            Some(json_to_toml(value).unwrap_or_else(|| value.to_string().into()))
        }
        FieldType::Fields(parts) if value.is_object() => {
            let mut table = InlineTable::new();
            for (name, field_type) in *parts {
                if let Some(part) = typed_to_toml(&value[*name], field_type) {
                    table.insert(*name, part);
                }
            }
            Some(table.into())
        }
        FieldType::Text
        | FieldType::Flag
        | FieldType::Count
        | FieldType::Duration
        | FieldType::TextList
        | FieldType::TextMap
        | FieldType::Object
        | FieldType::Fields(_) => json_to_toml(value),
    }
}

/// Converts a JSON value to TOML, or returns `None` if TOML cannot represent it.
fn json_to_toml(value: &Value) -> Option<toml_edit::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(flag) => (*flag).into(),
        Value::String(text) => text.as_str().into(),
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None if number.is_u64() => return None,
            None => number.as_f64()?.into(),
        },
        Value::Array(list) => list.iter().map(json_to_toml).collect::<Option<Array>>()?.into(),
        Value::Object(map) => {
            let mut table = InlineTable::new();
            for (name, value) in map {
                table.insert(name, json_to_toml(value)?);
            }
            table.into()
        }
    })
}
