//! Why something was not done.

use std::fmt;

use tasuki_core::Invalid;
use tasuki_core::settings::Problem;
use tasuki_store::{Job, SettingsInForce};

use super::{Lead, RunNow, WorkerNow};

/// Why an operator was refused or not answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such thing.
    #[error("there is no {what} {name}")]
    NotFound {
        /// `run`, `job`, …
        what: &'static str,
        /// As it was asked for.
        name: String,
    },
    /// What was given will not do. Nothing was stored.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Settings that are not right, one by one or together. Nothing was stored.
    #[error("settings: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Settings(Vec<Problem>),
    /// Another job has this name.
    #[error("there is a job {0} already")]
    NameTaken(String),
    /// Somebody else was first, or it cannot be done to what is there now. Nothing was stored.
    #[error("{what}")]
    Lost {
        /// What stood in the way.
        what: String,
        /// What is true now.
        current: Box<Current>,
    },
    /// The store could not answer.
    #[error(transparent)]
    Store(tasuki_store::Error),
}

/// What is true now, where something else was expected.
#[derive(Debug)]
pub enum Current {
    /// A definition, with its next fire.
    Job(super::JobNow),
    /// A run.
    Run(RunNow),
    /// The settings.
    Settings(SettingsInForce),
    /// Who leads.
    Lead(Lead),
    /// A worker.
    Worker(WorkerNow),
    /// It is gone.
    Nothing,
}

impl Error {
    pub(super) fn not_found(what: &'static str, name: &dyn fmt::Display) -> Self {
        Self::NotFound { what, name: name.to_string() }
    }

    pub(super) fn lost(what: impl Into<String>, current: Current) -> Self {
        Self::Lost { what: what.into(), current: Box::new(current) }
    }

    /// Whether the database was away or busy: the same may be asked again.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_unavailable() || error.is_contention())
    }
}

impl From<tasuki_store::Error> for Error {
    fn from(error: tasuki_store::Error) -> Self {
        match error {
            tasuki_store::Error::Invalid(invalid) => Self::Invalid(invalid),
            tasuki_store::Error::Settings(problems) => Self::Settings(problems),
            other => Self::Store(other),
        }
    }
}

/// What a lost change of a job says.
pub(super) fn changed_since(job: &Job) -> String {
    format!("job {} has been changed: it is at version {} now", job.name, job.version)
}
