//! Logs: kept once, in order, within their cap.

use tasuki_core::{ErrorCode, RunId, RunState};
use tasuki_store::{AttemptReport, AttemptResult, FirstLines, LogLine, Logged, Stream};

use crate::given::{TestStore, at_once, contract, failed, noon};

const CAP: i64 = 1 << 20;

fn line(text: &str) -> LogLine {
    LogLine { stream: Stream::Out, at: noon(), text: text.to_owned() }
}

fn numbered(numbers: std::ops::Range<i64>) -> Vec<LogLine> {
    numbers.map(|number| line(&format!("line {number}"))).collect()
}

async fn texts(store: &TestStore, run: RunId, from: i64, most: u32) -> Vec<String> {
    let page = store.read_log(run, 1, from, most).await.unwrap().unwrap();
    assert_eq!(page.next_line, from + page.lines.len() as i64);
    page.lines.into_iter().map(|line| line.text).collect()
}

contract! {
    /// Those of several attempts in one write; where there is a log, or no such attempt, nothing is kept.
    async fn first_lines_of_several_attempts_travel_together(store: TestStore) {
        let mut runs = Vec::new();
        for _ in 0..3 {
            runs.push(store.given_run(RunState::Running).await.id);
        }
        let lines = |texts: &[&str]| texts.iter().map(|text| line(text)).collect::<Vec<_>>();
        store.append_log(runs[1], 1, 0, &lines(&["was there"]), 1_000).await.unwrap().unwrap();
        let first = |run, attempt_no, texts: &[&str]| FirstLines { run, attempt_no, lines: lines(texts) };
        let logs = [
            first(runs[0], 1, &["one", "two \u{65e5}\u{672c}"]),
            first(runs[1], 1, &["too late"]),
            first(runs[2], 2, &["of an attempt that is not yet"]),
            first(RunId(i64::MAX), 1, &["of no run"]),
            first(runs[2], 1, &["three"]),
            first(runs[2], 1, &["three again"]),
        ];
        assert!(logs.iter().all(|log| log.are_few(1_000)));
        assert_eq!(store.open_logs(&logs).await.unwrap(), [true, false, false, false, true, false]);
        for (run, texts) in [(0, &["one", "two \u{65e5}\u{672c}"][..]), (1, &["was there"]), (2, &["three"])] {
            let page = store.read_log(runs[run], 1, 0, 10).await.unwrap().unwrap();
            assert_eq!(page.lines.iter().map(|line| &*line.text).collect::<Vec<_>>(), texts);
            let bytes: usize = texts.iter().map(|text| text.len() + 1).sum();
            assert_eq!((page.lines_count, page.bytes, page.truncated), (texts.len() as i64, bytes as i64, false));
        }
        // Sent again after a lost answer it is not kept twice, and more goes on behind it.
        let more = store.append_log(runs[0], 1, 0, &lines(&["one", "two \u{65e5}\u{672c}", "four"]), 1_000).await;
        assert_eq!(more.unwrap().unwrap().next_line, 3);
        assert!(!first(runs[0], 1, &["as long as the cap"]).are_few(19));
        assert!(!first(runs[0], 1, &[]).are_few(1_000));
    }

    /// However it ended, and also where nobody believes that any more; once, however often it is told.
    async fn what_was_printed_is_kept_with_the_end(store: TestStore) {
        let mut ends = Vec::new();
        for text in ["of a success", "of a failure", "of one that was lost", ""] {
            let run = store.given_run(RunState::Running).await;
            let lines = [text].into_iter().filter(|text| !text.is_empty()).map(line).collect();
            let printed = Some(FirstLines { run: run.id, attempt_no: 1, lines });
            let end = AttemptReport::new(run.token.unwrap(), run.id, AttemptResult::default());
            ends.push(AttemptReport { printed: printed.filter(|printed| !printed.lines.is_empty()), ..end });
        }
        ends[1].finish = failed(ErrorCode::UNEXPECTED_ERROR);
        ends[2].token = store.token();
        // Told twice in one go.
        ends.push(ends[0].clone());
        for _ in 0..2 {
            let outcomes = store.finish_all(&ends, &[]).await.unwrap();
            let applied: Vec<_> = outcomes.iter().map(tasuki_store::Outcome::is_applied).collect();
            assert_eq!(applied, [true, true, false, true, true]);
            for end in &ends[..3] {
                let printed = end.printed.as_ref().unwrap();
                assert_eq!(texts(store, end.run, 0, 10).await, [printed.lines[0].text.as_str()]);
            }
            assert_eq!(store.read_log(ends[3].run, 1, 0, 10).await.unwrap(), None);
        }
    }

    async fn lines_are_read_as_they_were_printed_while_it_runs(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        assert_eq!(store.read_log(run, 1, 0, 10).await.unwrap(), None, "nothing was printed yet");
        let lines = [
            line("日本語 'quoted' \\ and ? and :now"),
            line(""),
            LogLine { stream: Stream::Err, ..line("  two  spaces ") },
            line("\u{1f600}\r"),
        ];
        let kept = store.append_log(run, 1, 0, &lines, CAP).await.unwrap().unwrap();
        assert_eq!(kept, Logged { next_line: 4, truncated: false });
        let page = store.read_log(run, 1, 0, 10).await.unwrap().unwrap();
        assert_eq!((page.lines.as_slice(), page.next_line, page.lines_count), (&lines[..], 4, 4));
        assert!(!page.truncated && page.log_ref.is_none());
        let end = store.read_log(run, 1, 4, 10).await.unwrap().unwrap();
        assert_eq!((end.lines.len(), end.next_line), (0, 4));
    }

    async fn what_no_database_keeps_is_marked(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        store.append_log(run, 1, 0, &[line("a\0b\nc")], CAP).await.unwrap().unwrap();
        assert_eq!(texts(store, run, 0, 10).await, ["a\u{fffd}b\u{fffd}c"]);
    }

    async fn a_batch_sent_twice_is_kept_once(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        for _ in 0..2 {
            let kept = store.append_log(run, 1, 0, &numbered(0..3), CAP).await.unwrap().unwrap();
            assert_eq!(kept.next_line, 3);
        }
        // The answer was lost, and by now there is more to send.
        let kept = store.append_log(run, 1, 1, &numbered(1..5), CAP).await.unwrap().unwrap();
        assert_eq!(kept.next_line, 5);
        assert_eq!(texts(store, run, 0, 10).await, numbered(0..5).iter().map(|one| one.text.clone()).collect::<Vec<_>>());
        let batch = numbered(5..8);
        let both = at_once(store.append_log(run, 1, 5, &batch, CAP), store.append_log(run, 1, 5, &batch, CAP));
        assert!(both.await.into_iter().all(|kept| kept.unwrap().unwrap().next_line == 8));
        assert_eq!(store.read_log(run, 1, 0, 1).await.unwrap().unwrap().lines_count, 8);
    }

    async fn a_gap_is_refused(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        let refused = store.append_log(run, 1, 2, &numbered(2..3), CAP).await.unwrap_err().to_string();
        assert_eq!(refused, "first line: found \"2\", expected at most 0");
    }

    async fn pages_are_bounded_and_follow_one_another(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        for first in (0..1_200).step_by(600) {
            store.append_log(run, 1, first, &numbered(first..first + 600), CAP).await.unwrap().unwrap();
        }
        assert_eq!(texts(store, run, 498, 3).await, ["line 498", "line 499", "line 500"]);
        assert_eq!(texts(store, run, 1_199, 3).await, ["line 1199"]);
        let (mut from, mut seen) = (0, 0);
        loop {
            let page = store.read_log(run, 1, from, 250).await.unwrap().unwrap();
            if page.next_line == from {
                break;
            }
            assert!(page.lines.len() <= 250);
            assert_eq!(page.lines[0].text, format!("line {from}"));
            (from, seen) = (page.next_line, seen + page.lines.len());
        }
        assert_eq!(seen, 1_200);
    }

    async fn beyond_the_cap_it_is_cut_and_says_so(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        let lines = [line("1234"), line("日本"), line("more")];
        let kept = store.append_log(run, 1, 0, &lines, 10).await.unwrap().unwrap();
        assert_eq!(kept, Logged { next_line: 2, truncated: true });
        assert_eq!(texts(store, run, 0, 10).await, ["1234", "日"], "between two characters");
        let after = store.append_log(run, 1, 3, &[line("and more")], 10).await.unwrap().unwrap();
        assert_eq!(after, kept, "nothing more is kept, and that is no gap");
        let page = store.read_log(run, 1, 0, 10).await.unwrap().unwrap();
        assert!(page.truncated && page.bytes <= 10);
    }

    async fn a_line_that_just_fits_is_not_cut(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        let kept = store.append_log(run, 1, 0, &[line("1234"), line("5678")], 10).await.unwrap().unwrap();
        assert_eq!(kept, Logged { next_line: 2, truncated: false });
        let kept = store.append_log(run, 1, 2, &[line("")], 10).await.unwrap().unwrap();
        assert_eq!(kept, Logged { next_line: 2, truncated: true });
    }

    async fn late_lines_of_a_lost_attempt_are_kept_under_its_number(store: TestStore) {
        let run = store.given_run(RunState::RetryWait).await.id;
        store.given_running_later(run).await;
        for attempt in [1, 2] {
            assert!(store.append_log(run, attempt, 0, &numbered(0..1), CAP).await.unwrap().is_some());
        }
        for (run, attempt) in [(run, 3), (run, 0), (RunId(9999), 1)] {
            assert_eq!(store.append_log(run, attempt, 0, &numbered(0..1), CAP).await.unwrap(), None);
        }
    }

    async fn a_body_goes_only_when_it_is_elsewhere(store: TestStore) {
        let run = store.given_run(RunState::Succeeded).await.id;
        store.append_log(run, 1, 0, &numbered(0..3), CAP).await.unwrap().unwrap();
        assert!(!store.delete_log_body(run, 1).await.unwrap(), "it is nowhere else");
        assert!(!store.archive_log(run, 1, 2, "s3://logs/1", [7; 32]).await.unwrap(), "it has grown");
        assert!(store.archive_log(run, 1, 3, "s3://logs/1", [7; 32]).await.unwrap());
        assert!(!store.archive_log(run, 1, 3, "s3://logs/2", [8; 32]).await.unwrap(), "once");
        assert_eq!(store.append_log(run, 1, 3, &numbered(3..4), CAP).await.unwrap(), None, "the object is what it is");
        assert_eq!(texts(store, run, 0, 10).await.len(), 3, "still here");
        assert!(store.delete_log_body(run, 1).await.unwrap());
        let page = store.read_log(run, 1, 0, 10).await.unwrap().unwrap();
        assert_eq!((page.lines.len(), page.lines_count, page.log_ref.as_deref()), (0, 3, Some("s3://logs/1")));
    }
}
