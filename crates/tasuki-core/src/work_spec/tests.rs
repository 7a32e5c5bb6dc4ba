use super::*;

fn full() -> WorkSpec {
    WorkSpec {
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
        ..WorkSpec::new(WorkAction::Command(vec!["report".to_owned(), "{day}".to_owned()]))
    }
}

#[test]
fn stored_json_decodes_to_the_same_work() {
    for work in [
        full(),
        WorkSpec::new(WorkAction::Django("clearsessions".to_owned())),
        WorkSpec::new(WorkAction::Function("mail".to_owned())),
        WorkSpec {
            queue: "slow".parse().unwrap(),
            priority: Priority::Lowest,
            ..WorkSpec::new(WorkAction::Function("mail".to_owned()))
        },
    ] {
        work.validate().unwrap();
        assert_eq!(WorkSpec::from_json(&work.to_json().to_string()).unwrap(), work);
    }
    assert_eq!(
        WorkSpec::new(WorkAction::Function("f".to_owned())).to_json(),
        json!({"function": "f"})
    );
}

#[test]
fn invalid_stored_json_is_an_error() {
    for json in [
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
        assert!(WorkSpec::from_json(json).is_err(), "{json}");
    }
}

#[test]
fn invalid_work_is_an_error_that_names_the_field() {
    let command = |argv: &[&str]| {
        WorkSpec::new(WorkAction::Command(argv.iter().map(|&a| a.to_owned()).collect()))
    };
    let valid = command(&["ls"]);
    let env = |name: &str, value: &str| WorkSpec {
        env: [(name.to_owned(), value.to_owned())].into(),
        ..valid.clone()
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
        (WorkSpec { timeout: Some(Duration::ZERO), ..valid.clone() }, "timeout"),
        (WorkSpec { timeout: Some(Duration::from_secs(1 << 40)), ..valid.clone() }, "timeout"),
        (WorkSpec { retry_on: vec!["999".to_owned()], ..valid.clone() }, "retry_on"),
        (WorkSpec { directory: Some(String::new()), ..valid.clone() }, "directory"),
        (WorkSpec::new(WorkAction::Django("a b".to_owned())), "command"),
        (WorkSpec::new(WorkAction::Function(" f".to_owned())), "handler"),
        (WorkSpec { queue: "slow".parse().unwrap(), ..valid.clone() }, "queue"),
        (WorkSpec { priority: Priority::High, ..valid.clone() }, "priority"),
    ] {
        assert_eq!(work.validate().unwrap_err().field, field, "{work:?}");
    }
}
