//! Logs: every line is stored once and in order, up to the maximum size.

use tasuki_core::{AttemptErrorCode, RunId, RunState};
use tasuki_store::{
    AttemptReport, AttemptResult, FirstOutputLines, LogAppendResult, LogLine, OutputStream,
};

use crate::fixtures::{TestStore, contract, failed_result, noon, run_both};

const MAX_LOG_BYTES: i64 = 1 << 20;

fn line(text: &str) -> LogLine {
    LogLine { stream: OutputStream::Stdout, at: noon(), text: text.to_owned() }
}

fn numbered(numbers: std::ops::Range<i64>) -> Vec<LogLine> {
    numbers.map(|number| line(&format!("line {number}"))).collect()
}

async fn texts(store: &TestStore, run: RunId, from: i64, limit: u32) -> Vec<String> {
    let page = store.read_log(run, 1, from, limit).await.unwrap().unwrap();
    assert_eq!(page.next_line, from + page.lines.len() as i64);
    page.lines.into_iter().map(|line| line.text).collect()
}

contract! {
    /// One write stores the short logs of several attempts. Nothing is stored for an attempt that has a log already
    /// or that does not exist.
    async fn short_logs_of_several_attempts_are_stored_in_one_write(store: TestStore) {
        let mut runs = Vec::new();
        for _ in 0..3 {
            runs.push(store.given_run(RunState::Running).await.id);
        }
        let lines = |texts: &[&str]| texts.iter().map(|text| line(text)).collect::<Vec<_>>();
        store.append_log(runs[1], 1, 0, &lines(&["was there"]), 1_000).await.unwrap().unwrap();
        let first = |run, attempt_no, texts: &[&str]| FirstOutputLines { run, attempt_no, lines: lines(texts) };
        let logs = [
            first(runs[0], 1, &["one", "two \u{65e5}\u{672c}"]),
            first(runs[1], 1, &["too late"]),
            first(runs[2], 2, &["of an attempt that is not yet"]),
            first(RunId(i64::MAX), 1, &["of no run"]),
            first(runs[2], 1, &["three"]),
            first(runs[2], 1, &["three again"]),
        ];
        assert!(logs.iter().all(|log| log.fits_one_chunk(1_000)));
        assert_eq!(store.create_short_logs(&logs).await.unwrap(), [true, false, false, false, true, false]);
        for (run, texts) in [(0, &["one", "two \u{65e5}\u{672c}"][..]), (1, &["was there"]), (2, &["three"])] {
            let page = store.read_log(runs[run], 1, 0, 10).await.unwrap().unwrap();
            assert_eq!(page.lines.iter().map(|line| &*line.text).collect::<Vec<_>>(), texts);
            let bytes: usize = texts.iter().map(|text| text.len() + 1).sum();
            assert_eq!((page.lines_count, page.bytes, page.truncated), (texts.len() as i64, bytes as i64, false));
        }
        // The lines are sent again after a lost response: they are not stored twice, and new lines are appended
        // behind them.
        let more = store.append_log(runs[0], 1, 0, &lines(&["one", "two \u{65e5}\u{672c}", "four"]), 1_000).await;
        assert_eq!(more.unwrap().unwrap().next_line, 3);
        assert!(!first(runs[0], 1, &["as long as the cap"]).fits_one_chunk(19));
        assert!(!first(runs[0], 1, &[]).fits_one_chunk(1_000));
    }

    /// The captured output is stored for every outcome, also for a report that is refused; once, also for repeated
    /// reports.
    async fn captured_output_is_stored_with_the_report(store: TestStore) {
        let mut ends = Vec::new();
        for text in ["of a success", "of a failure", "of one that was lost", ""] {
            let run = store.given_run(RunState::Running).await;
            let lines = [text].into_iter().filter(|text| !text.is_empty()).map(line).collect();
            let printed = Some(FirstOutputLines { run: run.id, attempt_no: 1, lines });
            let end = AttemptReport::new(run.token.unwrap(), run.id, AttemptResult::default());
            ends.push(AttemptReport { output: printed.filter(|printed| !printed.lines.is_empty()), ..end });
        }
        ends[1].attempt_result = failed_result(AttemptErrorCode::UNEXPECTED_ERROR);
        ends[2].token = store.new_token();
        // The same report twice in one call.
        ends.push(ends[0].clone());
        for _ in 0..2 {
            let outcomes = store.finish(&ends, &[]).await.unwrap();
            let applied: Vec<_> = outcomes.iter().map(tasuki_store::Outcome::is_applied).collect();
            assert_eq!(applied, [true, true, false, true, true]);
            for end in &ends[..3] {
                let printed = end.output.as_ref().unwrap();
                assert_eq!(texts(store, end.run, 0, 10).await, [printed.lines[0].text.as_str()]);
            }
            assert_eq!(store.read_log(ends[3].run, 1, 0, 10).await.unwrap(), None);
        }
    }

    async fn lines_of_a_running_attempt_are_read_as_printed(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        assert_eq!(store.read_log(run, 1, 0, 10).await.unwrap(), None, "no output yet");
        let lines = [
            line("日本語 'quoted' \\ and ? and :now"),
            line(""),
            LogLine { stream: OutputStream::Stderr, ..line("  two  spaces ") },
            line("\u{1f600}\r"),
        ];
        let kept = store.append_log(run, 1, 0, &lines, MAX_LOG_BYTES).await.unwrap().unwrap();
        assert_eq!(kept, LogAppendResult { next_line: 4, truncated: false });
        let page = store.read_log(run, 1, 0, 10).await.unwrap().unwrap();
        assert_eq!((page.lines.as_slice(), page.next_line, page.lines_count), (&lines[..], 4, 4));
        assert!(!page.truncated && page.log_ref.is_none());
        let end = store.read_log(run, 1, 4, 10).await.unwrap().unwrap();
        assert_eq!((end.lines.len(), end.next_line), (0, 4));
    }

    async fn characters_that_cannot_be_stored_are_replaced(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        store.append_log(run, 1, 0, &[line("a\0b\nc")], MAX_LOG_BYTES).await.unwrap().unwrap();
        assert_eq!(texts(store, run, 0, 10).await, ["a\u{fffd}b\u{fffd}c"]);
    }

    async fn a_batch_sent_twice_is_stored_once(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        for _ in 0..2 {
            let kept = store.append_log(run, 1, 0, &numbered(0..3), MAX_LOG_BYTES).await.unwrap().unwrap();
            assert_eq!(kept.next_line, 3);
        }
        // The response was lost, and meanwhile there are more lines to send.
        let kept = store.append_log(run, 1, 1, &numbered(1..5), MAX_LOG_BYTES).await.unwrap().unwrap();
        assert_eq!(kept.next_line, 5);
        assert_eq!(texts(store, run, 0, 10).await, numbered(0..5).iter().map(|one| one.text.clone()).collect::<Vec<_>>());
        let batch = numbered(5..8);
        let both = run_both(store.append_log(run, 1, 5, &batch, MAX_LOG_BYTES), store.append_log(run, 1, 5, &batch, MAX_LOG_BYTES));
        assert!(both.await.into_iter().all(|kept| kept.unwrap().unwrap().next_line == 8));
        assert_eq!(store.read_log(run, 1, 0, 1).await.unwrap().unwrap().lines_count, 8);
    }

    async fn a_gap_is_refused(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        let refused = store.append_log(run, 1, 2, &numbered(2..3), MAX_LOG_BYTES).await.unwrap_err().to_string();
        assert_eq!(refused, "first line: found \"2\", expected at most 0");
    }

    async fn pages_are_bounded_and_contiguous(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        for first in (0..1_200).step_by(600) {
            store.append_log(run, 1, first, &numbered(first..first + 600), MAX_LOG_BYTES).await.unwrap().unwrap();
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

    async fn a_log_beyond_the_maximum_is_truncated_and_marked(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        let lines = [line("1234"), line("日本"), line("more")];
        let kept = store.append_log(run, 1, 0, &lines, 10).await.unwrap().unwrap();
        assert_eq!(kept, LogAppendResult { next_line: 2, truncated: true });
        assert_eq!(texts(store, run, 0, 10).await, ["1234", "日"], "the text is cut between two characters");
        let after = store.append_log(run, 1, 3, &[line("and more")], 10).await.unwrap().unwrap();
        assert_eq!(after, kept, "no more lines are stored, and that is no gap");
        let page = store.read_log(run, 1, 0, 10).await.unwrap().unwrap();
        assert!(page.truncated && page.bytes <= 10);
    }

    async fn a_line_that_just_fits_is_not_truncated(store: TestStore) {
        let run = store.given_run(RunState::Running).await.id;
        let kept = store.append_log(run, 1, 0, &[line("1234"), line("5678")], 10).await.unwrap().unwrap();
        assert_eq!(kept, LogAppendResult { next_line: 2, truncated: false });
        let kept = store.append_log(run, 1, 2, &[line("")], 10).await.unwrap().unwrap();
        assert_eq!(kept, LogAppendResult { next_line: 2, truncated: true });
    }

    async fn late_lines_of_a_lost_attempt_are_stored_under_its_number(store: TestStore) {
        let run = store.given_run(RunState::RetryWait).await.id;
        store.given_running_after_an_hour(run).await;
        for attempt in [1, 2] {
            assert!(store.append_log(run, attempt, 0, &numbered(0..1), MAX_LOG_BYTES).await.unwrap().is_some());
        }
        for (run, attempt) in [(run, 3), (run, 0), (RunId(9999), 1)] {
            assert_eq!(store.append_log(run, attempt, 0, &numbered(0..1), MAX_LOG_BYTES).await.unwrap(), None);
        }
    }

    async fn log_lines_are_deleted_only_after_archiving(store: TestStore) {
        let run = store.given_run(RunState::Succeeded).await.id;
        store.append_log(run, 1, 0, &numbered(0..3), MAX_LOG_BYTES).await.unwrap().unwrap();
        assert!(!store.delete_lines_of_archived_log(run, 1).await.unwrap(), "the log is not archived yet");
        assert!(!store.mark_log_archived(run, 1, 2, "s3://logs/1", [7; 32]).await.unwrap(), "the log has more lines than were archived");
        assert!(store.mark_log_archived(run, 1, 3, "s3://logs/1", [7; 32]).await.unwrap());
        assert!(!store.mark_log_archived(run, 1, 3, "s3://logs/2", [8; 32]).await.unwrap(), "a log is archived once");
        assert_eq!(store.append_log(run, 1, 3, &numbered(3..4), MAX_LOG_BYTES).await.unwrap(), None, "an archived log accepts no lines");
        assert_eq!(texts(store, run, 0, 10).await.len(), 3, "the lines are still in the database");
        assert!(store.delete_lines_of_archived_log(run, 1).await.unwrap());
        let page = store.read_log(run, 1, 0, 10).await.unwrap().unwrap();
        assert_eq!((page.lines.len(), page.lines_count, page.log_ref.as_deref()), (0, 3, Some("s3://logs/1")));
    }
}
