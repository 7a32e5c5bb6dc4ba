//! Output for people: renders the JSON of the server as tables, named fields, times and colours.
//!
//! Fields that a newer server adds are ignored, and fields that an older server lacks are shown as empty. `--json`
//! prints the whole response.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};

use comfy_table::presets::NOTHING;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

const GREEN: &str = "32";
const YELLOW: &str = "33";
const CYAN: &str = "36";
const RED: &str = "31";
const DIM: &str = "2";

/// The output style of a command: text or JSON, colours, and the current time for relative times.
#[derive(Clone, Copy)]
pub(crate) struct OutputStyle {
    now: Timestamp,
    colour: bool,
    json: bool,
}

impl OutputStyle {
    /// Enables colours if stdout is a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.
    pub(crate) fn new(now: Timestamp, json: bool) -> Self {
        let declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self { now, colour: !declined && io::stdout().is_terminal(), json }
    }

    /// Renders the JSON of the server with `--json`, else the result of `as_text`.
    pub(crate) fn render(
        &self,
        body: &Value,
        as_text: impl FnOnce(&Self, &Value) -> String,
    ) -> String {
        match self.json {
            true => format!("{body:#}\n"),
            false => as_text(self, body),
        }
    }

    /// Whether the output is JSON.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// An instant, with its distance from now if that is at most 30 days: `2026-11-16 03:00:00Z, 3m ago`.
    pub(crate) fn instant(&self, of: &Value, field: &str) -> String {
        let shown = field_text(of, field);
        match shown.parse() {
            Ok(instant) => self.instant_with_distance(instant),
            Err(_) => shown,
        }
    }

    fn instant_with_distance(&self, instant: Timestamp) -> String {
        const MAX_DISTANCE: SignedDuration = SignedDuration::from_hours(24 * 30);
        let absolute = instant.strftime("%Y-%m-%d %H:%M:%SZ").to_string();
        let ahead = instant.duration_since(self.now);
        if ahead.abs() > MAX_DISTANCE {
            return absolute;
        }
        match (ahead.abs() < SignedDuration::from_secs(1), ahead.is_positive()) {
            (true, _) => format!("{absolute}, now"),
            (false, true) => format!("{absolute}, in {}", format_duration(ahead)),
            (false, false) => format!("{absolute}, {} ago", format_duration(ahead.abs())),
        }
    }

    /// The duration from `started_at` to `finished_at`, or until now if it has not finished.
    pub(crate) fn elapsed(&self, of: &Value) -> String {
        let instant = |field: &str| field_text(of, field).parse::<Timestamp>().ok();
        let Some(started) = instant("started_at") else { return String::new() };
        let elapsed = instant("finished_at").unwrap_or(self.now).duration_since(started);
        match instant("finished_at") {
            Some(_) => format_duration(elapsed),
            None if elapsed.is_positive() => format!("{} so far", format_duration(elapsed)),
            None => String::new(),
        }
    }

    pub(crate) fn table<const N: usize>(&self, header: [&str; N]) -> Table {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING).set_header(header);
        Table { table, states: Vec::new(), colour: self.colour }
    }

    fn paint(&self, text: &str) -> String {
        match colour_of(text).filter(|_| self.colour) {
            Some(colour) => format!("\x1b[{colour}m{text}\x1b[0m"),
            None => text.to_owned(),
        }
    }

    /// Named values, one per line; fields without a value are omitted.
    pub(crate) fn fields(&self, fields: &[(&str, String)]) -> String {
        let shown = || fields.iter().filter(|(_, value)| !value.is_empty());
        let width = shown().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for (name, value) in shown() {
            // Further lines of a value are indented below its first line.
            let value = replace_control_chars(value).replace('\n', &format!("\n{:width$}  ", ""));
            writeln!(text, "{name:width$}  {}", self.paint(&value))
                .expect("writing to a string does not fail");
        }
        text
    }
}

/// A table with a header row.
pub(crate) struct Table {
    table: comfy_table::Table,
    /// The state of each row that determines its colour; empty if it has none.
    states: Vec<String>,
    colour: bool,
}

impl Table {
    /// Adds a row. The first cell that is a state with a colour is painted.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        let cells = cells.map(|cell| replace_control_chars(&cell).replace('\n', " "));
        let state = cells.iter().find(|cell| colour_of(cell).is_some());
        self.states.push(state.cloned().unwrap_or_default());
        self.table.add_row(cells);
    }

    /// Renders the table, or `if_empty` if it has no rows.
    pub(crate) fn render_or(&self, if_empty: &str) -> String {
        if self.states.is_empty() {
            return format!("{if_empty}\n");
        }
        let mut text = String::new();
        for (line, state) in self.table.lines().zip(header_then(&self.states)) {
            // The preset leaves a space in front of every line.
            let line = line.strip_prefix(' ').unwrap_or(&line).trim_end();
            let painted = match colour_of(state).filter(|_| self.colour) {
                Some(colour) => line.replacen(state, &format!("\x1b[{colour}m{state}\x1b[0m"), 1),
                None => line.to_owned(),
            };
            writeln!(text, "{painted}").expect("writing to a string does not fail");
        }
        text
    }
}

/// The state of each line of a table: none for the header, then those of the rows.
fn header_then(states: &[String]) -> impl Iterator<Item = &str> {
    std::iter::once("").chain(states.iter().map(String::as_str))
}

fn colour_of(text: &str) -> Option<&'static str> {
    Some(match text {
        "SUCCEEDED" | "active" | "enabled" => GREEN,
        "RUNNING" | "ASSIGNED" => CYAN,
        "RETRY_WAIT" | "ORPHANED" | "draining" | "paused" => YELLOW,
        "FAILED" | "TIMED_OUT" | "EXPIRED" | "LOST" | "dead" | "detached" => RED,
        "SKIPPED" | "CANCELED" | "disabled" | "gone" | "revoked" => DIM,
        _ => return None,
    })
}

/// A field as text: empty if it is missing, JSON if it is an object or a list.
pub(crate) fn field_text(of: &Value, field: &str) -> String {
    match &of[field] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The items of a list field, or an empty slice.
pub(crate) fn field_items<'a>(of: &'a Value, field: &str) -> &'a [Value] {
    of[field].as_array().map_or(&[], Vec::as_slice)
}

/// The items of a list field, separated by commas.
pub(crate) fn join_list_field(of: &Value, field: &str) -> String {
    let values = field_items(of, field).iter();
    values
        .map(|item| item.as_str().map_or(item.to_string(), str::to_owned))
        .collect::<Vec<_>>()
        .join(", ")
}

/// A count with its noun in singular or plural: `1 run`, `3 runs`.
pub(crate) fn count_with_noun(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        many => format!("{many} {noun}s"),
    }
}

/// A command line with shell quoting, ready to be pasted into a shell.
pub(crate) fn quote_for_shell(argv: &[Value]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,@%+{}".contains(c);
    let values = argv.iter().map(|word| match word.as_str().unwrap_or_default() {
        word if !word.is_empty() && word.chars().all(plain) => word.to_owned(),
        word => format!("'{}'", word.replace('\'', r"'\''")),
    });
    values.collect::<Vec<_>>().join(" ")
}

/// Replaces control characters, so that text from a job cannot send control sequences to the terminal.
pub(crate) fn replace_control_chars(text: &str) -> String {
    let safe = |c: char| match c {
        '\n' => '\n',
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(safe).collect()
}

/// A duration in its two largest units, or in tenths of a second below 10 s: `3d 4h`, `2m 5s`, `1.5s`.
pub(crate) fn format_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    if seconds < 10 {
        let tenths = duration.as_millis().max(0) / 100;
        return match tenths % 10 {
            0 => format!("{}s", tenths / 10),
            rest => format!("{}.{rest}s", tenths / 10),
        };
    }
    format_two_units(seconds)
}

/// A number of seconds in its two largest non-zero units: `1d 2h`.
pub(crate) fn format_two_units(seconds: i64) -> String {
    let units = [
        (seconds / 86_400, "d"),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let first = units.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let largest = units[first..].iter().take(2).filter(|(count, _)| *count > 0 || first == 3);
    largest.map(|(count, unit)| format!("{count}{unit}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn style(colour: bool) -> OutputStyle {
        OutputStyle { now: "2026-11-16T03:00:00Z".parse().unwrap(), colour, json: false }
    }

    #[test]
    fn an_instant_has_its_distance_within_thirty_days() {
        for (at, expected) in [
            ("2026-11-16T02:57:00.000000Z", "2026-11-16 02:57:00Z, 3m ago"),
            ("2026-11-16T03:00:05.200000Z", "2026-11-16 03:00:05Z, in 5.2s"),
            ("2026-11-16T03:00:00.400000Z", "2026-11-16 03:00:00Z, now"),
            ("2026-11-13T01:59:59Z", "2026-11-13 01:59:59Z, 3d 1h ago"),
            ("2020-01-01T00:00:00Z", "2020-01-01 00:00:00Z"),
        ] {
            assert_eq!(style(false).instant(&json!({ "at": at }), "at"), expected);
        }
        assert_eq!(style(false).instant(&json!({ "at": null }), "at"), "");
    }

    #[test]
    fn durations_have_two_units() {
        for (millis, expected) in
            [(0, "0s"), (1_500, "1.5s"), (9_040, "9s"), (61_000, "1m 1s"), (7_200_000, "2h")]
        {
            assert_eq!(format_duration(SignedDuration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn only_the_state_is_painted_and_columns_stay_aligned() {
        let mut table = style(true).table(["ID", "STATE", "JOB"]);
        table.row(["1".to_owned(), "FAILED".to_owned(), "日次の集計".to_owned()]);
        table.row(["22".to_owned(), "PENDING".to_owned(), "a\u{1b}[2Jb\nc".to_owned()]);
        assert_eq!(
            table.render_or(""),
            "ID  STATE    JOB\n1   \x1b[31mFAILED\x1b[0m   日次の集計\n22  PENDING  a\u{fffd}[2Jb c\n"
        );
    }

    #[test]
    fn a_command_is_quoted_for_the_shell() {
        let argv = [json!("sh"), json!("-c"), json!("echo 'hi'"), json!("")];
        assert_eq!(quote_for_shell(&argv), r"sh -c 'echo '\''hi'\''' ''");
    }
}
