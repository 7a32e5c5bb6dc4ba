//! Reading jobs from a TOML file. Whatever is wrong with it is told with line, job and field, before
//! anything is done.

use std::ops::Range;

use serde_json::{Map, Value, json};
use tasuki_core::duration;
use toml_edit::{Document, Item, TableLike};

use super::normal;
use super::shape::{JOB, Shape};
use crate::output::Failure;

/// A job as the file has it.
#[derive(Debug)]
pub(super) struct FileJob {
    pub(super) name: String,
    /// What is said about it, its name included.
    pub(super) fields: Map<String, Value>,
}

/// Reads the jobs; `file` is what to call it.
pub(super) fn read(file: &str, text: &str) -> Result<Vec<FileJob>, Failure> {
    let reader = Reader { file, text };
    let document =
        Document::parse(text).map_err(|error| reader.refuse(error.span(), "", error.message()))?;
    let mut jobs: Vec<(FileJob, usize)> = Vec::new();
    for (name, item) in document.iter() {
        if name != "job" {
            let span = document.as_table().key(name).and_then(toml_edit::Key::span);
            return Err(reader.refuse(span, name, "unknown; a job is a table called [[job]]"));
        }
        for (table, span) in tables(item).ok_or_else(|| {
            reader.refuse(item.span(), "job", "expected tables, each called [[job]]")
        })? {
            let job = reader.job(table, span.clone())?;
            let line = reader.line(span.clone());
            if let Some((_, before)) = jobs.iter().find(|(known, _)| known.name == job.name) {
                let words = format!("is already in line {before}");
                return Err(reader.refuse(span, &format!("job {:?}", job.name), &words));
            }
            jobs.push((job, line));
        }
    }
    Ok(jobs.into_iter().map(|(job, _)| job).collect())
}

type Span = Option<Range<usize>>;

/// `[[job]]` tables, or the same written as an array of inline tables.
fn tables(item: &Item) -> Option<Vec<(&dyn TableLike, Span)>> {
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

struct Reader<'a> {
    file: &'a str,
    text: &'a str,
}

impl Reader<'_> {
    fn job(&self, table: &dyn TableLike, span: Span) -> Result<FileJob, Failure> {
        let name = table.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
        if name.is_empty() {
            return Err(self.refuse(span, "job", "name is missing"));
        }
        let place = format!("job {name:?}");
        let fields = self.parts(table, JOB, &place, "")?;
        let schedule = &fields.get("trigger").map_or(&Value::Null, |trigger| &trigger["schedule"]);
        if let Err(invalid) = normal::schedule(schedule) {
            let part = |item: &dyn TableLike, name| item.get(name).and_then(Item::span);
            let trigger = table.get("trigger").and_then(Item::as_table_like);
            let span = trigger.and_then(|trigger| part(trigger, "schedule")).or(span);
            let place = format!("{place}: trigger.schedule");
            return Err(self.refuse(span, &place, &invalid.to_string()));
        }
        Ok(FileJob { name, fields })
    }

    fn parts(
        &self,
        table: &dyn TableLike,
        shape: &[(&str, Shape)],
        place: &str,
        prefix: &str,
    ) -> Result<Map<String, Value>, Failure> {
        let mut object = Map::new();
        for (name, item) in table.iter() {
            let field = format!("{prefix}{name}");
            let Some((_, shape)) = shape.iter().find(|(known, _)| *known == name) else {
                let known: Vec<&str> = shape.iter().map(|(known, _)| *known).collect();
                let words = format!("unknown field, expected one of {}", known.join(", "));
                let span = table.key(name).and_then(toml_edit::Key::span);
                return Err(self.refuse(span, &format!("{place}: {field}"), &words));
            };
            object.insert(name.to_owned(), self.value(item, shape, place, &field)?);
        }
        Ok(object)
    }

    fn value(
        &self,
        item: &Item,
        shape: &Shape,
        place: &str,
        field: &str,
    ) -> Result<Value, Failure> {
        let refuse = |expected: &str| {
            let words = format!("found {}, expected {expected}", item.type_name());
            self.refuse(item.span(), &format!("{place}: {field}"), &words)
        };
        Ok(match shape {
            Shape::Text => json!(item.as_str().ok_or_else(|| refuse("text"))?),
            Shape::Flag => json!(item.as_bool().ok_or_else(|| refuse("true or false"))?),
            Shape::Count => {
                let count = item.as_integer().and_then(|count| u32::try_from(count).ok());
                json!(count.ok_or_else(|| refuse("a whole number from 0 up"))?)
            }
            Shape::Duration => {
                let typed = item.as_str().ok_or_else(|| refuse(duration::EXPECTED))?;
                let length = duration::read("duration", typed).map_err(|invalid| {
                    let words = format!("found {}, expected {}", invalid.found, invalid.expected);
                    self.refuse(item.span(), &format!("{place}: {field}"), &words)
                })?;
                json!(duration::show(length))
            }
            Shape::Texts => {
                let list = item.as_array().ok_or_else(|| refuse("a list of texts"))?;
                let texts = list.iter().map(|one| one.as_str().map(|text| json!(text)));
                let texts: Option<Vec<Value>> = texts.collect();
                json!(texts.ok_or_else(|| refuse("a list of texts"))?)
            }
            Shape::TextMap => {
                let table = item.as_table_like().ok_or_else(|| refuse("a table of texts"))?;
                let pairs = table
                    .iter()
                    .map(|(name, value)| Some((name.to_owned(), json!(value.as_str()?))));
                let pairs: Option<Map<String, Value>> = pairs.collect();
                Value::Object(pairs.ok_or_else(|| refuse("a table of texts"))?)
            }
            Shape::Object => {
                let value = match item.as_str() {
                    Some(text) => serde_json::from_str(text).ok(),
                    None => plain(item),
                };
                let is_object = |value: &Value| value.is_object();
                let expected = "a table, or text that is a JSON object";
                value.filter(is_object).ok_or_else(|| refuse(expected))?
            }
            Shape::Parts(shape) => {
                let table = item.as_table_like().ok_or_else(|| refuse("a table"))?;
                Value::Object(self.parts(table, shape, place, &format!("{field}."))?)
            }
        })
    }

    fn refuse(&self, span: Span, place: &str, words: &str) -> Failure {
        let line = self.line(span);
        let place = if place.is_empty() { String::new() } else { format!("{place}: ") };
        let file = self.file;
        Failure::bad_usage(format!("{file}:{line}: {place}{}", words.replace('\n', ", ")))
    }

    fn line(&self, span: Span) -> usize {
        let start = span.map_or(0, |span| span.start).min(self.text.len());
        self.text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count() + 1
    }
}

/// A value of TOML as the JSON it says; dates and times are text.
fn plain(item: &Item) -> Option<Value> {
    if let Some(table) = item.as_table_like() {
        let pairs = table.iter().map(|(name, item)| Some((name.to_owned(), plain(item)?)));
        return Some(Value::Object(pairs.collect::<Option<Map<String, Value>>>()?));
    }
    if let Some(tables) = item.as_array_of_tables() {
        let all = tables.iter().map(|table| plain(&Item::Table(table.clone())));
        return all.collect::<Option<Vec<Value>>>().map(Value::Array);
    }
    plain_value(item.as_value()?)
}

fn plain_value(value: &toml_edit::Value) -> Option<Value> {
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
            Value::Array(list.iter().map(plain_value).collect::<Option<Vec<Value>>>()?)
        }
        toml_edit::Value::InlineTable(table) => {
            let pairs = table.iter().map(|(name, one)| Some((name.to_owned(), plain_value(one)?)));
            Value::Object(pairs.collect::<Option<Map<String, Value>>>()?)
        }
    })
}
