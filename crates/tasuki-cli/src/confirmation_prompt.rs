//! Confirmation of commands that cannot be undone: shows what they change and waits for a yes.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use clap::Args;

use crate::failure::Failure;

/// The `--yes` flag and the confirmation prompt.
#[derive(Args)]
pub(crate) struct Confirmation {
    /// Skip the confirmation
    #[arg(long, short = 'y')]
    yes: bool,
}

impl Confirmation {
    /// Prints `summary` on stderr and waits for a confirmation. Any answer but yes is a failure, and nothing is changed.
    pub(crate) fn require(&self, summary: &str) -> Result<(), Failure> {
        eprint!("{summary}");
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            let message = "this needs a confirmation, and standard input is not a terminal; nothing was changed";
            return Err(Failure::bad_usage(message).hint("pass --yes to skip the confirmation"));
        }
        eprint!("continue? [y/N] ");
        let _ = io::stderr().flush();
        let mut answer = String::new();
        let _ = io::stdin().lock().read_line(&mut answer);
        match answer.trim().to_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Failure::new("not confirmed; nothing was changed")),
        }
    }
}
