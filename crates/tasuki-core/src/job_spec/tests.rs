use super::*;

fn full() -> Work {
    Work {
        description: Some("夜間の集計".to_owned()),
        args: json!({"day": "today", "n": 3}).as_object().unwrap().clone(),
        env: [("LANG".to_owned(), "C".to_owned())].into(),
        directory: Some("/srv".to_owned()),
        timeout: Some(Duration::from_secs(60)),
        heartbeat_timeout: Some(Duration::from_millis(1_500)),
        stop_grace: Some(Duration::ZERO),
        exit_codes: [(3, "NO_DATA".parse().unwrap())].into(),
        retry_on: vec!["NO_DATA".to_owned()],
        fail_on: vec!["75".to_owned()],
        ..Work::new(What::Command(vec!["report".to_owned(), "{day}".to_owned()]))
    }
}

#[test]
fn it_reads_back_as_it_was_kept() {
    for work in [
        full(),
        Work::new(What::Django("clearsessions".to_owned())),
        Work::new(What::Function("mail".to_owned())),
        Work {
            queue: "slow".parse().unwrap(),
            priority: Priority::Lowest,
            ..Work::new(What::Function("mail".to_owned()))
        },
    ] {
        work.check().unwrap();
        assert_eq!(Work::from_json(&work.to_json().to_string()).unwrap(), work);
    }
    assert_eq!(Work::new(What::Function("f".to_owned())).to_json(), json!({"function": "f"}));
}

#[test]
fn strange_things_are_refused() {
    for kept in [
        "",
        "[]",
        "{}",
        r#"{"command": "ls"}"#,
        r#"{"command": ["a"], "function": "b"}"#,
        r#"{"command": ["a"], "tmeout_ms": 1}"#,
        r#"{"command": ["a"], "timeout_ms": -1}"#,
        r#"{"function": "a", "queue": ""}"#,
        r#"{"function": "a", "priority": "urgent"}"#,
    ] {
        assert!(Work::from_json(kept).is_err(), "{kept}");
    }
}

#[test]
fn what_no_worker_could_run_is_refused_by_its_field() {
    let command =
        |argv: &[&str]| Work::new(What::Command(argv.iter().map(|&a| a.to_owned()).collect()));
    let sound = command(&["ls"]);
    let env = |name: &str, value: &str| Work {
        env: [(name.to_owned(), value.to_owned())].into(),
        ..sound.clone()
    };
    for (work, field) in [
        (command(&[]), "command"),
        (command(&[""]), "command"),
        (command(&["ls", "a\0b"]), "command"),
        (command(&["x"; 1_001]), "command"),
        (command(&["ls", &"x".repeat(200_000)]), "command"),
        (env("TASUKI_RUN_ID", "1"), "env"),
        (env("A=B", "1"), "env"),
        (env("A", "\0"), "env"),
        (Work { timeout: Some(Duration::ZERO), ..sound.clone() }, "timeout"),
        (Work { timeout: Some(Duration::from_secs(1 << 40)), ..sound.clone() }, "timeout"),
        (Work { retry_on: vec!["999".to_owned()], ..sound.clone() }, "retry_on"),
        (Work { directory: Some(String::new()), ..sound.clone() }, "directory"),
        (Work::new(What::Django("a b".to_owned())), "command"),
        (Work::new(What::Function(" f".to_owned())), "handler"),
        (Work { queue: "slow".parse().unwrap(), ..sound.clone() }, "queue"),
        (Work { priority: Priority::High, ..sound.clone() }, "priority"),
    ] {
        assert_eq!(work.check().unwrap_err().field, field, "{work:?}");
    }
}
