//! `tasuki completions`

use clap::{Args, Command};
use clap_complete::Shell;

use crate::output::Failure;

/// Print what teaches a shell to complete tasuki's commands
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki completions bash > ~/.local/share/bash-completion/completions/tasuki
  tasuki completions zsh > ~/.zfunc/_tasuki
  tasuki completions fish > ~/.config/fish/completions/tasuki.fish")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self, mut command: Command) -> Result<String, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "tasuki", &mut script);
        Ok(String::from_utf8_lossy(&script).into_owned())
    }
}
