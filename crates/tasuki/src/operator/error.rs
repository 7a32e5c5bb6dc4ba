//! The errors of the operator.

use std::fmt;

use tasuki_core::InvalidInput;
use tasuki_core::settings::SettingsProblem;
use tasuki_store::{CurrentSettings, Job};

use super::{LeaderInfo, RunOverview, WorkerInfo};

/// The error of an operator's query or action.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object does not exist.
    #[error("there is no {kind} {name}")]
    NotFound {
        /// The kind of object: `run`, `job`, …
        kind: &'static str,
        /// The name or id in the request.
        name: String,
    },
    /// An input is invalid. Nothing was stored.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// Setting values are invalid or break rules between settings. Nothing was stored.
    #[error("settings: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Settings(Vec<SettingsProblem>),
    /// Another job has this name already.
    #[error("a job named {0} already exists")]
    NameTaken(String),
    /// The action does not apply to the current state, or another request changed the object first. Nothing was stored.
    #[error("{message}")]
    Lost {
        /// Why the action was not possible.
        message: String,
        /// The current state of the object.
        current: Box<CurrentState>,
    },
    /// The store failed.
    #[error(transparent)]
    Store(tasuki_store::Error),
}

/// The current state of an object, for an action that was not possible.
#[derive(Debug)]
pub enum CurrentState {
    /// A job with its next fire.
    Job(super::JobWithNextFire),
    /// A run.
    Run(RunOverview),
    /// The settings.
    Settings(CurrentSettings),
    /// The leader.
    Leader(LeaderInfo),
    /// A worker.
    Worker(WorkerInfo),
    /// The object does not exist any more.
    Nothing,
}

impl Error {
    pub(super) fn not_found(kind: &'static str, name: &dyn fmt::Display) -> Self {
        Self::NotFound { kind, name: name.to_string() }
    }

    pub(super) fn lost(message: impl Into<String>, current: CurrentState) -> Self {
        Self::Lost { message: message.into(), current: Box::new(current) }
    }

    /// Whether the database was unavailable or busy. The caller may try the same request again.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_unavailable() || error.is_contention())
    }
}

impl From<tasuki_store::Error> for Error {
    fn from(error: tasuki_store::Error) -> Self {
        match error {
            tasuki_store::Error::InvalidInput(invalid) => Self::Invalid(invalid),
            tasuki_store::Error::InvalidSettings(problems) => Self::Settings(problems),
            other => Self::Store(other),
        }
    }
}

/// The message if a job was changed since the caller read it.
pub(super) fn job_changed_message(job: &Job) -> String {
    format!("job {} was changed by another request; its version is now {}", job.name, job.version)
}
