use super::*;
use ScheduleKind::{Cron, DailyAt, Every, HourlyAt, MonthlyAt, WeekdaysAt, WeeklyAt};

fn schedule(kind: ScheduleKind, value: &str, zone: &str) -> Schedule {
    Schedule::parse(kind, value, zone, DstRuleOverrides::default()).unwrap()
}

fn with_rule(value: &str, zone: &str, gap: GapRule, fold: FoldRule) -> Schedule {
    let choice = DstRuleOverrides { gap: Some(gap), fold: Some(fold) };
    Schedule::parse(Cron, value, zone, choice).unwrap()
}

fn error_of(kind: ScheduleKind, value: &str) -> String {
    Schedule::parse(kind, value, "UTC", DstRuleOverrides::default()).unwrap_err().to_string()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The next fires in local time, as `day time±offset slot`.
fn fires(schedule: &Schedule, after: &str, count: usize) -> Vec<String> {
    schedule
        .iter_fires_after(at(after))
        .take(count)
        .map(|fire| {
            let local = fire.at.to_zoned(schedule.zone().rules().clone());
            let mark = if fire.shifted { " shifted" } else { "" };
            format!("{} {}{mark}", local.strftime("%d %H:%M%:z"), fire.slot)
        })
        .collect()
}

#[test]
fn every_kind_of_schedule_finds_its_next_fire() {
    // Sunday, 15 November 2026, 21:31:05 in UTC; Monday morning in Tokyo.
    let now = at("2026-11-15T21:31:05Z");
    for (kind, value, zone, next) in [
        (Every, "5m", "UTC", "2026-11-15T21:35:00Z"),
        (Every, "30s", "UTC", "2026-11-15T21:31:30Z"),
        (Every, "1d", "Asia/Tokyo", "2026-11-16T00:00:00Z"),
        (HourlyAt, "15", "UTC", "2026-11-15T22:15:00Z"),
        (HourlyAt, "0,31,45", "UTC", "2026-11-15T21:45:00Z"),
        (HourlyAt, "0", "Asia/Kolkata", "2026-11-15T22:30:00Z"),
        (DailyAt, "02:30", "UTC", "2026-11-16T02:30:00Z"),
        (DailyAt, "02:30", "Asia/Tokyo", "2026-11-16T17:30:00Z"),
        (DailyAt, "9:00, 21:31:06", "UTC", "2026-11-15T21:31:06Z"),
        (WeekdaysAt, "06:00", "UTC", "2026-11-16T06:00:00Z"),
        (WeekdaysAt, "06:00", "Asia/Tokyo", "2026-11-16T21:00:00Z"),
        (WeeklyAt, "mon, thu 09:00, 18:00", "UTC", "2026-11-16T09:00:00Z"),
        (WeeklyAt, "sun 21:00", "UTC", "2026-11-22T21:00:00Z"),
        (WeeklyAt, "fri-mon,wednesday 21:00", "UTC", "2026-11-16T21:00:00Z"),
        (MonthlyAt, "1 09:00", "UTC", "2026-12-01T09:00:00Z"),
        (MonthlyAt, "last 18:00", "UTC", "2026-11-30T18:00:00Z"),
        (MonthlyAt, "15,31 22:00", "UTC", "2026-11-15T22:00:00Z"),
        (MonthlyAt, "31 22:00", "UTC", "2026-12-31T22:00:00Z"),
        (Cron, "*/5 * * * *", "UTC", "2026-11-15T21:35:00Z"),
        (Cron, "*/10 * * * * *", "UTC", "2026-11-15T21:31:10Z"),
        (Cron, "0 0 29 2 *", "UTC", "2028-02-29T00:00:00Z"),
        (Cron, "@monthly", "UTC", "2026-12-01T00:00:00Z"),
        (Cron, "0 0 13 * FRI", "UTC", "2026-11-20T00:00:00Z"),
    ] {
        let found = schedule(kind, value, zone).next_after(now).unwrap().at;
        assert_eq!(found, at(next), "{kind} {value} {zone}");
    }
}

#[test]
fn the_next_fire_is_strictly_after_to_the_microsecond() {
    let daily = schedule(DailyAt, "02:30", "UTC");
    let fire = at("2026-11-16T02:30:00Z");
    for (after, next) in [
        ("2026-11-16T02:29:59.999999Z", fire),
        ("2026-11-16T02:30:00Z", at("2026-11-17T02:30:00Z")),
        ("2026-11-16T02:30:00.000001Z", at("2026-11-17T02:30:00Z")),
    ] {
        assert_eq!(daily.next_after(at(after)).unwrap().at, next, "{after}");
    }
}

#[test]
fn times_in_a_gap_follow_the_gap_rule() {
    // Berlin, Sunday 29 March 2026: 02:00 becomes 03:00.
    let after = "2026-03-28T12:00:00Z";
    let berlin = "Europe/Berlin";
    let daily = schedule(DailyAt, "02:30", berlin);
    assert_eq!(
        fires(&daily, after, 2),
        ["29 03:00+02:00 2026-03-29T02:30:00 shifted", "30 02:30+02:00 2026-03-30T02:30:00"]
    );
    let skipping = with_rule("30 2 * * *", berlin, GapRule::Skip, FoldRule::Once);
    assert_eq!(fires(&skipping, after, 1), ["30 02:30+02:00 2026-03-30T02:30:00"]);

    let several = schedule(Cron, "10,50 2 * * *", berlin);
    assert_eq!(
        fires(&several, after, 2),
        ["29 03:00+02:00 2026-03-29T02:10:00 shifted", "30 02:10+02:00 2026-03-30T02:10:00"]
    );
    let shift_is_a_match = schedule(Cron, "0,30 2,3 * * *", berlin);
    assert_eq!(
        fires(&shift_is_a_match, after, 2),
        ["29 03:00+02:00 2026-03-29T03:00:00", "29 03:30+02:00 2026-03-29T03:30:00"]
    );
    let periodic = schedule(Cron, "*/30 * * * *", berlin);
    assert_eq!(
        fires(&periodic, "2026-03-29T00:20:00Z", 3),
        [
            "29 01:30+01:00 2026-03-29T01:30:00",
            "29 03:00+02:00 2026-03-29T03:00:00",
            "29 03:30+02:00 2026-03-29T03:30:00"
        ]
    );
}

#[test]
fn repeated_times_follow_the_fold_rule() {
    // Berlin, Sunday 25 October 2026: 03:00 becomes 02:00.
    let after = "2026-10-24T12:00:00Z";
    let berlin = "Europe/Berlin";
    let daily = schedule(DailyAt, "02:30", berlin);
    assert_eq!(
        fires(&daily, after, 2),
        ["25 02:30+02:00 2026-10-25T02:30:00", "26 02:30+01:00 2026-10-26T02:30:00"]
    );
    let twice = with_rule("30 2 * * *", berlin, GapRule::Skip, FoldRule::Twice);
    assert_eq!(
        fires(&twice, after, 3),
        [
            "25 02:30+02:00 2026-10-25T02:30:00",
            "25 02:30+01:00 2026-10-25T02:30:00#2",
            "26 02:30+01:00 2026-10-26T02:30:00"
        ]
    );
    let hourly = schedule(HourlyAt, "15", berlin);
    assert_eq!(
        fires(&hourly, "2026-10-24T23:20:00Z", 4),
        [
            "25 02:15+02:00 2026-10-25T02:15:00",
            "25 02:15+01:00 2026-10-25T02:15:00#2",
            "25 03:15+01:00 2026-10-25T03:15:00",
            "25 04:15+01:00 2026-10-25T04:15:00"
        ]
    );
    // A search that starts within the second pass does not repeat the time of the first pass.
    assert_eq!(fires(&daily, "2026-10-25T01:05:00Z", 1), ["26 02:30+01:00 2026-10-26T02:30:00"]);
}

#[test]
fn zones_with_unusual_clock_changes() {
    // Lord Howe shifts by half an hour, Beirut and Santiago skip midnight, Samoa skipped a whole day.
    let lord_howe = schedule(DailyAt, "02:15", "Australia/Lord_Howe");
    assert_eq!(
        fires(&lord_howe, "2026-10-03T00:00:00Z", 1),
        ["04 02:30+11:00 2026-10-04T02:15:00 shifted"]
    );
    let beirut = schedule(DailyAt, "00:00", "Asia/Beirut");
    assert_eq!(
        fires(&beirut, "2026-03-28T12:00:00Z", 2),
        ["29 01:00+03:00 2026-03-29T00:00:00 shifted", "30 00:00+03:00 2026-03-30T00:00:00"]
    );
    let santiago = schedule(Cron, "0 * * * *", "America/Santiago");
    assert_eq!(fires(&santiago, "2026-09-06T03:30:00Z", 1), ["06 01:00-03:00 2026-09-06T01:00:00"]);
    let samoa = schedule(DailyAt, "12:00", "Pacific/Apia");
    assert_eq!(
        fires(&samoa, "2011-12-29T12:00:00Z", 3),
        [
            "29 12:00-10:00 2011-12-29T12:00:00",
            "31 00:00+14:00 2011-12-30T12:00:00 shifted",
            "31 12:00+14:00 2011-12-31T12:00:00"
        ]
    );
}

#[test]
fn a_schedule_that_never_fires_has_no_next_fire() {
    for value in ["0 0 30 2 *", "0 0 31 4,6,9,11 *"] {
        let never = schedule(Cron, value, "Europe/Berlin");
        assert_eq!(never.next_after(at("2026-11-15T00:00:00Z")), None, "{value}");
        let preview = never.preview(at("2026-11-15T00:00:00Z"), 5);
        assert!(preview.rows.is_empty() && preview.no_more_fires);
    }
}

#[test]
fn the_search_works_at_both_ends_of_the_calendar() {
    for value in ["* * * * * *", "0 0 * * *", "0 0 29 2 *"] {
        for zone in ["UTC", "Europe/Berlin", "Pacific/Apia"] {
            for (gap, fold) in [(GapRule::Skip, FoldRule::Once), (GapRule::Shift, FoldRule::Twice)]
            {
                let schedule = with_rule(value, zone, gap, fold);
                assert_eq!(schedule.next_after(Timestamp::MAX), None);
                assert!(schedule.next_after(Timestamp::MIN).is_some(), "{value} {zone}");
                let last = schedule.last_between(at("9999-01-01T00:00:00Z"), Timestamp::MAX);
                assert_eq!(last.is_some(), value != "0 0 29 2 *", "{value} {zone}");
            }
        }
    }
    let every = schedule(Every, "366d", "UTC");
    assert_eq!(every.next_after(Timestamp::MAX), None);
    assert!(every.next_after(Timestamp::MIN).is_some());
}

#[test]
fn the_last_fire_is_the_same_as_with_a_linear_search() {
    let every_second = schedule(Every, "1s", "UTC");
    let (start, end) = (at("2020-01-01T00:00:00.5Z"), at("2026-11-15T12:00:00.9Z"));
    assert_eq!(every_second.last_between(start, end).unwrap().at, at("2026-11-15T12:00:00Z"));
    assert_eq!(every_second.last_between(start, at("2020-01-01T00:00:00.9Z")), None);
    assert_eq!(every_second.last_between(end, start), None);

    let daily = schedule(DailyAt, "02:30", "Europe/Berlin");
    for end in ["2026-10-25T00:29:59Z", "2026-10-25T00:30:00Z", "2026-10-25T05:00:00Z"] {
        let walked = daily.iter_fires_after(start).take_while(|fire| fire.at <= at(end)).last();
        assert_eq!(daily.last_between(start, at(end)), walked, "{end}");
    }
}

#[test]
fn a_preview_marks_the_days_of_clock_changes() {
    let marks = |preview: Preview| -> Vec<String> {
        let row = |row: &PreviewRow| match row {
            PreviewRow::Fire { local, change, .. } => {
                let change = change.map_or(String::new(), |change| {
                    format!(" ({} -> {})", change.from.time(), change.to.time())
                });
                format!("{}{change}", local.strftime("%d %H:%M"))
            }
            PreviewRow::Skipped { wall, .. } => format!("{} skipped", wall.strftime("%d %H:%M")),
        };
        preview.rows.iter().map(row).collect()
    };
    let spring = at("2026-03-28T00:00:00Z");
    let skipping = with_rule("30 2 * * *", "Europe/Berlin", GapRule::Skip, FoldRule::Once);
    assert_eq!(marks(skipping.preview(spring, 2)), ["28 02:30", "29 02:30 skipped", "30 02:30"]);
    let daily = schedule(DailyAt, "02:30,12:00", "Europe/Berlin");
    assert_eq!(
        marks(daily.preview(spring, 5)),
        [
            "28 02:30",
            "28 12:00",
            "29 03:00 (02:00:00 -> 03:00:00)",
            "29 12:00 (02:00:00 -> 03:00:00)",
            "30 02:30"
        ]
    );
    let autumn = at("2026-10-24T12:00:00Z");
    assert_eq!(
        marks(daily.preview(autumn, 3)),
        ["25 02:30 (03:00:00 -> 02:00:00)", "25 12:00 (03:00:00 -> 02:00:00)", "26 02:30"]
    );
    let beirut = schedule(DailyAt, "00:00", "Asia/Beirut");
    assert_eq!(
        marks(beirut.preview(at("2026-03-27T12:00:00Z"), 3)),
        ["28 00:00", "29 01:00 (00:00:00 -> 01:00:00)", "30 00:00"]
    );
}

#[test]
fn schedules_are_described_in_english_and_japanese() {
    for (kind, value, english, japanese) in [
        (Every, "5m", "every 5 minutes", "5分ごと"),
        (Every, "90s", "every 90 seconds", "90秒ごと"),
        (Every, "60m", "every hour", "1時間ごと"),
        (HourlyAt, "15", "at minute 15 of every hour", "毎時15分"),
        (HourlyAt, "0,30", "every 30 minutes", "30分ごと"),
        (DailyAt, "02:30", "every day at 02:30", "毎日 02:30"),
        (DailyAt, "18:00:30,09:00", "every day at 09:00 and 18:00:30", "毎日 09:00・18:00:30"),
        (WeekdaysAt, "09:00", "on Monday to Friday at 09:00", "毎週月曜〜金曜 09:00"),
        (WeeklyAt, "mon,thu 09:00", "on Monday and Thursday at 09:00", "毎週月曜・木曜 09:00"),
        (MonthlyAt, "1 09:00", "on day 1 of the month at 09:00", "毎月1日 09:00"),
        (
            MonthlyAt,
            "1,15,last 09:00",
            "on day 1 and 15 and the last day of the month at 09:00",
            "毎月1日・15日・末日 09:00",
        ),
        (Cron, "30 2 * * *", "every day at 02:30", "毎日 02:30"),
        (Cron, "* * * * *", "every minute", "1分ごと"),
        (Cron, "* * * * * *", "every second", "1秒ごと"),
        (Cron, "*/10 * * * * *", "every 10 seconds", "10秒ごと"),
        (
            Cron,
            "*/15 9-17 * * MON-FRI",
            "at minute 0, 15, 30 and 45 of hour 9 to 17 on Monday to Friday",
            "毎週月曜〜金曜 9時〜17時の0分・15分・30分・45分",
        ),
        (Cron, "* 2 * * *", "every minute of hour 2", "2時の毎分"),
        (
            Cron,
            "0 0 1 1,7 *",
            "on day 1 of the month in January and July at 00:00",
            "1月・7月の1日 00:00",
        ),
        (
            Cron,
            "0 0 13 * FRI",
            "on day 13 of the month or on Friday at 00:00",
            "毎月13日または毎週金曜 00:00",
        ),
        (Cron, "*/20 * * 1-3 *", "every 20 minutes in January to March", "1月〜3月の20分ごと"),
        (Cron, "30 * * * * *", "at second 30 of every minute of every hour", "毎分30秒"),
        (Cron, "* 5 * * * *", "every second of minute 5 of every hour", "毎時5分の毎秒"),
    ] {
        let schedule = schedule(kind, value, "UTC");
        assert_eq!(schedule.describe(Language::English), english, "{kind} {value}");
        assert_eq!(schedule.describe(Language::Japanese), japanese, "{kind} {value}");
    }
}

#[test]
fn errors_name_the_field_the_value_and_the_valid_values() {
    for (kind, value, expected) in [
        (Every, "5", "period: found \"5\", expected a whole number with its unit"),
        (Every, "0s", "period: found \"0s\""),
        (Every, "-5m", "period: found \"-5m\""),
        (Every, "1.5h", "period: found \"1.5h\""),
        (
            Every,
            "367d",
            "period: found \"367d\", expected a whole number with its unit, such as 30s, 5m, 2h or 1d, from 1s to 366d",
        ),
        (Every, "99999999999999999999d", "period: found"),
        (Every, "５m", "period: found \"５m\""),
        (Every, "", "period: found nothing"),
        (HourlyAt, "60", "minute: found \"60\", expected 0 to 59"),
        (HourlyAt, "0,,5", "minute: found nothing, expected 0 to 59"),
        (DailyAt, "24:00", "time: found \"24:00\", expected a time from 00:00 to 23:59"),
        (DailyAt, "2:5", "time: found \"2:5\""),
        (DailyAt, "02:30 04:00", "time: found \"02:30 04:00\""),
        (DailyAt, "02:30:60", "time: found \"02:30:60\""),
        (DailyAt, "", "time: found nothing"),
        (WeekdaysAt, "mon 09:00", "time: found \"mon 09:00\""),
        (
            WeeklyAt,
            "09:00",
            "weekday: found \"09:00\", expected days and times with a space between, such as mon,thu 09:00",
        ),
        (WeeklyAt, "xyz 09:00", "weekday: found \"xyz\", expected mon, tue"),
        (WeeklyAt, "mon 9", "time: found \"9\""),
        (MonthlyAt, "32 09:00", "day of month: found \"32\", expected 1 to 31, last"),
        (MonthlyAt, "0 09:00", "day of month: found \"0\""),
        (MonthlyAt, "1", "day of month: found \"1\", expected days and times"),
        (Cron, "* 25 * * *", "hour: found \"25\", expected 0 to 23"),
    ] {
        let message = error_of(kind, value);
        assert!(message.starts_with(expected), "{kind} {value:?}: {message}");
    }
    let long = "0,".repeat(200);
    assert_eq!(
        error_of(HourlyAt, &long),
        "schedule value: found 400 bytes, expected at most 256 bytes"
    );
    let zone = Schedule::parse(Every, "5m", "Mars/Base", DstRuleOverrides::default()).unwrap_err();
    assert!(zone.to_string().starts_with("time zone: found \"Mars/Base\""), "{zone}");
}

#[test]
fn the_rule_for_clock_changes_has_a_default_and_can_be_chosen() {
    let rule = |kind, value| schedule(kind, value, "Europe/Berlin").dst_rule();
    assert_eq!(rule(DailyAt, "02:30"), Some(DstRule::TIME_OF_DAY));
    assert_eq!(rule(HourlyAt, "15"), Some(DstRule::PERIODIC));
    assert_eq!(rule(Every, "5m"), None);
    let half = DstRuleOverrides { gap: Some(GapRule::Skip), fold: None };
    let chosen = Schedule::parse(DailyAt, "02:30", "Europe/Berlin", half).unwrap();
    assert_eq!(chosen.dst_rule(), Some(DstRule { gap: GapRule::Skip, fold: FoldRule::Once }));
}
