//! How runs look.

use std::fmt::Write as _;

use serde_json::Value;

use crate::view::{Look, items, text};

/// A list, or why there is none.
pub(super) fn many(look: &Look, runs: &Value, none: &str) -> String {
    let mut table = look.table(["ID", "STATE", "JOB", "ORIGIN", "SCHEDULED FOR", "TOOK", "NOTE"]);
    for run in items(runs, "items") {
        table.row([
            text(run, "id"),
            text(run, "state"),
            text(run, "job"),
            text(run, "origin"),
            look.instant(run, "scheduled_for"),
            look.took(run),
            note(run),
        ]);
    }
    let mut told = table.or(none);
    if let Some(cursor) = runs["next"].as_str() {
        writeln!(told, "there are more: --cursor {cursor}").expect("a string takes all");
    }
    told
}

/// Why it is not simply well, in few words.
fn note(run: &Value) -> String {
    let mut parts = Vec::new();
    if !run["cancel_requested_at"].is_null() && run["finished_at"].is_null() {
        parts.push("asked to stop".to_owned());
    }
    let retries = run["retry_count"].as_i64().unwrap_or(0);
    if retries > 0 {
        parts.push(format!("retry {retries}"));
    }
    for field in ["error_code", "reason"] {
        match text(run, field) {
            told if told.is_empty() || parts.contains(&told) => {}
            told => parts.push(told),
        }
    }
    parts.join(", ")
}

pub(super) fn one(look: &Look, run: &Value) -> String {
    let mut told = look.facts(&[
        ("run", text(run, "id")),
        ("job", format!("{} (version {})", text(run, "job"), text(run, "job_version"))),
        ("state", text(run, "state")),
        ("origin", text(run, "origin")),
        ("rerun of", text(run, "rerun_of")),
        ("event", text(run, "event_id")),
        ("scope", Some(text(run, "scope")).filter(|s| s != "global/global").unwrap_or_default()),
        ("scheduled for", look.instant(run, "scheduled_for")),
        ("due", look.instant(run, "due_at")),
        ("queue", text(run, "queue")),
        ("priority", text(run, "priority")),
        ("args", text(run, "args")),
        ("attempt", attempt(run)),
        ("next retry", look.instant(run, "next_retry_at")),
        ("expires", look.instant(run, "expires_at")),
        ("worker", text(run, "worker")),
        ("start by", look.instant(run, "start_by")),
        ("started", look.instant(run, "started_at")),
        ("heartbeat", look.instant(run, "heartbeat_at")),
        ("asked to stop", look.instant(run, "cancel_requested_at")),
        ("finished", look.instant(run, "finished_at")),
        ("took", look.took(run)),
        ("outcome", text(run, "outcome")),
        ("exit", exit(run)),
        ("error", error(run)),
        ("reason", text(run, "reason")),
        ("result", text(run, "result")),
        ("rows affected", text(run, "rows_affected")),
        ("log", text(run, "log_ref")),
        ("idempotency key", text(run, "idempotency_key")),
    ]);
    let executions = items(run, "executions");
    if !executions.is_empty() {
        let mut table = look.table(["ATTEMPT", "OUTCOME", "STARTED", "TOOK", "EXIT", "ERROR"]);
        for one in executions {
            table.row([
                text(one, "attempt_no"),
                text(one, "outcome"),
                look.instant(one, "started_at"),
                look.took(one),
                exit(one),
                error(one),
            ]);
        }
        write!(told, "\n{}", table.or("")).expect("a string takes all");
    }
    let notes = items(run, "notes");
    if !notes.is_empty() {
        let mut table = look.table(["AT", "ATTEMPT", "VERB", "BY", "REASON"]);
        for note in notes {
            table.row([
                look.instant(note, "at"),
                text(note, "attempt_no"),
                text(note, "verb"),
                text(note, "actor"),
                text(note, "reason"),
            ]);
        }
        write!(told, "\n{}", table.or("")).expect("a string takes all");
    }
    told
}

fn attempt(run: &Value) -> String {
    let number = text(run, "attempt_no");
    match (number.as_str(), text(run, "max_attempts").as_str()) {
        ("" | "0", _) => String::new(),
        (number, "") => number.to_owned(),
        (number, most) => format!("{number} of at most {most}"),
    }
}

fn exit(of: &Value) -> String {
    match (text(of, "exit_code"), text(of, "exit_signal")) {
        (code, signal) if code.is_empty() && signal.is_empty() => String::new(),
        (code, signal) if signal.is_empty() => code,
        (_, signal) => format!("signal {signal}"),
    }
}

fn error(of: &Value) -> String {
    match (text(of, "error_code"), text(of, "error_message")) {
        (code, message) if message.is_empty() => code,
        (code, message) if code.is_empty() => message,
        (code, message) => format!("{code}: {message}"),
    }
}

/// One line: where it stands.
pub(super) fn stands(run: &Value) -> String {
    format!("{}\n", in_words(run))
}

pub(super) fn in_words(run: &Value) -> String {
    let mut told =
        format!("run {} of {} is {}", text(run, "id"), text(run, "job"), text(run, "state"));
    for part in [error(run), text(run, "reason")] {
        if !part.is_empty() {
            write!(told, ": {}", crate::view::visible(&part)).expect("a string takes all");
        }
    }
    told
}

pub(super) fn explained(_: &Look, answer: &Value) -> String {
    let mut told = String::new();
    for sentence in items(answer, "sentences") {
        let sentence = sentence.as_str().unwrap_or_default();
        writeln!(told, "{}", crate::view::visible(sentence)).expect("a string takes all");
    }
    told
}
