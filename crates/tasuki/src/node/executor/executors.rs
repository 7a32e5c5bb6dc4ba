//! The executors of a node: commands and functions behind one [`Executor`].

use std::time::Duration;

use tasuki_core::LeaseToken;
use tasuki_core::exit::AttemptStopReason;
use tasuki_core::work_spec::WorkKind;

use super::attempt_input_and_result::{Attempt, Executor};
use super::commands::CommandExecutor;
use super::functions::FunctionExecutor;
use crate::spawner::AttemptKey;

/// The executors of a node.
pub(crate) struct Executors {
    pub(crate) commands: Option<CommandExecutor>,
    pub(crate) functions: FunctionExecutor,
}

impl Executors {
    /// The executor of commands, if this attempt is a command and the node has one.
    fn command_executor(&self, attempt: &Attempt) -> Option<&CommandExecutor> {
        let spawned = matches!(attempt.job.work.kind(), WorkKind::Command | WorkKind::Django);
        self.commands.as_ref().filter(|_| spawned)
    }

    /// Ends the spawner and everything that it runs.
    pub(crate) fn shut_down(&self) {
        self.commands.iter().for_each(CommandExecutor::shut_down);
    }
}

impl Executor for Executors {
    fn set_lease_deadline(&self, token: LeaseToken, until: u64) {
        if let Some(commands) = &self.commands {
            commands.set_lease_deadline(token, until);
        }
    }

    fn launch(&self, attempt: Attempt) {
        match self.command_executor(&attempt) {
            Some(commands) => commands.launch(attempt),
            // Also a command on a node without a spawner: the executor of functions refuses it.
            None => self.functions.launch(attempt),
        }
    }

    fn launch_all(&self, attempts: Vec<Attempt>) {
        // The common case, many functions and no command, needs no partition.
        if !attempts.iter().any(|attempt| self.command_executor(attempt).is_some()) {
            return self.functions.launch_all(attempts);
        }
        let (command_attempts, function_attempts): (Vec<_>, Vec<_>) =
            attempts.into_iter().partition(|attempt| self.command_executor(attempt).is_some());
        if let Some(commands) = &self.commands {
            commands.launch_all(command_attempts);
        }
        self.functions.launch_all(function_attempts);
    }

    fn stop(&self, key: AttemptKey, why: AttemptStopReason, grace: Duration) {
        if let Some(commands) = &self.commands {
            commands.stop(key, why, grace);
        }
        self.functions.stop(key, why, grace);
    }

    fn forget(&self, key: AttemptKey) {
        if let Some(commands) = &self.commands {
            commands.forget(key);
        }
        self.functions.forget(key);
    }

    fn forget_all(&self, keys: &[AttemptKey]) {
        if let Some(commands) = &self.commands {
            commands.forget_all(keys);
        }
        self.functions.forget_all(keys);
    }
}
