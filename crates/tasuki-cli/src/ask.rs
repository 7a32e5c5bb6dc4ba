//! Before something is done that cannot be undone: what it touches, and a question.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use clap::Args;

use crate::output::Failure;

/// How the question is answered beforehand.
#[derive(Args)]
pub(crate) struct Consent {
    /// Do not ask
    #[arg(long, short = 'y')]
    yes: bool,
}

impl Consent {
    /// Shows what will be touched and asks. Anything but yes leaves everything as it is.
    pub(crate) fn ask(&self, touched: &str) -> Result<(), Failure> {
        eprint!("{touched}");
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(Failure::bad_usage("nobody is there to be asked, so nothing was done")
                .hint("--yes does it without asking"));
        }
        eprint!("go ahead? [y/N] ");
        let _ = io::stderr().flush();
        let mut answer = String::new();
        let _ = io::stdin().lock().read_line(&mut answer);
        match answer.trim().to_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Failure::refused("nothing was done")),
        }
    }
}
