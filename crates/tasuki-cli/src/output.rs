//! How every command ends: data on stdout, or an error with a hint on stderr.

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use tasuki_core::Invalid;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    exit: u8,
}

impl Failure {
    /// What was typed will not do (exit 2).
    pub(crate) fn usage(invalid: &Invalid) -> Self {
        Self { message: invalid.to_string(), hint: None, exit: 2 }
    }

    /// It could not be done (exit 1).
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, exit: 1 }
    }

    /// Adds what to do about it.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// Prints what a command has to say and turns it into an exit code.
pub(crate) fn finish(outcome: Result<String, Failure>) -> ExitCode {
    match outcome {
        Ok(text) => print(&text),
        Err(failure) => {
            eprintln!("error: {}", failure.message);
            if let Some(hint) = failure.hint {
                eprintln!("\nhint: {hint}");
            }
            ExitCode::from(failure.exit)
        }
    }
}

fn print(text: &str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has had enough: `tasuki … | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: cannot write to stdout: {error}");
            ExitCode::FAILURE
        }
    }
}
