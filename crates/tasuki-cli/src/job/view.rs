//! How jobs look.

use std::fmt::Write as _;

use serde_json::Value;

use super::difference::Change;
use super::withdrawn_count;
use crate::view::{Look, items, joined, text, typed_command, visible};

pub(super) fn many(look: &Look, jobs: &Value) -> String {
    let mut table = look.table(["NAME", "STATE", "RUNS", "NEXT", "DOES"]);
    for job in items(jobs, "items") {
        table.row([
            text(job, "name"),
            state(job).to_owned(),
            when_and_where(job),
            look.instant(job, "next_fire"),
            cut(&does(job), 50),
        ]);
    }
    table.or("there are no jobs; tasuki job create --help shows how to make one")
}

/// As `one`, for whoever did not ask to see what is in the environment.
pub(super) fn one_without_secrets(look: &Look, job: &Value) -> String {
    let mut job = job.clone();
    for (_, value) in job["env"].as_object_mut().into_iter().flatten() {
        *value = "***".into();
    }
    one(look, &job)
}

pub(super) fn one(look: &Look, job: &Value) -> String {
    let trigger = &job["trigger"];
    let retry = &job["retry"];
    look.facts(&[
        ("name", text(job, "name")),
        ("state", state(job).to_owned()),
        ("paused", paused(look, &job["paused"])),
        ("description", text(job, "description")),
        ("runs", schedule(job)),
        ("next", look.instant(job, "next_fire")),
        ("filter", text(trigger, "filter")),
        ("when missed", misfire(&trigger["misfire"])),
        ("kind", text(job, "kind")),
        ("does", does(job)),
        ("args", filled(&job["args"])),
        ("env", variables(&job["env"])),
        ("directory", text(job, "directory")),
        ("timeout", text(job, "timeout")),
        ("heartbeat timeout", text(job, "heartbeat_timeout")),
        ("stop grace", text(job, "stop_grace")),
        ("concurrency", text(job, "concurrency")),
        ("dispatch", text(job, "dispatch")),
        ("queue", text(job, "queue")),
        ("priority", text(job, "priority")),
        ("labels", joined(job, "labels")),
        ("retries", retries(retry)),
        ("retry on", joined(retry, "retry_on")),
        ("fail on", joined(retry, "fail_on")),
        ("exit codes", variables(&retry["exit_codes"])),
        ("version", text(job, "version")),
        ("updated", look.instant(job, "updated_at")),
    ])
}

pub(super) fn created(look: &Look, job: &Value) -> String {
    let mut told = format!("created {}: {}", text(job, "name"), when_and_where(job));
    let next = look.instant(job, "next_fire");
    if !next.is_empty() {
        write!(told, "; first at {next}").expect("a string takes all");
    }
    if job["enabled"] == false {
        told.push_str("; disabled");
    }
    format!("{told}\n")
}

/// The answer of everything that changes one job.
pub(super) fn changed(look: &Look, answer: &Value) -> String {
    let job = &answer["job"];
    let mut told = format!("{} is {}", text(job, "name"), state(job));
    let since = paused(look, &job["paused"]);
    if !since.is_empty() {
        write!(told, " ({since})").expect("a string takes all");
    }
    write!(told, ", version {}: {}", text(job, "version"), when_and_where(job))
        .expect("a string takes all");
    let next = look.instant(job, "next_fire");
    if !next.is_empty() {
        write!(told, "; next at {next}").expect("a string takes all");
    }
    format!("{told}{}\n", withdrawn(answer))
}

/// What becomes of each field: `timeout: 5m -> 10m`.
pub(super) fn changes(changes: &[Change]) -> String {
    let mut told = String::new();
    for Change { field, before, after } in changes {
        let (before, after) = (value(field, before), value(field, after));
        writeln!(told, "  {field}: {before} -> {after}").expect("a string takes all");
    }
    told
}

/// As `changes`, for what was not there before.
pub(super) fn new_fields(changes: &[Change]) -> String {
    let line =
        |Change { field, after, .. }: &Change| format!("  {field}: {}\n", value(field, after));
    changes.iter().map(line).collect()
}

/// What a field is, for people who look at what changes. The environment may hold secrets: of its
/// variables only the names are for every screen and every log of a build.
pub(super) fn value(field: &str, value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        _ if field.starts_with("env.") => "***".to_owned(),
        Value::String(text) => visible(text),
        other => other.to_string(),
    }
}

pub(super) fn withdrawn(answer: &Value) -> String {
    withdrawn_count(answer).map_or(String::new(), |told| format!("; {told}"))
}

pub(super) fn preview(look: &Look, job: &Value, answer: &Value) -> String {
    let zone = text(&job["trigger"]["schedule"], "zone");
    let mut told = format!("{}: {} ({zone})\n", text(job, "name"), text(answer, "words"));
    let mut table = look.table(["LOCAL", "UTC", "NOTE"]);
    for fire in items(answer, "fires") {
        let shifted = match (fire["shifted"] == true, fire["note"].is_null()) {
            (true, true) => "shifted: that time does not exist".to_owned(),
            _ => text(fire, "note"),
        };
        table.row([text(fire, "local"), look.instant(fire, "at"), shifted]);
    }
    told.push_str(&table.or("it never fires"));
    if answer["ends"] == true && !items(answer, "fires").is_empty() {
        told.push_str("then never again\n");
    }
    told
}

fn state(job: &Value) -> &'static str {
    match (job["enabled"] == false, job["paused"].is_null()) {
        (true, _) => "disabled",
        (false, false) => "paused",
        (false, true) => "enabled",
    }
}

fn paused(look: &Look, paused: &Value) -> String {
    if paused.is_null() {
        return String::new();
    }
    let mut told = format!("since {}", look.instant(paused, "since"));
    let until = look.instant(paused, "until");
    if !until.is_empty() {
        write!(told, ", until {until}").expect("a string takes all");
    }
    match text(paused, "reason") {
        reason if reason.is_empty() => told,
        reason => format!("{told}: {reason}"),
    }
}

/// When it runs, in few words.
pub(super) fn when(job: &Value) -> String {
    let trigger = &job["trigger"];
    match trigger["type"].as_str() {
        Some("event") => format!("on {}", joined(trigger, "events")),
        Some("time") => match text(job, "schedule_words") {
            words if words.is_empty() => typed_schedule(&trigger["schedule"]),
            words => words,
        },
        _ => "on request".to_owned(),
    }
}

/// As `when`, with the zone wherever that is not what all instants are shown in.
fn when_and_where(job: &Value) -> String {
    match text(&job["trigger"]["schedule"], "zone") {
        zone if zone.is_empty() || zone == "UTC" => when(job),
        zone => format!("{} ({zone})", when(job)),
    }
}

/// As `when`, with what was typed and the zone.
fn schedule(job: &Value) -> String {
    let schedule = &job["trigger"]["schedule"];
    if schedule.is_null() {
        return when(job);
    }
    let mut told = format!("{} ({}", when(job), typed_schedule(schedule));
    for (name, field) in [("", "zone"), ("gap: ", "dst_gap"), ("fold: ", "dst_fold")] {
        match text(schedule, field) {
            value if value.is_empty() => {}
            value => write!(told, ", {name}{value}").expect("a string takes all"),
        }
    }
    format!("{told})")
}

fn typed_schedule(schedule: &Value) -> String {
    format!("{} {}", text(schedule, "type"), text(schedule, "value"))
}

fn misfire(misfire: &Value) -> String {
    match misfire["policy"].as_str() {
        Some("skip_late") => format!("skipped when later than {}", text(misfire, "after")),
        Some("latest_only") => "only the latest runs".to_owned(),
        Some("every_within") => format!("those of the last {} run", text(misfire, "window")),
        Some("at_most") => format!("the latest {} run", text(misfire, "count")),
        _ => String::new(),
    }
}

fn does(job: &Value) -> String {
    match job["kind"].as_str() {
        Some("function") => format!("function {}", text(job, "handler")),
        Some("django") => format!("manage.py {}", typed_command(items(job, "command"))),
        _ => typed_command(items(job, "command")),
    }
}

fn retries(retry: &Value) -> String {
    let Some(count) = retry["max_retries"].as_u64() else { return String::new() };
    let (backoff, cap) = (text(retry, "backoff"), text(retry, "backoff_cap"));
    match count {
        0 => "none".to_owned(),
        1 => format!("1, after {backoff}"),
        count => format!("{count}, the first after {backoff}, then doubling up to {cap}"),
    }
}

fn filled(value: &Value) -> String {
    match value {
        Value::Object(map) if map.is_empty() => String::new(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn variables(map: &Value) -> String {
    let pairs = map.as_object().into_iter().flatten();
    let pairs = pairs.map(|(name, value)| match value.as_str() {
        Some(value) => format!("{name}={value}"),
        None => format!("{name}={value}"),
    });
    pairs.collect::<Vec<_>>().join("\n")
}

/// The start of a text that is long.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
