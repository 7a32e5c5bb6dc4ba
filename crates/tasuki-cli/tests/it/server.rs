//! Selection of server and token, and the messages when the server refuses a request or is unreachable.

use insta::assert_snapshot;
use serde_json::json;

use crate::fake_server::{FakeServer, Reply, output_of, tasuki};
use crate::jobs::{jobs, problem};

#[test]
fn refusals_show_the_message_of_the_server() {
    let fake = FakeServer::new(|request| match request.line.as_str() {
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
    assert_snapshot!(fake.output(&["job", "show", "gone"]), @r"
    exit 1
    --
    error: there is no job gone
    ");
    assert_snapshot!(fake.output(&["job", "show", "secret"]), @r"
    exit 1
    --
    error: viewer may not see this

    hint: the role of this token is too low; roles in ascending order: viewer, operator, author, admin
    ");
    assert_snapshot!(fake.output(&["job", "enable", "hello"]), @r"
    exit 1
    --
    error: job hello has version 4, not 3

    hint: this command changed nothing, because another request changed the object first, or because the state of the object does not allow this action; check the state before you repeat the command
    ");
    assert_snapshot!(fake.output(&["job", "show", "anything"]), @r"
    exit 1
    --
    error: the token is not known

    hint: the token is unknown, expired or revoked; create one with `tasuki token create` and pass it in TASUKI_TOKEN or --token-file
    ");
    assert_snapshot!(fake.output(&["job", "create", "x", "--every", "soon", "--", "true"]), @r#"
    exit 1
    --
    error: trigger.schedule.value: every: found "soon", expected a duration

    hint: try 5s
    "#);
    assert_snapshot!(fake.output(&["job", "show", "gone", "--json"]), @r#"
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
        [("odd", "responded with 502"), ("html", "is not JSON"), ("cut", "broke")]
    {
        let output = fake.output(&["job", "show", name]);
        assert!(output.starts_with("exit 1\n") && output.contains(expected), "{output}");
    }
}

#[test]
fn hints_explain_how_to_select_server_and_token() {
    assert_snapshot!(output_of(tasuki(&["job", "list"]).env("TASUKI_DATA", "/nowhere/tasuki-data")), @r"
    exit 1
    --
    error: no server is running with data directory /nowhere/tasuki-data

    hint: start one with `tasuki up`, or select another server with --url or TASUKI_URL
    ");
    let url = { std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let url = format!("http://{url}");
    let refused = output_of(tasuki(&["job", "list", "--url", &url]).env("TASUKI_TOKEN", "tsk_x"));
    assert_snapshot!(refused.replace(&url, "URL"), @r"
    exit 1
    --
    error: cannot connect to URL: Connection refused (os error 111)

    hint: check that the server is running; `tasuki up` starts a server, --url or TASUKI_URL selects another server
    ");
    assert_snapshot!(output_of(&mut tasuki(&["job", "list", "--url", "localhost:80"])), @r#"
    exit 2
    --
    error: "localhost:80" is not the URL of a server

    hint: a URL is http://HOST:PORT or https://HOST
    "#);
    assert_snapshot!(output_of(&mut tasuki(&["job", "list", "--url", "http://elsewhere.test"])), @r"
    exit 2
    --
    error: there is no token for http://elsewhere.test/

    hint: set TASUKI_TOKEN, or store the token in a file and pass --token-file FILE
    ");
    assert_snapshot!(output_of(&mut tasuki(&["job", "list", "--token-file", "/nowhere"])), @r"
    exit 2
    --
    error: cannot read the token in /nowhere: No such file or directory (os error 2)
    ");
}

#[test]
fn the_token_of_the_data_directory_is_sent_to_its_own_server_only() {
    let fake = FakeServer::new(jobs);
    let other = FakeServer::new(jobs);
    let output = output_of(fake.tasuki(&["job", "show", "hello"]).env("TASUKI_URL", &other.url));
    assert!(output.starts_with("exit 2\n") && output.contains("there is no token for"), "{output}");
    assert!(other.requests().is_empty());
    assert!(fake.output(&["job", "show", "hello", "--url", &fake.url]).starts_with("exit 0\n"));
    let file = fake.folder.join("token");
    std::fs::write(&file, "tsk_mine\n").unwrap();
    fake.output(&["job", "show", "hello", "--token-file", file.to_str().unwrap()]);
    assert_eq!(fake.requests()[1].header("authorization"), "Bearer tsk_mine");
}
