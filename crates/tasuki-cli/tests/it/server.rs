//! Where the server is, who we are to it, and what is told when it refuses or is not there.

use insta::assert_snapshot;
use serde_json::json;

use crate::fake::{Fake, Reply, tasuki, told};
use crate::jobs::{jobs, problem};

#[test]
fn refusals_are_told_in_the_servers_words() {
    let fake = Fake::new(|request| match request.line.as_str() {
        "GET /jobs/secret" => problem(403, "forbidden", "viewer may not see this"),
        "GET /jobs/gone" => problem(404, "not_found", "there is no job gone"),
        "GET /jobs/odd" => {
            Reply::Raw("HTTP/1.1 502 X\r\ncontent-length: 5\r\n\r\n<odd>".to_owned())
        }
        "GET /jobs/html" => {
            Reply::Raw("HTTP/1.1 200 X\r\ncontent-length: 5\r\n\r\n<odd>".to_owned())
        }
        "GET /jobs/cut" => Reply::Raw("HTTP/1.1 200 X\r\ncontent-length: 50\r\n\r\n{".to_owned()),
        "POST /jobs/hello/enable" => problem(409, "conflict", "job hello has version 4, not 3"),
        "POST /jobs" => Reply::Json(
            422,
            json!({"code": "invalid_input", "field": "trigger.schedule.value", "hint": "try 5s",
                "detail": "every: found \"soon\", expected a duration"}),
        ),
        _ => problem(401, "unauthorized", "the token is not known"),
    });
    assert_snapshot!(fake.told(&["job", "show", "gone"]), @r"
    exit 1
    --
    error: there is no job gone
    ");
    assert_snapshot!(fake.told(&["job", "show", "secret"]), @r"
    exit 1
    --
    error: viewer may not see this

    hint: this token's role is too low: viewer < operator < author < admin
    ");
    assert_snapshot!(fake.told(&["job", "enable", "hello"]), @r"
    exit 1
    --
    error: job hello has version 4, not 3

    hint: it changed meanwhile and was left alone: look again, then decide
    ");
    assert_snapshot!(fake.told(&["job", "show", "anything"]), @r"
    exit 1
    --
    error: the token is not known

    hint: the token is wrong, expired or revoked: tasuki token create makes one, TASUKI_TOKEN or --token-file hand it over
    ");
    assert_snapshot!(fake.told(&["job", "create", "x", "--every", "soon", "--", "true"]), @r#"
    exit 1
    --
    error: trigger.schedule.value: every: found "soon", expected a duration

    hint: try 5s
    "#);
    assert_snapshot!(fake.told(&["job", "show", "gone", "--json"]), @r#"
    exit 1
    {
      "code": "not_found",
      "detail": "there is no job gone",
      "status": 404,
      "title": "not_found",
      "type": "/docs/errors#not_found"
    }
    --
    error: there is no job gone
    "#);
    for (name, expected) in
        [("odd", "answered 502"), ("html", "something else than JSON"), ("cut", "broke")]
    {
        let told = fake.told(&["job", "show", name]);
        assert!(told.starts_with("exit 1\n") && told.contains(expected), "{told}");
    }
}

#[test]
fn where_nothing_runs_the_way_there_is_told() {
    assert_snapshot!(told(tasuki(&["job", "list"]).env("TASUKI_DATA", "/nowhere/tasuki-data")), @r"
    exit 1
    --
    error: nothing runs in /nowhere/tasuki-data

    hint: tasuki up starts it; --url or TASUKI_URL name a server elsewhere
    ");
    let url = { std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let url = format!("http://{url}");
    let refused = told(tasuki(&["job", "list", "--url", &url]).env("TASUKI_TOKEN", "tsk_x"));
    assert_snapshot!(refused.replace(&url, "URL"), @r"
    exit 1
    --
    error: nothing answers at URL: Connection refused (os error 111)

    hint: is it running? tasuki up starts one; --url or TASUKI_URL name another
    ");
    assert_snapshot!(told(&mut tasuki(&["job", "list", "--url", "localhost:80"])), @r#"
    exit 2
    --
    error: "localhost:80" is not the address of a server

    hint: an address is http://HOST:PORT or https://HOST
    "#);
    assert_snapshot!(told(&mut tasuki(&["job", "list", "--url", "http://elsewhere.test"])), @r"
    exit 2
    --
    error: there is no token for http://elsewhere.test/

    hint: put it into TASUKI_TOKEN, or into a file and name that with --token-file
    ");
    assert_snapshot!(told(&mut tasuki(&["job", "list", "--token-file", "/nowhere"])), @r"
    exit 2
    --
    error: cannot read the token in /nowhere: No such file or directory (os error 2)
    ");
}

#[test]
fn the_token_of_the_data_directory_is_shown_to_its_own_server_only() {
    let fake = Fake::new(jobs);
    let other = Fake::new(jobs);
    let told = told(fake.tasuki(&["job", "show", "hello"]).env("TASUKI_URL", &other.url));
    assert!(told.starts_with("exit 2\n") && told.contains("there is no token for"), "{told}");
    assert!(other.asked().is_empty());
    assert!(fake.told(&["job", "show", "hello", "--url", &fake.url]).starts_with("exit 0\n"));
    let file = fake.folder.join("token");
    std::fs::write(&file, "tsk_mine\n").unwrap();
    fake.told(&["job", "show", "hello", "--token-file", file.to_str().unwrap()]);
    assert_eq!(fake.asked()[1].header("authorization"), "Bearer tsk_mine");
}
