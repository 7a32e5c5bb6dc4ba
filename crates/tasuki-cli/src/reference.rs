//! The page of all commands, `docs/reference/cli.md`, is what `--help` says.
//!
//! `TASUKI_UPDATE_DOCS=1 ./test documents` writes it anew.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Command, CommandFactory as _};

use crate::Cli;

const PAGE: &str = "docs/reference/cli.md";

const PREFACE: &str = "\
# Commands

This page is written by a test from what `--help` says.

Noun, then verb. Data goes to stdout, everything else to stderr. Exit 0 is done, 1 is refused or
failed, 2 is bad usage; 130 is Ctrl-C while waiting for something that goes on. Colour appears on a
terminal only, and not with `NO_COLOR`.

Commands that go through a server find it like this, the first that is there:

| | address | token |
|---|---|---|
| flag | `--url URL` | `--token-file FILE` |
| environment | `TASUKI_URL` | `TASUKI_TOKEN` |
| what `tasuki up` left in its data directory (`--data DIR`, `TASUKI_DATA`, `./tasuki-data`) | `api.json` | `api.json` |

The token in `api.json` is shown to the server named there and to no other. These flags go with every
such command and are left out below.
";

/// The commands that do something, with their full names.
fn leaves(command: &Command, name: &str, found: &mut Vec<(String, Command)>) {
    let verbs = || command.get_subcommands().filter(|one| !one.is_hide_set());
    if verbs().next().is_none() {
        return found.push((name.to_owned(), command.clone()));
    }
    for verb in verbs().filter(|one| one.get_name() != "help") {
        leaves(verb, &format!("{name} {}", verb.get_name()), found);
    }
}

fn all() -> Vec<(String, Command)> {
    let mut command = Cli::command().term_width(100);
    command.build();
    let mut found = Vec::new();
    leaves(&command, "tasuki", &mut found);
    found
}

#[test]
fn documents_the_page_of_commands_is_what_help_says() {
    let mut page = PREFACE.to_owned();
    for (name, command) in all() {
        let is_of_server = |arg: &clap::Arg| arg.get_help_heading() == Some("Server");
        let mut command =
            command.mut_args(|arg| if is_of_server(&arg) { arg.hide(true) } else { arg });
        let help = command.render_help().to_string();
        let lines = help.lines().map(|line| format!("{}\n", line.trim_end()));
        let help: String = lines.collect();
        write!(page, "\n## {name}\n\n```text\n{}\n```\n", help.trim()).expect("a string takes all");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    if std::env::var_os("TASUKI_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("the document can be written");
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "{PAGE} no longer says what the code says; TASUKI_UPDATE_DOCS=1 ./test documents writes it anew"
    );
}

#[test]
fn every_verb_shows_examples_and_says_what_its_arguments_are() {
    for (name, command) in all() {
        let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(examples.contains("Examples:\n  "), "{name} has no examples");
        for arg in command.get_arguments().filter(|arg| arg.get_id() != "help") {
            assert!(arg.get_help().is_some(), "{name}: {} has no help", arg.get_id());
        }
    }
}

/// What an example shows can be typed: it reads as a command.
#[test]
fn every_example_reads_as_a_command() {
    let command = Cli::command();
    let mut read = 0;
    for (name, verb) in all() {
        let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = help.split("Examples:\n").nth(1).unwrap_or_default();
        let examples = examples.split("\n\n").next().unwrap_or_default();
        for line in examples.lines() {
            // The command that is ours, without what the shell does with it.
            let Some((_, typed)) = line.split_once("tasuki ") else { continue };
            let words = words(typed);
            let outcome =
                command.clone().try_get_matches_from([&["tasuki".to_owned()], &words[..]].concat());
            assert!(outcome.is_ok(), "{name}: {line}: {}", outcome.unwrap_err());
            read += 1;
        }
    }
    assert!(read > 50, "only {read} examples were found");
}

/// Words as a shell would make them, up to a pipe or a redirection.
fn words(typed: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in typed.chars() {
        let last = words.last_mut().expect("there is always one");
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => last.push(c),
        }
    }
    let ours = |word: &&String| !matches!(word.as_str(), "|" | "&&") && !word.contains('>');
    words.iter().take_while(ours).filter(|word| !word.is_empty()).cloned().collect()
}
