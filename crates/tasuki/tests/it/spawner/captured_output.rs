//! Tests of output that the spawner captures, and of exit records that it keeps until the worker acknowledges them.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// An exit that the worker acknowledges within the write delay never reaches the disk.
#[test]
fn acknowledged_exit_is_not_written_to_disk() {
    let mut fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    for number in 1..=20 {
        let job = key(number);
        fixture.start_captured(job, "exit 3");
        assert_eq!(fixture.expect_exit(job).code, Some(3));
        fixture.send(&SpawnerRequest::Forget { key: job });
    }
    fixture.start_captured(key(21), "exit 4");
    assert_eq!(fixture.expect_exit(key(21)).code, Some(4));
    drop(fixture.handle.take());
    assert!(fixture.record_path(key(21)).exists(), "this exit was not acknowledged");
    let written = fs::read_dir(&fixture.dir).unwrap().count();
    assert!(written <= 2, "{written} records were written");
}

#[test]
fn short_output_of_a_short_command_comes_with_its_exit() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    let launch = LaunchSpec {
        token: "t".to_owned(),
        argv: ["/bin/echo", "-e", "out\\n\\xff"].map(str::to_owned).to_vec(),
        capture_output: true,
        ..LaunchSpec::default()
    };
    fixture.send(&SpawnerRequest::Start(launch.clone()));
    match fixture.next_event() {
        Some(SpawnerEvent::Ended { output: Some(printed), .. }) => {
            assert_eq!(printed.stdout.as_bytes(), b"out\n\xff\n");
            assert_eq!(printed.stderr.as_bytes(), b"");
        }
        // On a busy machine the command may take longer than the spawner holds its pipes.
        Some(SpawnerEvent::Started { .. }) => {
            assert_eq!(fixture.read_output_pipes(launch.key)[1], "");
            assert_eq!(fixture.expect_exit_output(launch.key), None);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn output_pipes_of_a_long_command_are_handed_over() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    fixture.start_captured(
        key(1),
        "echo early; while [ ! -e go ]; do sleep 0.01; done; echo late >&2",
    );
    fixture.expect_started();
    fs::write(fixture.dir.join("go"), "").unwrap();
    assert_eq!(fixture.read_output_pipes(key(1)), ["early\n", "late\n"]);
    assert_eq!(fixture.expect_exit_output(key(1)), None);
}

#[test]
fn output_pipes_with_much_output_are_handed_over() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    let launch = LaunchSpec {
        token: "t".to_owned(),
        argv: ["/usr/bin/seq", "3000"].map(str::to_owned).to_vec(),
        capture_output: true,
        ..LaunchSpec::default()
    };
    for _ in 0..10 {
        fixture.send(&SpawnerRequest::Start(launch.clone()));
        let mut events = std::iter::from_fn(|| fixture.next_event())
            .filter(|report| !matches!(report, SpawnerEvent::Started { .. }));
        let Some(SpawnerEvent::OutputPipes { pipes: from, .. }) = events.next() else {
            panic!("no pipes were handed over")
        };
        let mut text = String::new();
        fs::File::from(from.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text.lines().count(), 3_000);
        let Some(SpawnerEvent::Ended { output: None, .. }) = events.next() else {
            panic!("no exit was reported")
        };
    }
}

/// The spawner does not wait for a captured command to execute, and still reports why it could not.
#[test]
fn captured_commands_are_refused_for_the_same_reasons() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    let (denied, garbled) = (fixture.dir.join("denied"), fixture.dir.join("garbled"));
    fs::write(&denied, "#!/bin/sh\n").unwrap();
    fs::write(&garbled, "\x7fELF").unwrap();
    fs::set_permissions(&garbled, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("/nowhere:{}:/bin/sh:/nowhere", fixture.dir.display());
    let refused = |program: &str| {
        let launch = LaunchSpec {
            argv: vec![program.to_owned(), "x".to_owned()],
            env: vec![("PATH".to_owned(), path.clone())],
            capture_output: true,
            ..fixture.script_spec(key(1), "")
        };
        fixture.send(&SpawnerRequest::Start(launch));
        match fixture.next_event() {
            Some(SpawnerEvent::Refused { why, .. }) => why,
            other => panic!("{program}: {other:?}"),
        }
    };
    let why = refused("/no/such/program");
    assert!(
        matches!(&why, LaunchRefusal::NotFound(why) if why.starts_with("/no/such/program: No such"))
    );
    let why = refused("nowhere-at-all");
    assert!(
        matches!(&why, LaunchRefusal::NotFound(why) if why.starts_with("nowhere-at-all: No such"))
    );
    let why = refused("denied");
    assert!(
        matches!(&why, LaunchRefusal::NotExecutable(why) if why.contains("Permission denied")),
        "{why:?}"
    );
    assert!(matches!(refused("garbled"), LaunchRefusal::NotExecutable(_)));
    assert!(!fixture.record_path(key(1)).exists(), "a command that never ran has no exit record");
    fixture.start_captured(key(1), "exit 3");
    assert_eq!(fixture.expect_exit(key(1)).code, Some(3), "the same attempt may be started again");
}

/// The spawner takes the first program that exists in the `PATH` of the command's own environment.
#[test]
fn program_is_found_through_path() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    let [first, second] = ["first", "second"].map(|name| fixture.dir.join(name));
    for dir in [&first, &second] {
        fs::create_dir(dir).unwrap();
        let program = dir.join("program");
        fs::write(&program, format!("#!/bin/sh\necho {}", dir.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let launch = LaunchSpec {
        argv: vec!["program".to_owned()],
        env: vec![
            ("PATH".to_owned(), "/overlaid".to_owned()),
            ("PATH".to_owned(), "/nowhere:second:first".to_owned()),
        ],
        ..fixture.script_spec(key(1), "")
    };
    let mut output = fixture.start_with(&launch);
    fixture.expect_started();
    assert_eq!(fixture.expect_exit(key(1)).code, Some(0));
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert_eq!(text.trim(), second.display().to_string());
}

/// A stop request that arrives before the program executes is not lost.
#[test]
fn stop_right_after_start_ends_the_command() {
    let fixture = SpawnerFixture::new();
    fixture.set_lease(60);
    for number in 1..=50 {
        let job = key(number);
        fixture.start_captured(job, "exec sleep 1000");
        fixture.send(&SpawnerRequest::Stop {
            key: job,
            why: AttemptStopReason::Cancel,
            grace: 60 * SECOND,
        });
        let exit = fixture.expect_exit(job);
        assert_eq!((exit.signal, exit.stop_reason), (Some(15), Some(AttemptStopReason::Cancel)));
    }
}
