//! A node whose disk is full for a while, simulated by a file size limit.

use std::process::Command;

use crate::up::{RunningNode, TestDirectory, wait_until};

/// Wraps a command so that it ignores SIGXFSZ: a write beyond the limit fails instead of killing the process.
fn ignoring_xfsz(command: &Command) -> Command {
    let mut wrapped = Command::new("sh");
    wrapped.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    wrapped.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}

/// Sets the maximum file size of a running node.
fn limit_file_size(node: &RunningNode, bytes: &str) {
    let pid = node.child.id().to_string();
    let set = Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={bytes}:")]).status();
    assert!(set.unwrap().success());
}

fn list_succeeded(directory: &TestDirectory) -> Vec<i64> {
    let runs = directory.json(&["run", "list", "--state", "SUCCEEDED"]);
    runs["items"].as_array().unwrap().iter().map(|run| run["id"].as_i64().unwrap()).collect()
}

#[test]
fn a_node_continues_after_its_disk_was_full() {
    let directory = TestDirectory::new();
    let node = directory.start_with(ignoring_xfsz(&directory.up_command("127.0.0.1:0")));
    directory.tasuki(&["job", "create", "hello", "--every", "1s", "--", "echo", "hi"]);
    wait_until("the job runs", || (!list_succeeded(&directory).is_empty()).then_some(()));
    limit_file_size(&node, "4096");
    wait_until("the node cannot write", || {
        let log = std::fs::read_to_string(directory.folder.join("up.log")).unwrap();
        log.contains("a tick failed; it is retried").then_some(())
    });
    let refused = directory.command(&["job", "create", "other", "--", "true"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let before = list_succeeded(&directory);
    limit_file_size(&node, "unlimited");
    wait_until("the job runs again", || {
        list_succeeded(&directory).iter().any(|run| !before.contains(run)).then_some(())
    });
    directory.tasuki(&["job", "create", "other", "--", "true"]);
    node.stop();
    directory.expect_healthy_database();
    directory.remove();
}

/// The pipe at the node's stderr is closed, and the node logs many errors.
#[test]
fn a_node_continues_when_its_stderr_is_closed() {
    let directory = TestDirectory::new();
    let node =
        directory.start_with_closed_stderr(ignoring_xfsz(&directory.up_command("127.0.0.1:0")));
    directory.tasuki(&["job", "create", "hello", "--every", "1s", "--", "echo", "hi"]);
    wait_until("the job runs", || (!list_succeeded(&directory).is_empty()).then_some(()));
    limit_file_size(&node, "4096");
    wait_until("the node cannot write", || {
        let refused = directory.command(&["event", "emit", "x"]).output().unwrap();
        (refused.status.code() == Some(1)).then_some(())
    });
    let before = list_succeeded(&directory);
    limit_file_size(&node, "unlimited");
    wait_until("the job runs again", || {
        list_succeeded(&directory).iter().any(|run| !before.contains(run)).then_some(())
    });
    node.stop();
    directory.expect_healthy_database();
    directory.remove();
}
