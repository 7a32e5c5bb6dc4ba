//! Commands whose output the spawner keeps until they end, and ends that it keeps until they are heard.

use super::*;

/// What is heard at once needs no disk.
#[test]
fn an_end_that_was_heard_is_not_written_down() {
    let mut bench = Bench::new();
    bench.lease(60);
    for number in 1..=20 {
        let job = key(number);
        bench.start_captured(job, "exit 3");
        assert_eq!(bench.ended(job).code, Some(3));
        bench.order(&Order::Forget { job });
    }
    bench.start_captured(key(21), "exit 4");
    assert_eq!(bench.ended(key(21)).code, Some(4));
    drop(bench.spawner.take());
    assert!(bench.record(key(21)).exists(), "nobody has heard this one");
    let written = fs::read_dir(&bench.folder).unwrap().count();
    assert!(written <= 2, "{written} were written");
}

#[test]
fn what_is_soon_over_and_says_little_is_told_with_its_end() {
    let bench = Bench::new();
    bench.lease(60);
    let launch = Launch {
        token: "t".to_owned(),
        argv: ["/bin/echo", "-e", "out\\n\\xff"].map(str::to_owned).to_vec(),
        captured: true,
        ..Launch::default()
    };
    bench.order(&Order::Start(launch.clone()));
    match bench.next() {
        Some(Report::Ended { printed: Some(printed), .. }) => {
            assert_eq!(printed.output.as_bytes(), b"out\n\xff\n");
            assert_eq!(printed.errors.as_bytes(), b"");
        }
        // On a machine that has much else to do it may not be over so soon.
        Some(Report::Started { .. }) => {
            assert_eq!(bench.prints(launch.job)[1], "");
            assert_eq!(bench.printed(launch.job), None);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_goes_on_is_handed_over_to_be_read_as_it_comes() {
    let bench = Bench::new();
    bench.lease(60);
    bench.start_captured(
        key(1),
        "echo early; while [ ! -e go ]; do sleep 0.01; done; echo late >&2",
    );
    bench.started();
    fs::write(bench.folder.join("go"), "").unwrap();
    assert_eq!(bench.prints(key(1)), ["early\n", "late\n"]);
    assert_eq!(bench.printed(key(1)), None);
}

#[test]
fn what_says_much_is_handed_over_too() {
    let bench = Bench::new();
    bench.lease(60);
    let launch = Launch {
        token: "t".to_owned(),
        argv: ["/usr/bin/seq", "3000"].map(str::to_owned).to_vec(),
        captured: true,
        ..Launch::default()
    };
    for _ in 0..10 {
        bench.order(&Order::Start(launch.clone()));
        let mut reports = std::iter::from_fn(|| bench.next())
            .filter(|report| !matches!(report, Report::Started { .. }));
        let Some(Report::Prints { from, .. }) = reports.next() else { panic!("it prints much") };
        let mut text = String::new();
        fs::File::from(from.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text.lines().count(), 3_000);
        let Some(Report::Ended { printed: None, .. }) = reports.next() else { panic!("it ends") };
    }
}
