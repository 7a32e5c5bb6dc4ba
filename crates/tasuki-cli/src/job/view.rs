//! Text output of jobs.

use std::fmt::Write as _;

use serde_json::Value;

use super::describe_canceled_runs;
use super::job_changes::FieldChange;
use crate::view::{
    OutputStyle, field_items, field_text, join_list_field, quote_for_shell, replace_control_chars,
};

pub(super) fn render_list(style: &OutputStyle, jobs: &Value) -> String {
    let mut table = style.table(["NAME", "STATE", "TRIGGER", "NEXT", "ACTION"]);
    for job in field_items(jobs, "items") {
        table.row([
            field_text(job, "name"),
            state_name(job).to_owned(),
            describe_trigger_with_zone(job),
            style.instant(job, "next_fire"),
            truncate(&describe_action(job), 50),
        ]);
    }
    table.render_or("there are no jobs; `tasuki job create --help` shows how to create one")
}

/// As [`render_details`], but without the values of environment variables, which may be secret.
pub(super) fn render_details_without_secrets(style: &OutputStyle, job: &Value) -> String {
    let mut job = job.clone();
    for (_, value) in job["env"].as_object_mut().into_iter().flatten() {
        *value = "***".into();
    }
    render_details(style, &job)
}

pub(super) fn render_details(style: &OutputStyle, job: &Value) -> String {
    let trigger = &job["trigger"];
    let retry = &job["retry"];
    style.fields(&[
        ("name", field_text(job, "name")),
        ("state", state_name(job).to_owned()),
        ("paused", describe_pause(style, &job["paused"])),
        ("description", field_text(job, "description")),
        ("trigger", describe_schedule(job)),
        ("next", style.instant(job, "next_fire")),
        ("filter", field_text(trigger, "filter")),
        ("misfire", describe_misfire(&trigger["misfire"])),
        ("kind", field_text(job, "kind")),
        ("action", describe_action(job)),
        ("args", non_empty_json(&job["args"])),
        ("env", name_value_lines(&job["env"])),
        ("directory", field_text(job, "directory")),
        ("timeout", field_text(job, "timeout")),
        ("heartbeat timeout", field_text(job, "heartbeat_timeout")),
        ("stop grace", field_text(job, "stop_grace")),
        ("concurrency", field_text(job, "concurrency")),
        ("dispatch", field_text(job, "dispatch")),
        ("queue", field_text(job, "queue")),
        ("priority", field_text(job, "priority")),
        ("labels", join_list_field(job, "labels")),
        ("retries", describe_retries(retry)),
        ("retry on", join_list_field(retry, "retry_on")),
        ("fail on", join_list_field(retry, "fail_on")),
        ("exit codes", name_value_lines(&retry["exit_codes"])),
        ("version", field_text(job, "version")),
        ("updated", style.instant(job, "updated_at")),
    ])
}

pub(super) fn render_created(style: &OutputStyle, job: &Value) -> String {
    let mut output =
        format!("created {}: {}", field_text(job, "name"), describe_trigger_with_zone(job));
    let next = style.instant(job, "next_fire");
    if !next.is_empty() {
        write!(output, "; first at {next}").expect("writing to a string does not fail");
    }
    if job["enabled"] == false {
        output.push_str("; disabled");
    }
    format!("{output}\n")
}

/// The result of a change of one job.
pub(super) fn render_changed(style: &OutputStyle, response: &Value) -> String {
    let job = &response["job"];
    let mut output = format!("{} is {}", field_text(job, "name"), state_name(job));
    let since = describe_pause(style, &job["paused"]);
    if !since.is_empty() {
        write!(output, " ({since})").expect("writing to a string does not fail");
    }
    write!(output, ", version {}: {}", field_text(job, "version"), describe_trigger_with_zone(job))
        .expect("writing to a string does not fail");
    let next = style.instant(job, "next_fire");
    if !next.is_empty() {
        write!(output, "; next at {next}").expect("writing to a string does not fail");
    }
    format!("{output}{}\n", canceled_runs_suffix(response))
}

/// The changed fields with old and new values: `timeout: 5m -> 10m`.
pub(super) fn render_changes(changes: &[FieldChange]) -> String {
    let mut output = String::new();
    for FieldChange { field, before, after } in changes {
        let (before, after) = (render_value(field, before), render_value(field, after));
        writeln!(output, "  {field}: {before} -> {after}")
            .expect("writing to a string does not fail");
    }
    output
}

/// The fields of a new job with their values.
pub(super) fn render_new_fields(changes: &[FieldChange]) -> String {
    let line = |FieldChange { field, after, .. }: &FieldChange| {
        format!("  {field}: {}\n", render_value(field, after))
    };
    changes.iter().map(line).collect()
}

/// The value of a field in a list of changes. Values of environment variables are hidden, because they may be secret and
/// the list may end up in a build log.
pub(super) fn render_value(field: &str, value: &Value) -> String {
    match value {
        Value::Null => "(none)".to_owned(),
        _ if field.starts_with("env.") => "***".to_owned(),
        Value::String(text) => replace_control_chars(text),
        other => other.to_string(),
    }
}

pub(super) fn canceled_runs_suffix(response: &Value) -> String {
    describe_canceled_runs(response).map_or(String::new(), |output| format!("; {output}"))
}

pub(super) fn render_preview(style: &OutputStyle, job: &Value, response: &Value) -> String {
    let zone = field_text(&job["trigger"]["schedule"], "zone");
    let mut output =
        format!("{}: {} ({zone})\n", field_text(job, "name"), field_text(response, "words"));
    let mut table = style.table(["LOCAL", "UTC", "NOTE"]);
    for fire in field_items(response, "fires") {
        let shifted = match (fire["shifted"] == true, fire["note"].is_null()) {
            (true, true) => "shifted: the scheduled time does not exist".to_owned(),
            _ => field_text(fire, "note"),
        };
        table.row([field_text(fire, "local"), style.instant(fire, "at"), shifted]);
    }
    output.push_str(&table.render_or("this job never fires"));
    if response["ends"] == true && !field_items(response, "fires").is_empty() {
        output.push_str("there are no later fire times\n");
    }
    output
}

fn state_name(job: &Value) -> &'static str {
    match (job["enabled"] == false, job["paused"].is_null()) {
        (true, _) => "disabled",
        (false, false) => "paused",
        (false, true) => "enabled",
    }
}

fn describe_pause(style: &OutputStyle, paused: &Value) -> String {
    if paused.is_null() {
        return String::new();
    }
    let mut output = format!("since {}", style.instant(paused, "since"));
    let until = style.instant(paused, "until");
    if !until.is_empty() {
        write!(output, ", until {until}").expect("writing to a string does not fail");
    }
    match field_text(paused, "reason") {
        reason if reason.is_empty() => output,
        reason => format!("{output}: {reason}"),
    }
}

/// Describes the trigger of a job: its schedule, its events, or `on request`.
pub(super) fn describe_trigger(job: &Value) -> String {
    let trigger = &job["trigger"];
    match trigger["type"].as_str() {
        Some("event") => format!("on {}", join_list_field(trigger, "events")),
        Some("time") => match field_text(job, "schedule_words") {
            words if words.is_empty() => schedule_source(&trigger["schedule"]),
            words => words,
        },
        _ => "on request".to_owned(),
    }
}

/// As [`describe_trigger`], with the time zone unless it is UTC, in which all instants are shown.
fn describe_trigger_with_zone(job: &Value) -> String {
    match field_text(&job["trigger"]["schedule"], "zone") {
        zone if zone.is_empty() || zone == "UTC" => describe_trigger(job),
        zone => format!("{} ({zone})", describe_trigger(job)),
    }
}

/// As [`describe_trigger`], with the schedule as it was entered, its time zone and rules for clock changes.
fn describe_schedule(job: &Value) -> String {
    let schedule = &job["trigger"]["schedule"];
    if schedule.is_null() {
        return describe_trigger(job);
    }
    let mut output = format!("{} ({}", describe_trigger(job), schedule_source(schedule));
    for (name, field) in [("", "zone"), ("gap: ", "dst_gap"), ("fold: ", "dst_fold")] {
        match field_text(schedule, field) {
            value if value.is_empty() => {}
            value => write!(output, ", {name}{value}").expect("writing to a string does not fail"),
        }
    }
    format!("{output})")
}

fn schedule_source(schedule: &Value) -> String {
    format!("{} {}", field_text(schedule, "type"), field_text(schedule, "value"))
}

fn describe_misfire(misfire: &Value) -> String {
    match misfire["policy"].as_str() {
        Some("skip_late") => {
            format!("skip runs that are more than {} late", field_text(misfire, "after"))
        }
        Some("latest_only") => "run only for the latest planned time that was missed".to_owned(),
        Some("every_within") => {
            let window = field_text(misfire, "window");
            format!("run for each planned time that was missed in the last {window}")
        }
        Some("at_most") => {
            let count = field_text(misfire, "count");
            format!("run for at most {count} missed planned times, the latest ones")
        }
        _ => String::new(),
    }
}

fn describe_action(job: &Value) -> String {
    match job["kind"].as_str() {
        Some("function") => format!("function {}", field_text(job, "handler")),
        Some("django") => format!("manage.py {}", quote_for_shell(field_items(job, "command"))),
        _ => quote_for_shell(field_items(job, "command")),
    }
}

fn describe_retries(retry: &Value) -> String {
    let Some(count) = retry["max_retries"].as_u64() else { return String::new() };
    let (backoff, cap) = (field_text(retry, "backoff"), field_text(retry, "backoff_cap"));
    match count {
        0 => "none".to_owned(),
        1 => format!("1, after {backoff}"),
        count => format!("{count}, the first after {backoff}, then doubling up to {cap}"),
    }
}

fn non_empty_json(value: &Value) -> String {
    match value {
        Value::Object(map) if map.is_empty() => String::new(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn name_value_lines(map: &Value) -> String {
    let pairs = map.as_object().into_iter().flatten();
    let pairs = pairs.map(|(name, value)| match value.as_str() {
        Some(value) => format!("{name}={value}"),
        None => format!("{name}={value}"),
    });
    pairs.collect::<Vec<_>>().join("\n")
}

/// Truncates a text to `max_chars` characters.
fn truncate(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
