//! `tasuki completions`: prints a shell completion script.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Failure;

/// Print a completion script for a shell
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki completions bash > ~/.local/share/bash-completion/completions/tasuki
  tasuki completions zsh > ~/.zfunc/_tasuki
  tasuki completions fish > ~/.config/fish/completions/tasuki.fish")]
pub(crate) struct CompletionsCommand {
    /// Shell
    shell: Shell,
}

impl CompletionsCommand {
    pub(crate) fn run(&self, mut command: Command) -> Result<String, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "tasuki", &mut script);
        Ok(String::from_utf8_lossy(&script).into_owned())
    }
}
