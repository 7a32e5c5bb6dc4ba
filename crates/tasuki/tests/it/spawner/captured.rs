//! Commands whose output the spawner keeps until they end, and ends that it keeps until they are heard.

use std::os::unix::fs::PermissionsExt as _;

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

/// Nobody waits for it to begin, and still it is told why it did not.
#[test]
fn what_cannot_be_run_is_refused_for_the_same_reasons() {
    let bench = Bench::new();
    bench.lease(60);
    let (denied, garbled) = (bench.folder.join("denied"), bench.folder.join("garbled"));
    fs::write(&denied, "#!/bin/sh\n").unwrap();
    fs::write(&garbled, "\x7fELF").unwrap();
    fs::set_permissions(&garbled, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("/nowhere:{}:/bin/sh:/nowhere", bench.folder.display());
    let refused = |program: &str| {
        let launch = Launch {
            argv: vec![program.to_owned(), "x".to_owned()],
            env: vec![("PATH".to_owned(), path.clone())],
            captured: true,
            ..bench.script(key(1), "")
        };
        bench.order(&Order::Start(launch));
        match bench.next() {
            Some(Report::Refused { why, .. }) => why,
            other => panic!("{program}: {other:?}"),
        }
    };
    let why = refused("/no/such/program");
    assert!(matches!(&why, Refusal::NotFound(why) if why.starts_with("/no/such/program: No such")));
    let why = refused("nowhere-at-all");
    assert!(matches!(&why, Refusal::NotFound(why) if why.starts_with("nowhere-at-all: No such")));
    let why = refused("denied");
    assert!(matches!(&why, Refusal::Unfit(why) if why.contains("Permission denied")), "{why:?}");
    assert!(matches!(refused("garbled"), Refusal::Unfit(_)));
    assert!(!bench.record(key(1)).exists(), "it never ran");
    bench.start_captured(key(1), "exit 3");
    assert_eq!(bench.ended(key(1)).code, Some(3), "and it may be tried again");
}

/// The first there is, where the path of its own environment leads.
#[test]
fn a_program_is_found_where_its_path_leads() {
    let bench = Bench::new();
    bench.lease(60);
    let [first, second] = ["first", "second"].map(|name| bench.folder.join(name));
    for folder in [&first, &second] {
        fs::create_dir(folder).unwrap();
        let program = folder.join("program");
        fs::write(&program, format!("#!/bin/sh\necho {}", folder.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let launch = Launch {
        argv: vec!["program".to_owned()],
        env: vec![
            ("PATH".to_owned(), "/overlaid".to_owned()),
            ("PATH".to_owned(), "/nowhere:second:first".to_owned()),
        ],
        ..bench.script(key(1), "")
    };
    let mut output = bench.launch(&launch);
    bench.started();
    assert_eq!(bench.ended(key(1)).code, Some(0));
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert_eq!(text.trim(), second.display().to_string());
}

/// One that is told to stop before it has begun is stopped.
#[test]
fn what_is_stopped_at_once_ends() {
    let bench = Bench::new();
    bench.lease(60);
    for number in 1..=50 {
        let job = key(number);
        bench.start_captured(job, "exec sleep 1000");
        bench.order(&Order::Stop { job, why: Stopped::Cancel, grace: 60 * SECOND });
        let exit = bench.ended(job);
        assert_eq!((exit.signal, exit.stopped), (Some(15), Some(Stopped::Cancel)));
    }
}
