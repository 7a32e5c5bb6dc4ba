//! The hands of a node: commands and functions behind one face.

use std::time::Duration;

use tasuki_core::LeaseToken;
use tasuki_core::exit::Stopped;
use tasuki_core::job_spec::WorkKind;

use super::attempt::{Attempt, Executor};
use super::commands::Commands;
use super::functions::Calls;
use crate::spawner::JobKey;

/// What a node can do.
pub(crate) struct Hands {
    pub(crate) commands: Option<Commands>,
    pub(crate) calls: Calls,
}

impl Hands {
    /// What runs this attempt, if that is a process.
    fn spawns(&self, attempt: &Attempt) -> Option<&Commands> {
        let spawned = matches!(attempt.recipe.work.kind(), WorkKind::Command | WorkKind::Django);
        self.commands.as_ref().filter(|_| spawned)
    }

    /// Lets everything go.
    pub(crate) fn end(&self) {
        self.commands.iter().for_each(Commands::end);
    }
}

impl Executor for Hands {
    fn lease(&self, token: LeaseToken, until: u64) {
        if let Some(commands) = &self.commands {
            commands.lease(token, until);
        }
    }

    fn launch(&self, attempt: Attempt) {
        match self.spawns(&attempt) {
            Some(commands) => commands.launch(attempt),
            // Also a command on a node without a spawner, which then says that it has no such function.
            None => self.calls.launch(attempt),
        }
    }

    fn launch_all(&self, attempts: Vec<Attempt>) {
        // Functions are many, and mostly by themselves.
        if !attempts.iter().any(|attempt| self.spawns(attempt).is_some()) {
            return self.calls.launch_all(attempts);
        }
        let (to_spawn, to_call): (Vec<_>, Vec<_>) =
            attempts.into_iter().partition(|attempt| self.spawns(attempt).is_some());
        if let Some(commands) = &self.commands {
            commands.launch_all(to_spawn);
        }
        self.calls.launch_all(to_call);
    }

    fn stop(&self, key: JobKey, why: Stopped, grace: Duration) {
        if let Some(commands) = &self.commands {
            commands.stop(key, why, grace);
        }
        self.calls.stop(key, why, grace);
    }

    fn forget(&self, key: JobKey) {
        if let Some(commands) = &self.commands {
            commands.forget(key);
        }
        self.calls.forget(key);
    }

    fn forget_all(&self, keys: &[JobKey]) {
        if let Some(commands) = &self.commands {
            commands.forget_all(keys);
        }
        self.calls.forget_all(keys);
    }
}
