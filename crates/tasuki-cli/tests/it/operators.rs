//! `tasuki worker`, `leader`, `setting`, `audit` and `token`, and the confirmation of commands that cannot be undone.

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use insta::assert_snapshot;
use nix::pty::openpty;
use serde_json::{Value, json};

use crate::fake_server::{FakeServer, Reply, Request, output_of, tasuki};

const WORKER: &str = "11111111-2222-4333-8444-555555555555";

fn worker(state: &str) -> Value {
    json!({"id": WORKER, "node": "機械1", "slots": 8, "function_slots": 256, "state": state,
        "heartbeat_at": "2020-01-01T00:00:00.000000Z", "draining_at": null, "detached_at": null,
        "leases": 2})
}

fn settings(renew: &str) -> Value {
    json!({"version": 4, "settings": {
        "lease_ttl": {"value": "30s", "default": "30s", "min": "1s", "max": "10m", "help": "How long a lease lasts."},
        "lease_renew": {"value": renew, "default": "3s", "min": "10ms", "max": "1m", "help": "How often."},
        "recovery_enabled": {"value": true, "default": true, "min": null, "max": null, "help": ""}}})
}

fn token(id: i64, revoked: Option<&str>) -> Value {
    json!({"id": id, "name": "ci", "role": "operator", "created_at": "2020-01-01T00:00:00Z",
        "created_by": "admin", "expires_at": "2099-01-01T00:00:00Z", "last_used_at": null,
        "revoked_at": revoked})
}

fn operators(request: &Request) -> Reply {
    let entry = |seq: i64| {
        json!({"seq": seq, "at": "2020-01-01T00:00:00Z", "actor": "花子", "action": "job.pause",
            "object": "job hello", "address": "127.0.0.1", "before": null, "after": null,
            "hash": format!("h{seq}")})
    };
    let leader = json!({"epoch": 3, "holder": WORKER, "lease_until": "2020-01-01T00:00:05Z",
        "clock": "2020-01-01T00:00:00Z", "terms": [
            {"epoch": 3, "holder": WORKER, "began_at": "2020-01-01T00:00:00Z"},
            {"epoch": 2, "holder": "gone", "began_at": "2019-12-31T00:00:00Z"}]});
    Reply::Json(
        200,
        match request.line.as_str() {
            "GET /workers" => json!({"items": [worker("active"), worker("draining")]}),
            "GET /workers/11111111-2222-4333-8444-555555555555" => worker("dead"),
            "POST /workers/11111111-2222-4333-8444-555555555555/drain" => worker("draining"),
            "POST /workers/11111111-2222-4333-8444-555555555555/detach" => worker("detached"),
            "GET /leader" | "POST /leader/demote" => leader,
            "GET /settings" => settings("3s"),
            "GET /settings/lease_ttl" => settings("3s")["settings"]["lease_ttl"].clone(),
            "PUT /settings" if request.body["lease_renew"] == "1s" => settings("1s"),
            "PUT /settings" => {
                return Reply::Json(
                    422,
                    json!({"code": "invalid_input", "detail": "these settings do not fit together",
                "problems": ["lease_ttl (30s) must be at least four times lease_renew (20s)"]}),
                );
            }
            "GET /audit?after=0&limit=1" => json!({"items": [entry(1)], "next": 1}),
            "GET /audit?after=0&limit=50" => json!({"items": [entry(1), entry(2)], "next": null}),
            "GET /audit?after=0&limit=200" => json!({"items": [entry(1)], "next": 1}),
            "GET /audit?after=1&limit=200" => json!({"items": [entry(2)], "next": null}),
            "GET /tokens" => {
                json!({"items": [token(1, None), token(2, Some("2020-02-01T00:00:00Z"))]})
            }
            "POST /tokens" => {
                let mut created = token(3, None);
                created["token"] = json!("tsk_abc");
                return Reply::Json(201, created);
            }
            "DELETE /tokens/1" => Value::Null,
            other => return Reply::Json(404, json!({"code": "not_found", "detail": other})),
        },
    )
}

#[test]
fn workers() {
    let fake = FakeServer::new(operators);
    assert_snapshot!(fake.output(&["worker", "list"]), @r"
    exit 0
    ID                                    STATE     NODE   LEASES  SLOTS  FUNCTION SLOTS  HEARTBEAT
    11111111-2222-4333-8444-555555555555  active    機械1  2       8      256             2020-01-01 00:00:00Z
    11111111-2222-4333-8444-555555555555  draining  機械1  2       8      256             2020-01-01 00:00:00Z
    ");
    assert_snapshot!(fake.output(&["worker", "show", WORKER]), @r"
    exit 0
    worker          11111111-2222-4333-8444-555555555555
    state           dead
    node            機械1
    leases          2
    slots           8
    function slots  256
    heartbeat       2020-01-01 00:00:00Z
    ");
    assert_snapshot!(fake.output(&["worker", "drain", WORKER]), @r"
    exit 0
    worker 11111111-2222-4333-8444-555555555555 is draining: it finishes its runs and receives no new ones
    ");
    assert_snapshot!(fake.output(&["worker", "detach", WORKER, "--yes", "--reason", "gone"]), @r"
    exit 0
    detached worker 11111111-2222-4333-8444-555555555555
    --
    this worker will be detached; it will get no new runs, and it will stop its running runs unless another node allows it to continue them. The worker:

    worker          11111111-2222-4333-8444-555555555555
    state           dead
    node            機械1
    leases          2
    slots           8
    function slots  256
    heartbeat       2020-01-01 00:00:00Z
    ");
    assert_eq!(fake.requests().last().unwrap().body, json!({"reason": "gone"}));
}

#[test]
fn the_leader() {
    let fake = FakeServer::new(operators);
    assert_snapshot!(fake.output(&["leader", "show"]), @r"
    exit 0
    leader       11111111-2222-4333-8444-555555555555
    epoch        3
    lease until  2020-01-01 00:00:05Z
    clock        2020-01-01 00:00:00Z

    EPOCH  LEADER                                STARTED
    3      11111111-2222-4333-8444-555555555555  2020-01-01 00:00:00Z
    2      gone                                  2019-12-31 00:00:00Z
    ");
    assert_snapshot!(fake.output(&["leader", "demote", "--yes", "--reason", "slow"]), @r"
    exit 0
    ended the term with epoch 3
    --
    this term will be ended, and the workers will elect a new leader:

    leader       11111111-2222-4333-8444-555555555555
    epoch        3
    lease until  2020-01-01 00:00:05Z
    clock        2020-01-01 00:00:00Z
    ");
    assert_eq!(fake.requests().last().unwrap().body, json!({"epoch": 3, "reason": "slow"}));
}

#[test]
fn settings_are_changed_together_for_the_read_version() {
    let fake = FakeServer::new(operators);
    assert_snapshot!(fake.output(&["setting", "list"]), @r"
    exit 0
    NAME              VALUE  DEFAULT  MIN   MAX
    lease_renew       3s     3s       10ms  1m
    lease_ttl         30s    30s      1s    10m
    recovery_enabled  true   true
    ");
    assert_snapshot!(fake.output(&["setting", "list", "--changed"]), @r"
    exit 0
    all settings have their default values
    ");
    assert_snapshot!(fake.output(&["setting", "get", "lease_ttl"]), @r"
    exit 0
    name     lease_ttl
    value    30s
    default  30s
    min      1s
    max      10m
             How long a lease lasts.
    ");
    assert_snapshot!(fake.output(&["setting", "set", "lease_renew=1s", "lease_ttl=30s"]), @r"
    exit 0
    lease_renew: 3s -> 1s
    lease_ttl: 30s (unchanged)
    ");
    let put = fake.requests().into_iter().find(|one| one.line == "PUT /settings").unwrap();
    assert_eq!(put.header("if-match"), "\"4\"");
    assert_eq!(put.body, json!({"lease_renew": "1s", "lease_ttl": "30s"}));
    assert_snapshot!(fake.output(&["setting", "set", "lease_renew=20s"]), @r"
    exit 1
    --
    error: these settings do not fit together
      lease_ttl (30s) must be at least four times lease_renew (20s)
    ");
    assert!(fake.output(&["setting", "set", "a=1", "a=2"]).contains("a is given twice"));
}

#[test]
fn the_audit() {
    let fake = FakeServer::new(operators);
    assert_snapshot!(fake.output(&["audit", "list"]), @r"
    exit 0
    SEQ  AT                    ACTOR  ADDRESS    ACTION     OBJECT
    1    2020-01-01 00:00:00Z  花子   127.0.0.1  job.pause  job hello
    2    2020-01-01 00:00:00Z  花子   127.0.0.1  job.pause  job hello
    ");
    assert_snapshot!(fake.output(&["audit", "head"]), @r"
    exit 0
    2 h2
    ");
}

#[test]
fn tokens_are_shown_once() {
    let fake = FakeServer::new(operators);
    assert_snapshot!(fake.output(&["token", "list"]), @r"
    exit 0
    ID  STATE    NAME  ROLE      CREATED               LAST USED  EXPIRES
    1   active   ci    operator  2020-01-01 00:00:00Z             2099-01-01 00:00:00Z
    2   revoked  ci    operator  2020-01-01 00:00:00Z             2099-01-01 00:00:00Z
    ");
    assert_snapshot!(fake.output(&["token", "create", "ci", "--role", "operator", "--expires-in", "30d"]), @r"
    exit 0
    tsk_abc
    --
    note: the token is shown only once; pass it to commands in TASUKI_TOKEN or --token-file
    ");
    assert_eq!(
        fake.requests()[1].body,
        json!({"name": "ci", "role": "operator", "expires_in": "30d"})
    );
    assert_snapshot!(fake.output(&["token", "revoke", "1", "--yes"]), @r"
    exit 0
    revoked token 1
    --
    this token will be revoked:

    ID  STATE   NAME  ROLE      CREATED               LAST USED  EXPIRES
    1   active  ci    operator  2020-01-01 00:00:00Z             2099-01-01 00:00:00Z
    ");
    assert_snapshot!(fake.output(&["token", "revoke", "9", "--yes"]), @r"
    exit 1
    --
    error: there is no token 9

    hint: `tasuki token list` shows all tokens
    ");
}

/// Without a terminal and without --yes, commands that cannot be undone change nothing.
#[test]
fn a_missing_confirmation_is_bad_usage() {
    let fake = FakeServer::new(operators);
    for arguments in
        [&["worker", "detach", WORKER][..], &["leader", "demote"], &["token", "revoke", "1"]]
    {
        let output = fake.output(arguments);
        assert!(
            output.starts_with("exit 2\n") && output.contains("nothing was changed"),
            "{output}"
        );
    }
    assert!(fake.lines().iter().all(|line| line.starts_with("GET ")), "{:?}", fake.lines());
}

/// Runs a command on a pseudo-terminal and types `answer`. Returns exit code and stdout.
fn run_with_answer(fake: &FakeServer, arguments: &[&str], answer: &str) -> (Option<i32>, String) {
    let terminal = openpty(None, None).unwrap();
    let mut command = fake.tasuki(arguments);
    command.stdin(Stdio::from(terminal.slave)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    drop(command); // closes our copy of the slave side
    std::fs::File::from(terminal.master.try_clone().unwrap()).write_all(answer.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("continue? [y/N] "));
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn only_yes_on_a_terminal_is_a_confirmation() {
    let fake = FakeServer::new(operators);
    for answer in ["n\n", "\n", "maybe\n"] {
        assert_eq!(
            run_with_answer(&fake, &["token", "revoke", "1"], answer),
            (Some(1), String::new())
        );
    }
    assert!(!fake.lines().contains(&"DELETE /tokens/1".to_owned()));
    let revoked = (Some(0), "revoked token 1\n".to_owned());
    assert_eq!(run_with_answer(&fake, &["token", "revoke", "1"], "y\n"), revoked);
}

/// States are coloured on a terminal, unless `NO_COLOR` is set.
#[test]
fn colours_are_used_on_terminals_only() {
    let fake = FakeServer::new(operators);
    let run_on_terminal = |variable: Option<&str>| {
        let terminal = openpty(None, None).unwrap();
        let mut command = fake.tasuki(&["worker", "list"]);
        command.env("TERM", "xterm").stdout(Stdio::from(terminal.slave));
        if let Some(variable) = variable {
            command.env(variable, "1");
        }
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut text = Vec::new();
        // Reading the terminal returns an error once the other side is closed.
        let _ = std::fs::File::from(terminal.master).read_to_end(&mut text);
        assert!(child.wait().unwrap().success());
        String::from_utf8(text).unwrap()
    };
    assert!(
        run_on_terminal(None).contains("\u{1b}[32mactive\u{1b}[0m"),
        "{:?}",
        run_on_terminal(None)
    );
    assert!(!run_on_terminal(Some("NO_COLOR")).contains('\u{1b}'));
}

#[test]
fn completions_for_each_shell() {
    for (shell, expected) in
        [("bash", "_tasuki()"), ("zsh", "#compdef tasuki"), ("fish", "complete -c tasuki")]
    {
        let output = output_of(&mut tasuki(&["completions", shell]));
        assert!(output.starts_with("exit 0\n") && output.contains(expected), "{shell}");
    }
}
