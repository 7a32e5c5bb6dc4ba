//! How every command ends: data on stdout, or an error with a hint on stderr.

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use tasuki_core::Invalid;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What it has to say nevertheless, on stdout.
    data: String,
    message: String,
    hint: Option<String>,
    exit: u8,
    /// The server heard it and said no.
    by_the_server: bool,
}

impl Failure {
    /// What was typed will not do (exit 2).
    pub(crate) fn usage(invalid: &Invalid) -> Self {
        Self::bad_usage(invalid.to_string())
    }

    /// As `usage`, in words of one's own.
    pub(crate) fn bad_usage(message: impl Into<String>) -> Self {
        Self { exit: 2, ..Self::refused(message) }
    }

    /// It was refused or failed (exit 1).
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self {
            data: String::new(),
            message: message.into(),
            hint: None,
            exit: 1,
            by_the_server: false,
        }
    }

    /// Somebody pressed Ctrl-C while we waited for something that goes on without us (exit 130, as
    /// a shell counts it).
    pub(crate) fn interrupted(message: impl Into<String>) -> Self {
        Self { exit: 130, ..Self::refused(message) }
    }

    /// The server heard it and said no: asking again will not help, asking for something else may.
    pub(crate) fn by_the_server(self) -> Self {
        Self { by_the_server: true, ..self }
    }

    pub(crate) fn is_refusal(&self) -> bool {
        self.by_the_server
    }

    /// What happened, in words.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Adds what is to be printed on stdout first.
    pub(crate) fn after(self, data: String) -> Self {
        Self { data, ..self }
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
            let _ = print(&failure.data);
            let _ = writeln!(io::stderr(), "error: {}", failure.message);
            if let Some(hint) = failure.hint {
                let _ = writeln!(io::stderr(), "\nhint: {hint}");
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
            let _ = writeln!(io::stderr(), "error: cannot write to stdout: {error}");
            ExitCode::FAILURE
        }
    }
}
