//! `tasuki schedule preview`: its exact output.

use std::io::Read as _;
use std::process::{Command, Stdio};

use insta::assert_snapshot;

fn tasuki(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tasuki"));
    command.args(arguments).env_remove("TASUKI_LANGUAGE");
    command
}

/// Runs a command and returns exit code, stdout and stderr as one text. The tests preview times in the past, so that the
/// output does not depend on the current date.
fn output_of(arguments: &[&str]) -> String {
    let output = tasuki(arguments).output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let code = output.status.code().expect("not killed");
    format!("exit {code}\n{}{}", text(output.stdout), text(output.stderr))
}

fn preview(arguments: &[&str]) -> String {
    output_of(&[&["schedule", "preview"], arguments].concat())
}

#[test]
fn clocks_go_forward() {
    assert_snapshot!(
        preview(&["daily_at", "02:30", "--zone", "Europe/Berlin", "--after", "2026-03-27T12:00", "-n3"]),
        @r"
    exit 0
    every day at 02:30 (Europe/Berlin)
    when the clocks change: for a local time that does not exist, the job runs at the moment of the change; for a local time that occurs twice, it runs once
     LOCAL                           UTC                   IN    NOTE
     Sat 2026-03-28 02:30:00 +01:00  2026-03-28T01:30:00Z  past
     Sun 2026-03-29 03:00:00 +02:00  2026-03-29T01:00:00Z  past  02:30:00 does not exist, so the job runs at the moment of the change (clocks go forward 02:00 -> 03:00)
     Mon 2026-03-30 02:30:00 +02:00  2026-03-30T00:30:00Z  past
    "
    );
}

#[test]
fn clocks_go_back_and_it_runs_twice() {
    let arguments = [
        "daily_at",
        "02:30",
        "--zone",
        "europe/berlin",
        "--dst-fold",
        "twice",
        "--after",
        "2025-10-25",
        "-n",
        "3",
    ];
    assert_snapshot!(preview(&arguments), @r"
    exit 0
    every day at 02:30 (Europe/Berlin)
    when the clocks change: for a local time that does not exist, the job runs at the moment of the change; for a local time that occurs twice, it runs twice
     LOCAL                           UTC                   IN    NOTE
     Sat 2025-10-25 02:30:00 +02:00  2025-10-25T00:30:00Z  past
     Sun 2025-10-26 02:30:00 +02:00  2025-10-26T00:30:00Z  past  clocks go back 03:00 -> 02:00
     Sun 2025-10-26 02:30:00 +01:00  2025-10-26T01:30:00Z  past  02:30:00 for the second time (clocks go back 03:00 -> 02:00)
    ");
}

#[test]
fn in_japanese_with_a_skipped_time() {
    let arguments = [
        "cron",
        "30 2 * * *",
        "--zone",
        "America/New_York",
        "--dst-gap",
        "skip",
        "--language",
        "ja",
        "--after",
        "2026-03-07T12:00",
        "-n2",
    ];
    assert_snapshot!(preview(&arguments), @r"
    exit 0
    毎日 02:30 (America/New_York)
    時計の切り替え時: 存在しない時刻には実行しない。2回ある時刻には1回だけ実行する
     現地時刻                       UTC                   今から  備考
     日 2026-03-08 02:30:00         -                     -       02:30:00 は存在しないため実行しない（時計が 02:00 から 03:00 に進む）
     月 2026-03-09 02:30:00 -04:00  2026-03-09T06:30:00Z  過去
     火 2026-03-10 02:30:00 -04:00  2026-03-10T06:30:00Z  過去
    ");
}

#[test]
fn a_value_of_several_words_needs_no_quotes() {
    let arguments = ["weekly_at", "mon,thu", "09:00", "--after", "2026-01-01T00:00:00Z", "-n1"];
    assert_snapshot!(preview(&arguments), @r"
    exit 0
    on Monday and Thursday at 09:00 (UTC)
     LOCAL                           UTC                   IN    NOTE
     Thu 2026-01-01 09:00:00 +00:00  2026-01-01T09:00:00Z  past
    ");
}

#[test]
fn never() {
    assert_snapshot!(preview(&["cron", "0 0 30 2 *"]), @r"
    exit 0
    on day 30 of the month in February at 00:00 (UTC)

    This schedule never fires.
    ");
}

#[test]
fn json() {
    let arguments = [
        "hourly_at",
        "30",
        "--zone",
        "Europe/Berlin",
        "--after",
        "2026-03-29T00:40:00Z",
        "-n1",
        "--json",
    ];
    assert_snapshot!(preview(&arguments), @r#"
    exit 0
    {
      "dst": {
        "fold": "twice",
        "gap": "skip"
      },
      "ends": false,
      "fires": [
        {
          "at": "2026-03-29T01:30:00Z",
          "clock_change": {
            "at": "2026-03-29T01:00:00Z",
            "from": "2026-03-29T02:00:00",
            "to": "2026-03-29T03:00:00"
          },
          "local": "2026-03-29T03:30:00+02:00",
          "shifted": false,
          "slot": "2026-03-29T03:30:00"
        }
      ],
      "schedule_type": "hourly_at",
      "schedule_value": "30",
      "skipped": [
        {
          "clock_change": {
            "at": "2026-03-29T01:00:00Z",
            "from": "2026-03-29T02:00:00",
            "to": "2026-03-29T03:00:00"
          },
          "wall": "2026-03-29T02:30:00"
        }
      ],
      "words": {
        "en": "at minute 30 of every hour",
        "ja": "毎時30分"
      },
      "zone": "Europe/Berlin"
    }
    "#);
}

#[test]
fn bad_input_is_bad_usage_with_a_hint() {
    assert_snapshot!(preview(&["cron", "* 25 * * *"]), @r#"
    exit 2
    error: hour: found "25", expected 0 to 23, an ascending range a-b, a step */n or a-b/n, a list of these, or * alone

    hint: `tasuki schedule preview --help` shows types and examples
    "#);
    for (arguments, expected) in [
        (
            &["yearly", "x"][..],
            "schedule type: found \"yearly\", expected one of every, hourly_at,",
        ),
        (
            &["every", "5m", "--zone", "Asia/Tokio"],
            "time zone: found \"Asia/Tokio\", expected the IANA name of a zone; did you mean Asia/Tokyo?",
        ),
        (
            &["every", "5m", "--dst-gap", "jump"],
            "dst gap: found \"jump\", expected one of skip, shift",
        ),
        (&["every", "5m", "--dst-fold", "x"], "dst fold: found \"x\", expected one of once, twice"),
        (&["every", "5m", "--after", "soon"], "after: found \"soon\", expected a time such as"),
        (&["every", "5m", "--language", "fr"], "language: found \"fr\", expected one of en, ja"),
        (&["every", "5m", "-n", "0"], "0 is not in 1..=1000"),
        (&["every"], "required arguments were not provided"),
    ] {
        let output = preview(arguments);
        assert!(
            output.starts_with("exit 2\n") && output.contains(expected),
            "{arguments:?}: {output}"
        );
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let mut child = tasuki(&["schedule", "preview", "every", "1s", "-n", "1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut errors).expect("UTF-8");
    assert_eq!((child.wait().expect("ends").code(), errors.as_str()), (Some(0), ""));
}

#[test]
fn help_shows_nouns_verbs_and_examples() {
    assert!(output_of(&["--help"]).contains("schedule"));
    let help = output_of(&["schedule", "preview", "--help"]);
    for expected in ["--dst-gap", "Examples:", "monthly_at", "--json"] {
        assert!(help.contains(expected), "{expected} in {help}");
    }
    assert!(output_of(&["--version"]).starts_with("exit 0\ntasuki "));
}
