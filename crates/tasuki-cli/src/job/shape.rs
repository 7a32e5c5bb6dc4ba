//! The fields of a job that people write, and what each can hold.

/// What a field holds.
pub(super) enum Shape {
    Text,
    Flag,
    Count,
    Duration,
    Texts,
    /// Names of one's own, each with a text.
    TextMap,
    /// Any JSON object: a table, or text that is JSON where a table cannot say it (null).
    Object,
    /// These fields, and no others.
    Parts(&'static [(&'static str, Shape)]),
}

use Shape::{Count, Duration, Flag, Object, Parts, Text, TextMap, Texts};

/// A job, in the order in which people like to read it.
pub(super) const JOB: &[(&str, Shape)] = &[
    ("name", Text),
    ("description", Text),
    ("enabled", Flag),
    ("trigger", Parts(TRIGGER)),
    ("kind", Text),
    ("command", Texts),
    ("handler", Text),
    ("args", Object),
    ("env", TextMap),
    ("directory", Text),
    ("timeout", Duration),
    ("heartbeat_timeout", Duration),
    ("stop_grace", Duration),
    ("dispatch", Text),
    ("queue", Text),
    ("priority", Text),
    ("concurrency", Text),
    ("labels", Texts),
    ("retry", Parts(RETRY)),
];

const TRIGGER: &[(&str, Shape)] = &[
    ("type", Text),
    ("schedule", Parts(SCHEDULE)),
    ("misfire", Parts(MISFIRE)),
    ("events", Texts),
    ("filter", Object),
];

const SCHEDULE: &[(&str, Shape)] =
    &[("type", Text), ("value", Text), ("zone", Text), ("dst_gap", Text), ("dst_fold", Text)];

const MISFIRE: &[(&str, Shape)] =
    &[("policy", Text), ("after", Duration), ("window", Duration), ("count", Count)];

const RETRY: &[(&str, Shape)] = &[
    ("max_retries", Count),
    ("backoff", Duration),
    ("backoff_cap", Duration),
    ("jitter_percent", Count),
    ("retry_lost", Flag),
    ("retry_on", Texts),
    ("fail_on", Texts),
    ("exit_codes", TextMap),
];
