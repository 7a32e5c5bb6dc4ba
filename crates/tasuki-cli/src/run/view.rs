//! Text output of runs.

use std::fmt::Write as _;

use serde_json::Value;

use crate::view::{OutputStyle, field_items, field_text};

/// A list of runs, or `if_empty` if there are none.
pub(super) fn render_list(style: &OutputStyle, runs: &Value, if_empty: &str) -> String {
    let mut table = style.table(["ID", "STATE", "JOB", "ORIGIN", "SCHEDULED FOR", "TOOK", "NOTE"]);
    for run in field_items(runs, "items") {
        table.row([
            field_text(run, "id"),
            field_text(run, "state"),
            field_text(run, "job"),
            field_text(run, "origin"),
            style.instant(run, "scheduled_for"),
            style.elapsed(run),
            describe_note(run),
        ]);
    }
    let mut output = table.render_or(if_empty);
    if let Some(cursor) = runs["next"].as_str() {
        writeln!(output, "more runs: --cursor {cursor}")
            .expect("writing to a string does not fail");
    }
    output
}

/// The note of a run in a list: cancel requested, retries, error code, reason.
fn describe_note(run: &Value) -> String {
    let mut parts = Vec::new();
    if !run["cancel_requested_at"].is_null() && run["finished_at"].is_null() {
        parts.push("cancel requested".to_owned());
    }
    let retries = run["retry_count"].as_i64().unwrap_or(0);
    if retries > 0 {
        parts.push(format!("retry {retries}"));
    }
    for field in ["error_code", "reason"] {
        match field_text(run, field) {
            output if output.is_empty() || parts.contains(&output) => {}
            output => parts.push(output),
        }
    }
    parts.join(", ")
}

pub(super) fn render_details(style: &OutputStyle, run: &Value) -> String {
    let mut output = style.fields(&[
        ("run", field_text(run, "id")),
        ("job", format!("{} (version {})", field_text(run, "job"), field_text(run, "job_version"))),
        ("state", field_text(run, "state")),
        ("origin", field_text(run, "origin")),
        ("rerun of", field_text(run, "rerun_of")),
        ("event", field_text(run, "event_id")),
        (
            "scope",
            Some(field_text(run, "scope")).filter(|s| s != "global/global").unwrap_or_default(),
        ),
        ("scheduled for", style.instant(run, "scheduled_for")),
        ("due", style.instant(run, "due_at")),
        ("queue", field_text(run, "queue")),
        ("priority", field_text(run, "priority")),
        ("args", field_text(run, "args")),
        ("attempt", describe_attempt(run)),
        ("next retry", style.instant(run, "next_retry_at")),
        ("expires", style.instant(run, "expires_at")),
        ("worker", field_text(run, "worker")),
        ("start by", style.instant(run, "start_by")),
        ("started", style.instant(run, "started_at")),
        ("heartbeat", style.instant(run, "heartbeat_at")),
        ("cancel requested", style.instant(run, "cancel_requested_at")),
        ("finished", style.instant(run, "finished_at")),
        ("took", style.elapsed(run)),
        ("outcome", field_text(run, "outcome")),
        ("exit", describe_exit(run)),
        ("error", describe_error(run)),
        ("reason", field_text(run, "reason")),
        ("result", field_text(run, "result")),
        ("rows affected", field_text(run, "rows_affected")),
        ("log", field_text(run, "log_ref")),
        ("idempotency key", field_text(run, "idempotency_key")),
    ]);
    let executions = field_items(run, "executions");
    if !executions.is_empty() {
        let mut table = style.table(["ATTEMPT", "OUTCOME", "STARTED", "TOOK", "EXIT", "ERROR"]);
        for execution in executions {
            table.row([
                field_text(execution, "attempt_no"),
                field_text(execution, "outcome"),
                style.instant(execution, "started_at"),
                style.elapsed(execution),
                describe_exit(execution),
                describe_error(execution),
            ]);
        }
        write!(output, "\n{}", table.render_or("")).expect("writing to a string does not fail");
    }
    let notes = field_items(run, "notes");
    if !notes.is_empty() {
        let mut table = style.table(["AT", "ATTEMPT", "VERB", "BY", "REASON"]);
        for note in notes {
            table.row([
                style.instant(note, "at"),
                field_text(note, "attempt_no"),
                field_text(note, "verb"),
                field_text(note, "actor"),
                field_text(note, "reason"),
            ]);
        }
        write!(output, "\n{}", table.render_or("")).expect("writing to a string does not fail");
    }
    output
}

fn describe_attempt(run: &Value) -> String {
    let number = field_text(run, "attempt_no");
    match (number.as_str(), field_text(run, "max_attempts").as_str()) {
        ("" | "0", _) => String::new(),
        (number, "") => number.to_owned(),
        (number, max) => format!("{number} of {max}"),
    }
}

fn describe_exit(of: &Value) -> String {
    match (field_text(of, "exit_code"), field_text(of, "exit_signal")) {
        (code, signal) if code.is_empty() && signal.is_empty() => String::new(),
        (code, signal) if signal.is_empty() => code,
        (_, signal) => format!("signal {signal}"),
    }
}

fn describe_error(of: &Value) -> String {
    match (field_text(of, "error_code"), field_text(of, "error_message")) {
        (code, message) if message.is_empty() => code,
        (code, message) if code.is_empty() => message,
        (code, message) => format!("{code}: {message}"),
    }
}

/// One line with the state of the run.
pub(super) fn state_line(run: &Value) -> String {
    format!("{}\n", describe_state(run))
}

pub(super) fn describe_state(run: &Value) -> String {
    let mut output = format!(
        "run {} of {} is {}",
        field_text(run, "id"),
        field_text(run, "job"),
        field_text(run, "state")
    );
    for part in [describe_error(run), field_text(run, "reason")] {
        if !part.is_empty() {
            write!(output, ": {}", crate::view::replace_control_chars(&part))
                .expect("writing to a string does not fail");
        }
    }
    output
}

pub(super) fn render_explanation(_: &OutputStyle, response: &Value) -> String {
    let mut output = String::new();
    for sentence in field_items(response, "sentences") {
        let sentence = sentence.as_str().unwrap_or_default();
        writeln!(output, "{}", crate::view::replace_control_chars(sentence))
            .expect("writing to a string does not fail");
    }
    output
}
