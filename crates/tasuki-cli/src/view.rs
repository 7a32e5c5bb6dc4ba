//! How the server's JSON looks to people: tables, facts, times and colours.
//!
//! The reader is tolerant: what a newer server adds is passed over, and what an older one lacks is
//! shown as nothing. `--json` prints all of it.

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

/// How things look here and now.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    now: Timestamp,
    colour: bool,
    json: bool,
}

impl Look {
    /// Colour only where a person looks at it and did not decline.
    pub(crate) fn new(now: Timestamp, json: bool) -> Self {
        let declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self { now, colour: !declined && io::stdout().is_terminal(), json }
    }

    /// The server's JSON if that was asked for, else what people read.
    pub(crate) fn answer(
        &self,
        body: &Value,
        words: impl FnOnce(&Self, &Value) -> String,
    ) -> String {
        match self.json {
            true => format!("{body:#}\n"),
            false => words(self, body),
        }
    }

    /// Whether JSON was asked for.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// An instant, and how far it is if it is near: `2026-11-16 03:00:00Z, 3m ago`.
    pub(crate) fn instant(&self, of: &Value, field: &str) -> String {
        let shown = text(of, field);
        match shown.parse() {
            Ok(instant) => self.around(instant),
            Err(_) => shown,
        }
    }

    fn around(&self, instant: Timestamp) -> String {
        const NEAR: SignedDuration = SignedDuration::from_hours(24 * 30);
        let absolute = instant.strftime("%Y-%m-%d %H:%M:%SZ").to_string();
        let ahead = instant.duration_since(self.now);
        if ahead.abs() > NEAR {
            return absolute;
        }
        match (ahead.abs() < SignedDuration::from_secs(1), ahead.is_positive()) {
            (true, _) => format!("{absolute}, now"),
            (false, true) => format!("{absolute}, in {}", length(ahead)),
            (false, false) => format!("{absolute}, {} ago", length(ahead.abs())),
        }
    }

    /// How long it took, or has taken so far.
    pub(crate) fn took(&self, of: &Value) -> String {
        let instant = |field: &str| text(of, field).parse::<Timestamp>().ok();
        let Some(started) = instant("started_at") else { return String::new() };
        let so_far = instant("finished_at").unwrap_or(self.now).duration_since(started);
        match instant("finished_at") {
            Some(_) => length(so_far),
            None if so_far.is_positive() => format!("{} so far", length(so_far)),
            None => String::new(),
        }
    }

    pub(crate) fn table<const N: usize>(&self, header: [&str; N]) -> Table {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING).set_header(header);
        Table { table, coloured: Vec::new(), colour: self.colour }
    }

    fn paint(&self, word: &str) -> String {
        match colour_of(word).filter(|_| self.colour) {
            Some(colour) => format!("\x1b[{colour}m{word}\x1b[0m"),
            None => word.to_owned(),
        }
    }

    /// Named values under one another; those without a value are left out.
    pub(crate) fn facts(&self, facts: &[(&str, String)]) -> String {
        let told = || facts.iter().filter(|(_, value)| !value.is_empty());
        let width = told().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for (name, value) in told() {
            // What has several lines is told as several, under one another.
            let value = visible(value).replace('\n', &format!("\n{:width$}  ", ""));
            writeln!(text, "{name:width$}  {}", self.paint(&value)).expect("a string takes all");
        }
        text
    }
}

/// Rows under a header.
pub(crate) struct Table {
    table: comfy_table::Table,
    coloured: Vec<String>,
    colour: bool,
}

impl Table {
    /// Adds a row; the first of its cells that is a word with a colour is painted.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        let cells = cells.map(|cell| visible(&cell).replace('\n', " "));
        let word = cells.iter().find(|cell| colour_of(cell).is_some());
        self.coloured.push(word.cloned().unwrap_or_default());
        self.table.add_row(cells);
    }

    /// The table, or what to say instead if it is empty.
    pub(crate) fn or(&self, nothing: &str) -> String {
        if self.coloured.is_empty() {
            return format!("{nothing}\n");
        }
        let mut text = String::new();
        for (line, word) in self.table.lines().zip(header_and(&self.coloured)) {
            // The preset leaves a space in front of every line.
            let line = line.strip_prefix(' ').unwrap_or(&line).trim_end();
            let painted = match colour_of(word).filter(|_| self.colour) {
                Some(colour) => line.replacen(word, &format!("\x1b[{colour}m{word}\x1b[0m"), 1),
                None => line.to_owned(),
            };
            writeln!(text, "{painted}").expect("a string takes all");
        }
        text
    }
}

fn header_and(words: &[String]) -> impl Iterator<Item = &str> {
    std::iter::once("").chain(words.iter().map(String::as_str))
}

fn colour_of(word: &str) -> Option<&'static str> {
    Some(match word {
        "SUCCEEDED" | "active" | "enabled" => GREEN,
        "RUNNING" | "ASSIGNED" => CYAN,
        "RETRY_WAIT" | "ORPHANED" | "draining" | "paused" => YELLOW,
        "FAILED" | "TIMED_OUT" | "EXPIRED" | "LOST" | "dead" | "detached" => RED,
        "SKIPPED" | "CANCELED" | "disabled" | "gone" | "revoked" => DIM,
        _ => return None,
    })
}

/// A field as text: nothing for what is not there, JSON for what has parts.
pub(crate) fn text(of: &Value, field: &str) -> String {
    match &of[field] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The list in a field, or nothing.
pub(crate) fn items<'a>(of: &'a Value, field: &str) -> &'a [Value] {
    of[field].as_array().map_or(&[], Vec::as_slice)
}

/// A list as one text.
pub(crate) fn joined(of: &Value, field: &str) -> String {
    let words = items(of, field).iter();
    words
        .map(|one| one.as_str().map_or(one.to_string(), str::to_owned))
        .collect::<Vec<_>>()
        .join(", ")
}

/// One of several, or one: `1 run`, `3 runs`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        many => format!("{many} {noun}s"),
    }
}

/// A command as one would type it.
pub(crate) fn typed_command(argv: &[Value]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,@%+{}".contains(c);
    let words = argv.iter().map(|word| match word.as_str().unwrap_or_default() {
        word if !word.is_empty() && word.chars().all(plain) => word.to_owned(),
        word => format!("'{}'", word.replace('\'', r"'\''")),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// What a job wrote must not steer the terminal that shows it.
pub(crate) fn visible(text: &str) -> String {
    let safe = |c: char| match c {
        '\n' => '\n',
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(safe).collect()
}

/// The two largest units of a length of time: `3d 4h`, `2m 5s`, `1.5s`.
pub(crate) fn length(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    if seconds < 10 {
        let tenths = duration.as_millis().max(0) / 100;
        return match tenths % 10 {
            0 => format!("{}s", tenths / 10),
            rest => format!("{}.{rest}s", tenths / 10),
        };
    }
    two_units(seconds)
}

/// So long, in the two largest units that say something: `1d 2h`.
pub(crate) fn two_units(seconds: i64) -> String {
    let units = [
        (seconds / 86_400, "d"),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let first = units.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let told = units[first..].iter().take(2).filter(|(count, _)| *count > 0 || first == 3);
    told.map(|(count, unit)| format!("{count}{unit}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn look(colour: bool) -> Look {
        Look { now: "2026-11-16T03:00:00Z".parse().unwrap(), colour, json: false }
    }

    #[test]
    fn an_instant_is_told_both_ways_while_it_is_near() {
        for (at, expected) in [
            ("2026-11-16T02:57:00.000000Z", "2026-11-16 02:57:00Z, 3m ago"),
            ("2026-11-16T03:00:05.200000Z", "2026-11-16 03:00:05Z, in 5.2s"),
            ("2026-11-16T03:00:00.400000Z", "2026-11-16 03:00:00Z, now"),
            ("2026-11-13T01:59:59Z", "2026-11-13 01:59:59Z, 3d 1h ago"),
            ("2020-01-01T00:00:00Z", "2020-01-01 00:00:00Z"),
        ] {
            assert_eq!(look(false).instant(&json!({ "at": at }), "at"), expected);
        }
        assert_eq!(look(false).instant(&json!({ "at": null }), "at"), "");
    }

    #[test]
    fn lengths_read_well() {
        for (millis, expected) in
            [(0, "0s"), (1_500, "1.5s"), (9_040, "9s"), (61_000, "1m 1s"), (7_200_000, "2h")]
        {
            assert_eq!(length(SignedDuration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn only_the_word_is_painted_and_columns_stay_straight() {
        let mut table = look(true).table(["ID", "STATE", "JOB"]);
        table.row(["1".to_owned(), "FAILED".to_owned(), "日次の集計".to_owned()]);
        table.row(["22".to_owned(), "PENDING".to_owned(), "a\u{1b}[2Jb\nc".to_owned()]);
        assert_eq!(
            table.or(""),
            "ID  STATE    JOB\n1   \x1b[31mFAILED\x1b[0m   日次の集計\n22  PENDING  a\u{fffd}[2Jb c\n"
        );
    }

    #[test]
    fn a_command_reads_as_typed() {
        let argv = [json!("sh"), json!("-c"), json!("echo 'hi'"), json!("")];
        assert_eq!(typed_command(&argv), r"sh -c 'echo '\''hi'\''' ''");
    }
}
