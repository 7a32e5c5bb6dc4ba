//! Parser of TOML files with jobs. Errors name line, job and field, and occur before any job is changed.

use std::ops::Range;

use serde_json::{Map, Value, json};
use tasuki_core::duration;
use toml_edit::{Document, Item, TableLike};

use super::job_field_types::{FieldType, JOB_FIELDS};
use super::normalize;
use crate::failure::Failure;

/// A job in the file.
#[derive(Debug)]
pub(super) struct FileJob {
    pub(super) name: String,
    /// The fields in the file, including the name, in the format of the API.
    pub(super) fields: Map<String, Value>,
}

/// Parses the jobs in `text`; `file` is the file name for error messages.
pub(super) fn parse(file: &str, text: &str) -> Result<Vec<FileJob>, Failure> {
    let parser = FileParser { file, text };
    let document = Document::parse(text)
        .map_err(|error| parser.error_at(error.span(), "invalid TOML", error.message()))?;
    let mut jobs: Vec<(FileJob, usize)> = Vec::new();
    for (name, item) in document.iter() {
        if name != "job" {
            let span = document.as_table().key(name).and_then(toml_edit::Key::span);
            return Err(parser.error_at(span, name, "unknown key; a job is a table named [[job]]"));
        }
        for (table, span) in job_tables(item)
            .ok_or_else(|| parser.error_at(item.span(), "job", "expected tables named [[job]]"))?
        {
            let job = parser.parse_job(table, span.clone())?;
            let line = parser.line_number(span.clone());
            if let Some((_, before)) = jobs.iter().find(|(known, _)| known.name == job.name) {
                let message =
                    format!("duplicate job name; the job in line {before} has the same name");
                return Err(parser.error_at(span, &format!("job {:?}", job.name), &message));
            }
            jobs.push((job, line));
        }
    }
    Ok(jobs.into_iter().map(|(job, _)| job).collect())
}

type Span = Option<Range<usize>>;

/// The `[[job]]` tables, or the inline tables of a `job` array.
fn job_tables(item: &Item) -> Option<Vec<(&dyn TableLike, Span)>> {
    if let Some(tables) = item.as_array_of_tables() {
        return Some(tables.iter().map(|one| (one as &dyn TableLike, one.span())).collect());
    }
    let array = item.as_array()?;
    let mut found: Vec<(&dyn TableLike, Span)> = Vec::new();
    for value in array {
        let table = value.as_inline_table()?;
        found.push((table, table.span()));
    }
    Some(found)
}

struct FileParser<'a> {
    file: &'a str,
    text: &'a str,
}

impl FileParser<'_> {
    fn parse_job(&self, table: &dyn TableLike, span: Span) -> Result<FileJob, Failure> {
        let name = table.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
        if name.is_empty() {
            return Err(self.error_at(span, "job", "name is missing"));
        }
        let location = format!("job {name:?}");
        let fields = self.parse_fields(table, JOB_FIELDS, &location, "")?;
        let schedule = &fields.get("trigger").map_or(&Value::Null, |trigger| &trigger["schedule"]);
        if let Err(invalid) = normalize::normalize_schedule(schedule) {
            let span_of = |item: &dyn TableLike, name| item.get(name).and_then(Item::span);
            let trigger = table.get("trigger").and_then(Item::as_table_like);
            let span = trigger.and_then(|trigger| span_of(trigger, "schedule")).or(span);
            let field = match &*invalid.field {
                "schedule type" => "type",
                "time zone" => "zone",
                "dst gap" => "dst_gap",
                "dst fold" => "dst_fold",
                // All other names, such as `period` and `hour`, are parts of the value.
                _ => "value",
            };
            let location = format!("{location}: trigger.schedule.{field}");
            let message = format!("found {}, expected {}", invalid.found, invalid.expected);
            return Err(self.error_at(span, &location, &message));
        }
        Ok(FileJob { name, fields })
    }

    fn parse_fields(
        &self,
        table: &dyn TableLike,
        fields: &[(&str, FieldType)],
        location: &str,
        prefix: &str,
    ) -> Result<Map<String, Value>, Failure> {
        let mut object = Map::new();
        for (name, item) in table.iter() {
            let field = format!("{prefix}{name}");
            let Some((_, field_type)) = fields.iter().find(|(known, _)| *known == name) else {
                let known: Vec<&str> = fields.iter().map(|(known, _)| *known).collect();
                let message = format!("unknown field, expected one of {}", known.join(", "));
                let span = table.key(name).and_then(toml_edit::Key::span);
                return Err(self.error_at(span, &format!("{location}: {field}"), &message));
            };
            object.insert(name.to_owned(), self.parse_value(item, field_type, location, &field)?);
        }
        Ok(object)
    }

    fn parse_value(
        &self,
        item: &Item,
        field_type: &FieldType,
        location: &str,
        field: &str,
    ) -> Result<Value, Failure> {
        let type_error = |expected: &str| {
            let message = format!("found {}, expected {expected}", item.type_name());
            self.error_at(item.span(), &format!("{location}: {field}"), &message)
        };
        Ok(match field_type {
            FieldType::Text => json!(item.as_str().ok_or_else(|| type_error("a string"))?),
            FieldType::Flag => json!(item.as_bool().ok_or_else(|| type_error("true or false"))?),
            FieldType::Count => {
                let count = item.as_integer().and_then(|count| u32::try_from(count).ok());
                json!(count.ok_or_else(|| type_error("a whole number, 0 or more"))?)
            }
            FieldType::Duration => {
                let input = item.as_str().ok_or_else(|| type_error(duration::EXPECTED_FORMAT))?;
                let length =
                    duration::parse_duration_field("duration", input).map_err(|invalid| {
                        let message =
                            format!("found {}, expected {}", invalid.found, invalid.expected);
                        self.error_at(item.span(), &format!("{location}: {field}"), &message)
                    })?;
                json!(duration::format_exact_duration(length))
            }
            FieldType::TextList => {
                let list = item.as_array().ok_or_else(|| type_error("a list of strings"))?;
                let texts = list.iter().map(|one| one.as_str().map(|text| json!(text)));
                let texts: Option<Vec<Value>> = texts.collect();
                json!(texts.ok_or_else(|| type_error("a list of strings"))?)
            }
            FieldType::TextMap => {
                let table = item.as_table_like().ok_or_else(|| type_error("a table of strings"))?;
                let pairs = table
                    .iter()
                    .map(|(name, value)| Some((name.to_owned(), json!(value.as_str()?))));
                let pairs: Option<Map<String, Value>> = pairs.collect();
                Value::Object(pairs.ok_or_else(|| type_error("a table of strings"))?)
            }
            FieldType::Object => {
                let value = match item.as_str() {
                    Some(text) => serde_json::from_str(text).ok(),
                    None => toml_to_json(item),
                };
                let is_object = |value: &Value| value.is_object();
                let expected = "a table, or a string that contains a JSON object";
                value.filter(is_object).ok_or_else(|| type_error(expected))?
            }
            FieldType::Fields(fields) => {
                let table = item.as_table_like().ok_or_else(|| type_error("a table"))?;
                Value::Object(self.parse_fields(table, fields, location, &format!("{field}."))?)
            }
        })
    }

    fn error_at(&self, span: Span, location: &str, message: &str) -> Failure {
        let line = self.line_number(span);
        let location = if location.is_empty() { String::new() } else { format!("{location}: ") };
        let file = self.file;
        Failure::bad_usage(format!("{file}:{line}: {location}{}", message.replace('\n', "; ")))
    }

    fn line_number(&self, span: Span) -> usize {
        let start = span.map_or(0, |span| span.start).min(self.text.len());
        self.text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count() + 1
    }
}

/// Converts a TOML value to JSON; dates and times become strings.
fn toml_to_json(item: &Item) -> Option<Value> {
    if let Some(table) = item.as_table_like() {
        let pairs = table.iter().map(|(name, item)| Some((name.to_owned(), toml_to_json(item)?)));
        return Some(Value::Object(pairs.collect::<Option<Map<String, Value>>>()?));
    }
    if let Some(tables) = item.as_array_of_tables() {
        let all = tables.iter().map(|table| toml_to_json(&Item::Table(table.clone())));
        return all.collect::<Option<Vec<Value>>>().map(Value::Array);
    }
    toml_value_to_json(item.as_value()?)
}

fn toml_value_to_json(value: &toml_edit::Value) -> Option<Value> {
    Some(match value {
        toml_edit::Value::String(text) => json!(text.value()),
        toml_edit::Value::Integer(number) => json!(number.value()),
        toml_edit::Value::Boolean(flag) => json!(flag.value()),
        toml_edit::Value::Datetime(time) => json!(time.value().to_string()),
        // JSON has no infinity.
        toml_edit::Value::Float(number) => {
            Value::Number(serde_json::Number::from_f64(*number.value())?)
        }
        toml_edit::Value::Array(list) => {
            Value::Array(list.iter().map(toml_value_to_json).collect::<Option<Vec<Value>>>()?)
        }
        toml_edit::Value::InlineTable(table) => {
            let pairs =
                table.iter().map(|(name, one)| Some((name.to_owned(), toml_value_to_json(one)?)));
            Value::Object(pairs.collect::<Option<Map<String, Value>>>()?)
        }
    })
}
