//! `tasuki schedule preview`: describes a schedule and lists its next fire times, without a server.

use std::fmt::Write as _;

use clap::Args;
use jiff::civil::{Date, DateTime};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tasuki_core::schedule::{
    ClockChange, DstRule, DstRuleOverrides, FoldRule, GapRule, IanaTimeZone, PreviewRow,
    ScheduleKind,
};
use tasuki_core::{InvalidInput, Language, Schedule, ScheduleSlotKey};

use crate::failure::Failure;
use crate::view::format_two_units;

const EXAMPLES: &str = "\
Types and values:
  every        5m, 30s, 2h, 1d             fixed interval in elapsed time
  hourly_at    15   or 0,30                minutes of every hour
  daily_at     02:30   or 09:00,18:00      times of every day
  weekdays_at  09:00                       Monday to Friday
  weekly_at    'mon,thu 09:00'             days of the week
  monthly_at   '1 09:00' or 'last 18:00'   days of the month
  cron         '*/5 9-17 * * MON-FRI'      5 fields, or 6 with the seconds first, or @daily

Examples:
  tasuki schedule preview daily_at 02:30 --zone Europe/Berlin --after 2027-03-27
  tasuki schedule preview cron '30 2 * * *' --zone America/New_York --dst-gap skip
  tasuki schedule preview weekdays_at 09:00 --zone Asia/Tokyo --language ja --json";

/// Describe a schedule and list its next fire times, with notes on the days on which the clocks change
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SchedulePreviewCommand {
    /// Schedule type: every, hourly_at, daily_at, weekdays_at, weekly_at, monthly_at, cron
    #[arg(value_name = "TYPE")]
    kind: String,

    /// Schedule value, in quotes if it contains spaces or stars
    #[arg(required = true, num_args = 1..)]
    value: Vec<String>,

    /// IANA name of the time zone of the schedule
    #[arg(long, default_value = "UTC")]
    zone: String,

    /// Rule for times that do not exist because the clocks go forward: skip, shift [default: skip for hourly_at, and for
    /// cron if its second, minute or hour field starts with *; else shift]
    #[arg(long, value_name = "RULE")]
    dst_gap: Option<String>,

    /// Rule for times that occur twice because the clocks go back: once, twice [default: twice for hourly_at, and for cron
    /// if its second, minute or hour field starts with *; else once]
    #[arg(long, value_name = "RULE")]
    dst_fold: Option<String>,

    /// Number of fire times to show
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    count: u16,

    /// Show only fire times after WHEN: an instant, or a date or time in the time zone of the schedule [default: now]
    #[arg(long, value_name = "WHEN")]
    after: Option<String>,

    /// Language of the output: en, ja
    #[arg(long, env = "TASUKI_LANGUAGE", default_value = "en", value_name = "LANGUAGE")]
    language: String,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl SchedulePreviewCommand {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        let request = self.parse(now).map_err(|invalid| {
            Failure::invalid_input(&invalid)
                .hint("`tasuki schedule preview --help` shows types and examples")
        })?;
        Ok(if self.json { request.json() } else { request.table(now) })
    }

    fn parse(&self, now: Timestamp) -> Result<PreviewRequest, InvalidInput> {
        let kind: ScheduleKind = self.kind.parse()?;
        let dst = DstRuleOverrides {
            gap: self.dst_gap.as_deref().map(str::parse).transpose()?,
            fold: self.dst_fold.as_deref().map(str::parse).transpose()?,
        };
        let language = self.language.parse()?;
        let schedule = Schedule::parse(kind, &self.value.join(" "), &self.zone, dst)?;
        let after = match &self.after {
            None => now,
            Some(input) => parse_instant(input, schedule.zone())?,
        };
        Ok(PreviewRequest { schedule, language, after, count: usize::from(self.count) })
    }
}

/// Parses an instant (`2026-03-28T12:00:00Z`), or a date with or without a time in the time zone.
fn parse_instant(input: &str, zone: &IanaTimeZone) -> Result<Timestamp, InvalidInput> {
    let local_time = || input.parse::<DateTime>().or_else(|_| Ok(input.parse::<Date>()?.into()));
    input
        .parse()
        .or_else(|_| local_time().and_then(|wall| zone.rules().to_timestamp(wall)))
        .map_err(|_: jiff::Error| {
            let expected = "a time such as 2026-03-28T12:00:00Z, 2026-03-28T12:00 or 2026-03-28";
            InvalidInput::with_value("after", input, expected)
        })
}

struct PreviewRequest {
    schedule: Schedule,
    language: Language,
    after: Timestamp,
    count: usize,
}

impl PreviewRequest {
    fn table(&self, now: Timestamp) -> String {
        let preview = self.schedule.preview(self.after, self.count);
        let zone = self.schedule.zone();
        let mut text = format!("{} ({zone})\n", self.schedule.describe(self.language));
        if let Some(rule) = self.applicable_dst_rule() {
            writeln!(text, "{}", describe_rule(rule, self.language))
                .expect("writing to a string does not fail");
        }
        if preview.rows.is_empty() {
            let never = localized(
                self.language,
                "This schedule never fires.",
                "このスケジュールでは一度も実行されない。",
            );
            return format!("{text}\n{never}\n");
        }
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(match self.language {
            Language::English => ["LOCAL", "UTC", "IN", "NOTE"],
            Language::Japanese => ["現地時刻", "UTC", "今から", "備考"],
        });
        for row in &preview.rows {
            table.add_row(self.cells(row, now));
        }
        for line in table.lines() {
            writeln!(text, "{}", line.trim_end()).expect("writing to a string does not fail");
        }
        if preview.no_more_fires {
            let last = localized(
                self.language,
                "There are no later fire times.",
                "これより後には実行されない。",
            );
            writeln!(text, "{last}").expect("writing to a string does not fail");
        }
        text
    }

    fn cells(&self, row: &PreviewRow, now: Timestamp) -> [String; 4] {
        match row {
            PreviewRow::Fire { fire, local, change } => [
                format!(
                    "{} {}",
                    self.weekday(local.date()),
                    local.strftime("%Y-%m-%d %H:%M:%S %:z")
                ),
                fire.at.to_string(),
                format_wait(fire.at.duration_since(now), self.language),
                change.map_or(String::new(), |change| self.note(fire.slot, fire.shifted, &change)),
            ],
            PreviewRow::Skipped { wall, change } => {
                let time = wall.time();
                let change = describe_change(change, self.language);
                let skipped = match self.language {
                    Language::English => format!("skipped: {time} does not exist ({change})"),
                    Language::Japanese => {
                        format!("{time} は存在しないため実行しない（{change}）")
                    }
                };
                [
                    format!("{} {}", self.weekday(wall.date()), wall.strftime("%Y-%m-%d %H:%M:%S")),
                    "-".to_owned(),
                    "-".to_owned(),
                    skipped,
                ]
            }
        }
    }

    fn weekday(&self, date: Date) -> &'static str {
        let (english, japanese) = [
            ("Sun", "日"),
            ("Mon", "月"),
            ("Tue", "火"),
            ("Wed", "水"),
            ("Thu", "木"),
            ("Fri", "金"),
            ("Sat", "土"),
        ][date.weekday().to_sunday_zero_offset() as usize];
        localized(self.language, english, japanese)
    }

    fn note(&self, slot: ScheduleSlotKey, shifted: bool, change: &ClockChange) -> String {
        let description = describe_change(change, self.language);
        let ScheduleSlotKey::Wall { time, pass } = slot else { return description };
        let time = time.time();
        match (shifted, pass, self.language) {
            (true, _, Language::English) => {
                format!(
                    "{time} does not exist, so the job runs at the moment of the change \
                     ({description})"
                )
            }
            (true, _, Language::Japanese) => {
                format!("{time} は存在しないため切り替えの時点で実行する（{description}）")
            }
            (false, 2, Language::English) => {
                format!("{time} for the second time ({description})")
            }
            (false, 2, Language::Japanese) => format!("2回目の {time}（{description}）"),
            (false, _, _) => description,
        }
    }

    /// The rule for clock changes, if the time zone has clock changes after the start of the preview.
    fn applicable_dst_rule(&self) -> Option<DstRule> {
        let changes = self.schedule.zone().rules().following(self.after).next().is_some();
        self.schedule.dst_rule().filter(|_| changes)
    }

    fn json(&self) -> String {
        let preview = self.schedule.preview(self.after, self.count);
        let (mut fires, mut skipped) = (Vec::new(), Vec::new());
        for row in &preview.rows {
            match row {
                PreviewRow::Fire { fire, local, change } => fires.push(json!({
                    "at": fire.at.to_string(),
                    "local": local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
                    "slot": fire.slot.to_string(),
                    "shifted": fire.shifted,
                    "clock_change": change.as_ref().map(change_json),
                })),
                PreviewRow::Skipped { wall, change } => skipped.push(json!({
                    "wall": wall.to_string(),
                    "clock_change": change_json(change),
                })),
            }
        }
        let rule = |rule: DstRule| json!({"gap": rule.gap.as_str(), "fold": rule.fold.as_str()});
        let answer = json!({
            "schedule_type": self.schedule.kind().as_str(),
            "schedule_value": self.schedule.value(),
            "zone": self.schedule.zone().name(),
            "dst": self.schedule.dst_rule().map(rule),
            "words": {
                "en": self.schedule.describe(Language::English),
                "ja": self.schedule.describe(Language::Japanese),
            },
            "fires": fires,
            "skipped": skipped,
            "ends": preview.no_more_fires,
        });
        format!("{answer:#}\n")
    }
}

fn change_json(change: &ClockChange) -> Value {
    json!({
        "at": change.at.to_string(),
        "from": change.from.to_string(),
        "to": change.to.to_string(),
    })
}

fn localized(language: Language, english: &'static str, japanese: &'static str) -> &'static str {
    match language {
        Language::English => english,
        Language::Japanese => japanese,
    }
}

fn describe_rule(rule: DstRule, language: Language) -> String {
    let gap = match rule.gap {
        GapRule::Skip => localized(
            language,
            "for a local time that does not exist, the job does not run",
            "存在しない時刻には実行しない",
        ),
        GapRule::Shift => localized(
            language,
            "for a local time that does not exist, the job runs at the moment of the change",
            "存在しない時刻の代わりに、切り替えの時点で実行する",
        ),
    };
    let fold = match rule.fold {
        FoldRule::Once => localized(
            language,
            "for a local time that occurs twice, it runs once",
            "2回ある時刻には1回だけ実行する",
        ),
        FoldRule::Twice => localized(
            language,
            "for a local time that occurs twice, it runs twice",
            "2回ある時刻には2回とも実行する",
        ),
    };
    match language {
        Language::English => format!("when the clocks change: {gap}; {fold}"),
        Language::Japanese => format!("時計の切り替え時: {gap}。{fold}"),
    }
}

fn describe_change(change: &ClockChange, language: Language) -> String {
    let (from, to) = (change.from.strftime("%H:%M"), change.to.strftime("%H:%M"));
    match (language, change.is_forward()) {
        (Language::English, true) => format!("clocks go forward {from} -> {to}"),
        (Language::English, false) => format!("clocks go back {from} -> {to}"),
        (Language::Japanese, true) => format!("時計が {from} から {to} に進む"),
        (Language::Japanese, false) => format!("時計が {from} から {to} に戻る"),
    }
}

/// The time until a fire, in its two largest units: `3d 4h`.
fn format_wait(duration: SignedDuration, language: Language) -> String {
    let seconds = duration.as_secs();
    if seconds < 0 {
        return localized(language, "past", "過去").to_owned();
    }
    format_two_units(seconds)
}
