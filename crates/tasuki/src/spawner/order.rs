//! What a worker and its spawner say to each other.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tasuki_core::exit::Stopped;

/// One attempt of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobKey {
    /// Of which run.
    pub run: i64,
    /// Which attempt.
    pub attempt: u32,
}

/// What a worker asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Order {
    /// This lease lasts until then, by the clock of [`boottime`](super::boottime). Counted from before
    /// the renewal was sent.
    Lease {
        /// Which.
        token: String,
        /// Until when.
        until: u64,
    },
    /// Run this. Unless the spawner is to capture them, its output and its errors travel with the order, as
    /// two open files.
    Start(Launch),
    /// How it ended is known where it has to be: nothing of it needs to be kept any more.
    Forget {
        /// What.
        job: JobKey,
    },
    /// TERM now, KILL after the grace.
    Stop {
        /// What.
        job: JobKey,
        /// Why; the first reason counts.
        why: Stopped,
        /// How long it may take to end by itself, in microseconds.
        grace: u64,
    },
}

/// A command to run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Launch {
    /// What it is.
    pub job: JobKey,
    /// Under which lease.
    pub token: String,
    /// The program and its arguments; no shell.
    pub argv: Vec<String>,
    /// Its whole environment.
    pub env: Vec<(String, String)>,
    /// Where it runs.
    pub directory: Option<PathBuf>,
    /// Where to write how it ended, should nobody want to forget it soon.
    pub record: Option<PathBuf>,
    /// Where it may write its result: told with that.
    pub result: Option<PathBuf>,
    /// Whether the spawner makes the pipes that it prints to.
    pub captured: bool,
}

impl Default for JobKey {
    fn default() -> Self {
        Self { run: 0, attempt: 1 }
    }
}

/// What a spawner tells.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// Nothing of an earlier spawner is left, and orders are obeyed.
    Ready,
    /// It runs.
    Started {
        /// What.
        job: JobKey,
        /// Its process.
        pid: u32,
    },
    /// It does not run, and never did.
    Refused {
        /// What.
        job: JobKey,
        /// Why.
        why: Refusal,
    },
    /// What it prints, where that is captured and either long or not yet at its end.
    Prints {
        /// What.
        job: JobKey,
        /// The pipes of its output and its errors, to be read from now on. They travel beside the message.
        #[serde(skip)]
        from: Vec<OwnedFd>,
    },
    /// It has ended, and nothing of it is left.
    Ended {
        /// What.
        job: JobKey,
        /// How.
        exit: Exit,
        /// All that it printed, where that is captured and was not handed over before.
        printed: Option<Printed>,
    },
}

/// What a command printed that was soon over and said little.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printed {
    /// Its output.
    pub output: Text,
    /// Its errors.
    pub errors: Text,
}

/// Bytes, which mostly are text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Text {
    /// They are.
    Utf8(String),
    /// They are not.
    Bytes(Vec<u8>),
}

impl Default for Text {
    fn default() -> Self {
        Self::Utf8(String::new())
    }
}

impl From<Vec<u8>> for Text {
    fn from(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Utf8)
    }
}

impl Text {
    /// As they were printed.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Utf8(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Why something was not started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Its lease has passed, or was never told of.
    Lease,
    /// It runs already.
    Doubled,
    /// There is no such program, or no such directory.
    NotFound(String),
    /// What there is cannot be run.
    Unfit(String),
    /// It could not be done now: too many open files, no memory, a program that is being written.
    Unable(String),
}

impl Refusal {
    /// Why an attempt to run `what` failed.
    pub fn from_error(what: &str, error: &io::Error) -> Self {
        use rustix::io::Errno;
        let why = format!("{what}: {error}");
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT | Errno::NOTDIR) => Self::NotFound(why),
            Some(Errno::ACCESS | Errno::PERM | Errno::NOEXEC | Errno::TOOBIG | Errno::ISDIR) => {
                Self::Unfit(why)
            }
            _ => Self::Unable(why),
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Its exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether its lease ended first.
    pub lease_passed: bool,
    /// Why it was told to stop, if it was.
    pub stopped: Option<Stopped>,
}
