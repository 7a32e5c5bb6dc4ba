//! How one node starts: what it is called, where it keeps its things, and what it is willing to run.
//! The control plane cannot widen any of this.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use tasuki_core::argv::Django;
use tasuki_core::{Invalid, NodeName};

/// What a job sees of its worker's environment unless the worker says otherwise.
const ENVIRONMENT: [&str; 12] = [
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

/// How one node starts.
#[derive(Debug, Clone)]
pub struct Config {
    /// The host, container or pod. Two nodes of one name are on one host.
    pub node: NodeName,
    /// Where others call it; `None`: nowhere.
    pub address: Option<String>,
    /// What it is good for.
    pub labels: BTreeSet<String>,
    /// How many commands at once; `None`: what the settings say.
    pub slots: Option<u32>,
    /// Which variables of its environment jobs see.
    pub environment: Vec<String>,
    /// The only programs it runs; `None`: any.
    pub programs: Option<BTreeSet<String>>,
    /// How it starts Django; `None`: it does not.
    pub django: Option<DjangoProject>,
    /// How much of an attempt's output is kept, in bytes.
    pub log_cap: i64,
    /// How long running work may go on after a drain began.
    pub drain: Duration,
}

/// A Django project on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DjangoProject {
    /// Interpreter and manage.py.
    pub start: Django,
    /// Where the project is.
    pub directory: PathBuf,
    /// DJANGO_SETTINGS_MODULE, if manage.py is not to choose.
    pub settings: Option<String>,
}

impl Config {
    /// A node of this name, with nothing special about it.
    pub fn new(node: NodeName) -> Self {
        Self {
            node,
            address: None,
            labels: BTreeSet::new(),
            slots: None,
            environment: ENVIRONMENT.iter().map(|&name| name.to_owned()).collect(),
            programs: None,
            django: None,
            log_cap: 10 << 20,
            drain: Duration::from_secs(30),
        }
    }

    /// Whether it is willing to run a program.
    pub(crate) fn allows(&self, program: &str) -> Result<(), Invalid> {
        match &self.programs {
            Some(allowed) if !allowed.contains(program) => {
                let expected = "one of the programs that this worker is configured to run";
                Err(Invalid::typed("command", program, expected))
            }
            Some(_) | None => Ok(()),
        }
    }
}
