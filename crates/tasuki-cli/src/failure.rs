//! The result of every command: data on stdout, or a [`Failure`] (error, hint, exit code) on stderr.

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use tasuki_core::InvalidInput;

/// Why a command did not succeed: the error message, an optional hint and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Data that is printed on stdout in spite of the failure.
    stdout: String,
    message: String,
    hint: Option<String>,
    exit: u8,
    /// Whether the server received the request and refused it.
    refused_by_server: bool,
}

impl Failure {
    /// An argument has an invalid value (exit 2).
    pub(crate) fn invalid_input(invalid: &InvalidInput) -> Self {
        Self::bad_usage(invalid.to_string())
    }

    /// The command line is invalid (exit 2), described by `message`.
    pub(crate) fn bad_usage(message: impl Into<String>) -> Self {
        Self { exit: 2, ..Self::new(message) }
    }

    /// The command was refused or failed (exit 1).
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            stdout: String::new(),
            message: message.into(),
            hint: None,
            exit: 1,
            refused_by_server: false,
        }
    }

    /// The user pressed Ctrl-C while the command waited for a run that goes on without it (exit 130, the shell's
    /// convention for SIGINT).
    pub(crate) fn interrupted(message: impl Into<String>) -> Self {
        Self { exit: 130, ..Self::new(message) }
    }

    /// Marks the failure as a refusal by the server. The same request would be refused again, another one may succeed.
    pub(crate) fn mark_refused_by_server(self) -> Self {
        Self { refused_by_server: true, ..self }
    }

    pub(crate) fn is_refused_by_server(&self) -> bool {
        self.refused_by_server
    }

    /// The error message, without the hint.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Adds data that is printed on stdout before the error.
    pub(crate) fn with_stdout(self, stdout: String) -> Self {
        Self { stdout, ..self }
    }

    /// Adds a hint: the command or change that helps.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// Prints the outcome of a command and returns the exit code of the process.
pub(crate) fn print_outcome(outcome: Result<String, Failure>) -> ExitCode {
    match outcome {
        Ok(text) => print_stdout(&text),
        Err(failure) => {
            let _ = print_stdout(&failure.stdout);
            let _ = writeln!(io::stderr(), "error: {}", failure.message);
            if let Some(hint) = failure.hint {
                let _ = writeln!(io::stderr(), "\nhint: {hint}");
            }
            ExitCode::from(failure.exit)
        }
    }
}

fn print_stdout(text: &str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe, as in `tasuki … | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: cannot write to stdout: {error}");
            ExitCode::FAILURE
        }
    }
}
