//! A disk that is full, and then is not.

use std::process::Command;

use crate::up::{Place, Up, until};

/// A process that is told of a write that cannot be, instead of dying of it.
fn told_of_it(command: &Command) -> Command {
    let mut told = Command::new("sh");
    told.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    told.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => told.env(name, value),
            None => told.env_remove(name),
        };
    }
    told
}

/// From now on no file of this process grows beyond this.
fn limit(up: &Up, bytes: &str) {
    let pid = up.child.id().to_string();
    let set = Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={bytes}:")]).status();
    assert!(set.unwrap().success());
}

fn succeeded(place: &Place) -> Vec<i64> {
    let runs = place.json(&["run", "list", "--state", "SUCCEEDED"]);
    runs["items"].as_array().unwrap().iter().map(|run| run["id"].as_i64().unwrap()).collect()
}

#[test]
fn a_node_whose_disk_was_full_goes_on_when_there_is_room() {
    let place = Place::new();
    let up = place.up_by(told_of_it(&place.up_command("127.0.0.1:0")));
    place.tasuki(&["job", "create", "hello", "--every", "1s", "--", "echo", "hi"]);
    until("it runs", || (!succeeded(&place).is_empty()).then_some(()));
    limit(&up, "4096");
    until("the node cannot write", || {
        let log = std::fs::read_to_string(place.folder.join("up.log")).unwrap();
        log.contains("could not be done now").then_some(())
    });
    let refused = place.command(&["job", "create", "other", "--", "true"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let before = succeeded(&place);
    limit(&up, "unlimited");
    until("it runs again", || {
        succeeded(&place).iter().any(|run| !before.contains(run)).then_some(())
    });
    place.tasuki(&["job", "create", "other", "--", "true"]);
    up.stop();
    place.doctor_is_content();
    place.end();
}

/// Nobody reads any more what the node has to say, and it has a lot to say.
#[test]
fn a_node_that_nobody_listens_to_goes_on() {
    let place = Place::new();
    let up = place.up_unheard(told_of_it(&place.up_command("127.0.0.1:0")));
    place.tasuki(&["job", "create", "hello", "--every", "1s", "--", "echo", "hi"]);
    until("it runs", || (!succeeded(&place).is_empty()).then_some(()));
    limit(&up, "4096");
    until("the node cannot write", || {
        let refused = place.command(&["event", "emit", "x"]).output().unwrap();
        (refused.status.code() == Some(1)).then_some(())
    });
    let before = succeeded(&place);
    limit(&up, "unlimited");
    until("it runs again", || {
        succeeded(&place).iter().any(|run| !before.contains(run)).then_some(())
    });
    up.stop();
    place.doctor_is_content();
    place.end();
}
