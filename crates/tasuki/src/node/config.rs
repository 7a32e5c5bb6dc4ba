//! Local configuration of one node: its name, address, slots, and the programs that it may run.
//!
//! Jobs and settings in the database cannot extend these limits.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use tasuki_core::argv_template::DjangoConfig;
use tasuki_core::{InvalidInput, NodeName};

/// Environment variables that a command inherits from the worker by default.
const DEFAULT_ENVIRONMENT: [&str; 12] = [
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "USER",
    "LOGNAME",
    "SHELL",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// Local configuration of one node.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the node: its host, container or pod. Nodes with the same name must be on the same host.
    pub node: NodeName,
    /// RPC address at which other nodes call this one; `None`: the node runs alone.
    pub address: Option<String>,
    /// Labels of the worker. A run is assigned only to workers that have all labels of its job.
    pub labels: BTreeSet<String>,
    /// Maximum number of concurrent commands; `None`: the setting `max_jobs_per_worker`.
    pub slots: Option<u32>,
    /// Names of environment variables that commands inherit from the worker.
    pub environment: Vec<String>,
    /// Programs that commands may run; `None`: any program.
    pub allowed_programs: Option<BTreeSet<String>>,
    /// Django project of this host; `None`: the node runs no Django jobs.
    pub django: Option<DjangoProject>,
    /// Maximum output stored per attempt, in bytes.
    pub max_log_bytes: i64,
    /// Time that running attempts may continue after a drain began.
    pub drain_timeout: Duration,
}

/// A Django project on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DjangoProject {
    /// Python interpreter and `manage.py`.
    pub start: DjangoConfig,
    /// Directory of the project.
    pub directory: PathBuf,
    /// Value of `DJANGO_SETTINGS_MODULE`; `None`: `manage.py` decides.
    pub settings: Option<String>,
}

impl Config {
    /// Default configuration of a node with this name.
    pub fn new(node: NodeName) -> Self {
        Self {
            node,
            address: None,
            labels: BTreeSet::new(),
            slots: None,
            environment: DEFAULT_ENVIRONMENT.iter().map(|&name| name.to_owned()).collect(),
            allowed_programs: None,
            django: None,
            max_log_bytes: 10 << 20,
            drain_timeout: Duration::from_secs(30),
        }
    }

    /// Returns an error if the node may not run a program.
    pub(crate) fn check_program(&self, program: &str) -> Result<(), InvalidInput> {
        match &self.allowed_programs {
            Some(allowed) if !allowed.contains(program) => {
                let expected = "one of the programs that this worker is configured to run";
                Err(InvalidInput::with_value("command", program, expected))
            }
            Some(_) | None => Ok(()),
        }
    }
}
