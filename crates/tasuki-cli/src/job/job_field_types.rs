//! The editable fields of a job and their types.

/// The type of a field.
pub(super) enum FieldType {
    Text,
    Flag,
    Count,
    Duration,
    TextList,
    /// A map from arbitrary names to strings.
    TextMap,
    /// Any JSON object: a TOML table, or a string with JSON where TOML cannot represent the value (null).
    Object,
    /// An object with exactly these fields.
    Fields(&'static [(&'static str, FieldType)]),
}

use FieldType::{Count, Duration, Fields, Flag, Object, Text, TextList, TextMap};

/// The fields of a job, in the order in which they are written to a file.
pub(super) const JOB_FIELDS: &[(&str, FieldType)] = &[
    ("name", Text),
    ("description", Text),
    ("enabled", Flag),
    ("trigger", Fields(TRIGGER_FIELDS)),
    ("kind", Text),
    ("command", TextList),
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
    ("labels", TextList),
    ("retry", Fields(RETRY_FIELDS)),
];

const TRIGGER_FIELDS: &[(&str, FieldType)] = &[
    ("type", Text),
    ("schedule", Fields(SCHEDULE_FIELDS)),
    ("misfire", Fields(MISFIRE_FIELDS)),
    ("events", TextList),
    ("filter", Object),
];

const SCHEDULE_FIELDS: &[(&str, FieldType)] =
    &[("type", Text), ("value", Text), ("zone", Text), ("dst_gap", Text), ("dst_fold", Text)];

const MISFIRE_FIELDS: &[(&str, FieldType)] =
    &[("policy", Text), ("after", Duration), ("window", Duration), ("count", Count)];

const RETRY_FIELDS: &[(&str, FieldType)] = &[
    ("max_retries", Count),
    ("backoff", Duration),
    ("backoff_cap", Duration),
    ("jitter_percent", Count),
    ("retry_lost", Flag),
    ("retry_on", TextList),
    ("fail_on", TextList),
    ("exit_codes", TextMap),
];
