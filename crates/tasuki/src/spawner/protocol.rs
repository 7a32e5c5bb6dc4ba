//! Messages between a worker and its spawner process.
//!
//! The names in the JSON (`serde(rename)`) stay as they are: a worker and a spawner of different versions may talk to
//! each other during an upgrade, and exit records on disk use the same names.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tasuki_core::exit::AttemptStopReason;

/// Identifies one attempt of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttemptKey {
    /// Id of the run.
    pub run: i64,
    /// Number of the attempt, from 1.
    pub attempt: u32,
}

/// A request of a worker to its spawner.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum SpawnerRequest {
    /// Sets the deadline of a lease. The spawner kills everything that runs under a lease whose deadline has passed.
    Lease {
        /// Token of the lease, in hexadecimal.
        token: String,
        /// The deadline, by the clock of [`boottime`](super::boottime), in microseconds. The worker counts it from
        /// before it sent the renewal.
        until: u64,
    },
    /// Starts a command. Unless the spawner captures the output, the message carries two open files for stdout and
    /// stderr.
    Start(LaunchSpec),
    /// Acknowledges the exit of an attempt: its result is in the database, so the spawner deletes the exit record.
    Forget {
        /// The attempt that has ended.
        #[serde(rename = "job")]
        key: AttemptKey,
    },
    /// Sends SIGTERM now, and SIGKILL after the grace.
    Stop {
        /// The attempt to stop.
        #[serde(rename = "job")]
        key: AttemptKey,
        /// Why it is stopped. If several requests name the same attempt, the first reason counts.
        why: AttemptStopReason,
        /// Time between SIGTERM and SIGKILL, in microseconds.
        grace: u64,
    },
}

/// A command to start, with everything that the spawner needs for it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LaunchSpec {
    /// The attempt that the command executes.
    #[serde(rename = "job")]
    pub key: AttemptKey,
    /// Token of the lease it runs under, in hexadecimal.
    pub token: String,
    /// The program and its arguments. No shell is involved.
    pub argv: Vec<String>,
    /// Its whole environment, as names and values. Of equal names the last one counts.
    pub env: Vec<(String, String)>,
    /// Working directory. `None`: the one of the spawner.
    #[serde(rename = "directory")]
    pub work_dir: Option<PathBuf>,
    /// File for the exit record, written if the worker does not acknowledge the exit soon. `None`: never written.
    #[serde(rename = "record")]
    pub exit_record: Option<PathBuf>,
    /// File that the command may write its result to. The spawner only copies the path into the exit record.
    #[serde(rename = "result")]
    pub result_file: Option<PathBuf>,
    /// Whether the spawner creates the pipes for stdout and stderr.
    #[serde(rename = "captured")]
    pub capture_output: bool,
}

impl Default for AttemptKey {
    fn default() -> Self {
        Self { run: 0, attempt: 1 }
    }
}

/// An event that a spawner reports to its worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum SpawnerEvent {
    /// The spawner accepts requests. No process of an earlier spawner is left.
    Ready,
    /// A command was started. Sent for captured commands only if they run longer than the spawner holds their output.
    Started {
        /// The attempt.
        #[serde(rename = "job")]
        key: AttemptKey,
        /// Process id of the command.
        pid: u32,
    },
    /// A command could not be started.
    Refused {
        /// The attempt.
        #[serde(rename = "job")]
        key: AttemptKey,
        /// The reason.
        why: LaunchRefusal,
    },
    /// Hands the output pipes of a captured command to the worker, because the command runs for longer or prints much.
    #[serde(rename = "Prints")]
    OutputPipes {
        /// The attempt.
        #[serde(rename = "job")]
        key: AttemptKey,
        /// Reading ends of stdout and stderr. They travel beside the message, as open files. Empty if this process had
        /// too many open files to receive them.
        #[serde(skip)]
        pipes: Vec<OwnedFd>,
    },
    /// A command has ended, and none of its processes is left.
    Ended {
        /// The attempt.
        #[serde(rename = "job")]
        key: AttemptKey,
        /// How its first process ended.
        exit: ProcessExit,
        /// The whole output of a captured command whose pipes were not handed over.
        #[serde(rename = "printed")]
        output: Option<ProcessOutput>,
    },
}

/// The whole output of a command that ended soon and printed little.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessOutput {
    /// What it wrote to stdout.
    #[serde(rename = "output")]
    pub stdout: OutputText,
    /// What it wrote to stderr.
    #[serde(rename = "errors")]
    pub stderr: OutputText,
}

/// Output bytes. Mostly they are UTF-8, which is smaller in JSON than an array of numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OutputText {
    /// Valid UTF-8.
    Utf8(String),
    /// Any other bytes.
    Bytes(Vec<u8>),
}

impl Default for OutputText {
    fn default() -> Self {
        Self::Utf8(String::new())
    }
}

impl From<Vec<u8>> for OutputText {
    fn from(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Utf8)
    }
}

impl OutputText {
    /// The bytes as the command wrote them.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Utf8(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Why a command was not started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaunchRefusal {
    /// Its lease has expired, or the spawner does not know the lease.
    #[serde(rename = "Lease")]
    LeaseExpired,
    /// The attempt is already running.
    #[serde(rename = "Doubled")]
    AlreadyRunning,
    /// The program or the working directory does not exist.
    NotFound(String),
    /// The program exists and cannot be executed.
    #[serde(rename = "Unfit")]
    NotExecutable(String),
    /// A start that may succeed later: too many open files, no memory, or a program file that is being written.
    #[serde(rename = "Unable")]
    TemporaryFailure(String),
}

impl LaunchRefusal {
    /// Classifies the error of an attempt to execute `what`.
    pub fn from_error(what: &str, error: &io::Error) -> Self {
        use rustix::io::Errno;
        let why = format!("{what}: {error}");
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT | Errno::NOTDIR) => Self::NotFound(why),
            Some(Errno::ACCESS | Errno::PERM | Errno::NOEXEC | Errno::TOOBIG | Errno::ISDIR) => {
                Self::NotExecutable(why)
            }
            _ => Self::TemporaryFailure(why),
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessExit {
    /// Exit code. `None`: a signal ended the process.
    pub code: Option<i32>,
    /// Signal that ended the process. `None`: it exited.
    pub signal: Option<i32>,
    /// Whether the lease had expired before the process ended.
    #[serde(rename = "lease_passed")]
    pub lease_expired: bool,
    /// Why it was stopped. `None`: no stop request arrived before it ended.
    #[serde(rename = "stopped")]
    pub stop_reason: Option<AttemptStopReason>,
}
