//! Generates `docs/reference/cli.md`, the reference page of all commands, from their `--help` texts.
//!
//! `TASUKI_UPDATE_DOCS=1 ./test documents` rewrites the page; without the variable the test fails if it is outdated.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Command, CommandFactory as _};

use crate::Cli;

const PAGE: &str = "docs/reference/cli.md";

const PREFACE: &str = "\
# Commands

This page is generated from the `--help` texts.

Most commands are a noun followed by a verb. Data goes to stdout, everything else to stderr. Exit codes: 0 success,
1 refused or failed, 2 bad usage, 130 if Ctrl-C interrupts `run wait`, `job trigger`, `task submit` or `run rerun` while
the command waits for a run (the run itself continues). If Ctrl-C ends `run logs -f`, the exit code is 0. Colours are
used on terminals only, and not if `NO_COLOR` is set.

A command that uses the API takes the server and the token from the first of these sources that is set:

| | server | token |
|---|---|---|
| flag | `--url URL` | `--token-file FILE` |
| environment | `TASUKI_URL` | `TASUKI_TOKEN` |
| `api.json` in the data directory of a running node (`--data DIR`, else `TASUKI_DATA`, else `./tasuki-data`) | `url` | `token` |

The token in `api.json` is sent only to the server that the file names. Every command that uses the API has these
options, so they are not repeated below.
";

/// Collects the leaf commands (commands without subcommands) with their full names.
fn collect_commands(command: &Command, name: &str, found: &mut Vec<(String, Command)>) {
    let verbs = || command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    if verbs().next().is_none() {
        return found.push((name.to_owned(), command.clone()));
    }
    for verb in verbs().filter(|subcommand| subcommand.get_name() != "help") {
        collect_commands(verb, &format!("{name} {}", verb.get_name()), found);
    }
}

fn all_commands() -> Vec<(String, Command)> {
    let mut command = Cli::command().term_width(100);
    command.build();
    let mut found = Vec::new();
    collect_commands(&command, "tasuki", &mut found);
    found
}

#[test]
fn documents_the_command_reference_page_matches_help() {
    let mut page = PREFACE.to_owned();
    for (name, command) in all_commands() {
        let is_server_option = |arg: &clap::Arg| arg.get_help_heading() == Some("Server");
        let mut command =
            command.mut_args(|arg| if is_server_option(&arg) { arg.hide(true) } else { arg });
        let help = command.render_help().to_string();
        let lines = help.lines().map(|line| format!("{}\n", line.trim_end()));
        let help: String = lines.collect();
        write!(page, "\n## {name}\n\n```text\n{}\n```\n", help.trim())
            .expect("writing to a string does not fail");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    if std::env::var_os("TASUKI_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("the document can be written");
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "{PAGE} is outdated; TASUKI_UPDATE_DOCS=1 ./test documents rewrites it");
}

#[test]
fn every_command_has_examples_and_help_for_its_arguments() {
    for (name, command) in all_commands() {
        let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(examples.contains("Examples:\n  "), "{name} has no examples");
        for arg in command.get_arguments().filter(|arg| arg.get_id() != "help") {
            assert!(arg.get_help().is_some(), "{name}: {} has no help", arg.get_id());
        }
    }
}

/// Every example in a help text parses as a command.
#[test]
fn every_example_parses_as_a_command() {
    let command = Cli::command();
    let mut checked = 0;
    for (name, verb) in all_commands() {
        let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = help.split("Examples:\n").nth(1).unwrap_or_default();
        let examples = examples.split("\n\n").next().unwrap_or_default();
        for line in examples.lines() {
            // Only the tasuki command, without pipes and redirections.
            let Some((_, input)) = line.split_once("tasuki ") else { continue };
            let words = split_shell_words(input);
            let outcome =
                command.clone().try_get_matches_from([&["tasuki".to_owned()], &words[..]].concat());
            assert!(outcome.is_ok(), "{name}: {line}: {}", outcome.unwrap_err());
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} examples were found");
}

/// Splits a line into words as a shell does, up to a pipe or a redirection.
fn split_shell_words(input: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut in_quotes = false;
    for c in input.chars() {
        let last = words.last_mut().expect("there is always one");
        match c {
            '\'' => in_quotes = !in_quotes,
            ' ' if !in_quotes => words.push(String::new()),
            c => last.push(c),
        }
    }
    let is_argument = |word: &&String| !matches!(word.as_str(), "|" | "&&") && !word.contains('>');
    words.iter().take_while(is_argument).filter(|word| !word.is_empty()).cloned().collect()
}
