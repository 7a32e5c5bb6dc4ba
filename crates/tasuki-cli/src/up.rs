//! `tasuki up`: starts a complete node in one process: leader, worker, API and, by default, a SQLite database.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tasuki_core::{NodeName, duration};

use crate::database_access;
use crate::failure::Failure;
use crate::node_config_from_options::NodeExecutionOptions;
use crate::run_node_until_stopped::{NodeProcess, host_name, print_stderr};

/// Start a complete node in one process: leader, worker, API and, by default, a SQLite database
#[derive(Args)]
#[command(after_help = "Examples:
  tasuki up
  tasuki up --demo
  tasuki up --data /var/lib/tasuki --listen 127.0.0.1:9000
  tasuki up --database-url postgres://tasuki@localhost/tasuki

After Ctrl-C, the process starts no new runs, waits at most --drain for the running ones, stops the
rest, and exits. A second Ctrl-C stops the process immediately; the next start recovers the
interrupted runs.")]
pub(crate) struct UpCommand {
    /// Data directory, for the database file and the API token
    #[arg(long, env = "TASUKI_DATA", default_value = "tasuki-data", value_name = "DIR")]
    data: PathBuf,
    /// Listen address of the API; port 0 selects a free port
    #[arg(long, env = "TASUKI_LISTEN", default_value = "127.0.0.1:7711", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Database URL: postgres://… or mysql://… [default: the database file in the data directory]
    #[arg(long, env = "TASUKI_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,
    /// Create example jobs
    #[arg(long)]
    demo: bool,
    /// Name of this node [default: the host name]
    #[arg(long, env = "TASUKI_NODE", value_name = "NAME")]
    node: Option<NodeName>,
    /// Label of this worker; jobs with labels run only on workers that have all of them (repeatable)
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    /// Number of slots for commands that the leader assigns; the worker has the same number in addition for commands
    /// that it claims [default: setting max_jobs_per_worker]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    slots: Option<u32>,
    /// Program that this worker may run (repeatable) [default: any program]
    #[arg(long = "allow-program", value_name = "PROGRAM")]
    programs: Vec<String>,
    /// Environment variable of this process that commands also receive (repeatable)
    #[arg(long = "pass-env", value_name = "NAME")]
    environment: Vec<String>,
    /// Django project directory, in which jobs of kind django run
    #[arg(long, env = "TASUKI_DJANGO_PROJECT", value_name = "DIR")]
    django_project: Option<PathBuf>,
    /// Python interpreter of the Django project
    #[arg(long, env = "TASUKI_DJANGO_PYTHON", default_value = "python3", value_name = "PROGRAM")]
    django_python: String,
    /// DJANGO_SETTINGS_MODULE of the Django project [default: chosen by manage.py]
    #[arg(long, env = "TASUKI_DJANGO_SETTINGS", value_name = "MODULE")]
    django_settings: Option<String>,
    /// How long runs may continue after Ctrl-C; then they are stopped
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = parse_drain)]
    drain: Duration,
}

fn parse_drain(input: &str) -> Result<Duration, String> {
    duration::parse_duration_field("drain", input).map_err(|refused| refused.to_string())
}

impl UpCommand {
    pub(crate) fn run(self) -> Result<String, Failure> {
        let is_new = !self.database_file().exists();
        let limits = NodeExecutionOptions {
            node: self.node.clone().unwrap_or_else(host_name),
            labels: &self.labels,
            slots: self.slots,
            programs: (!self.programs.is_empty()).then_some(&*self.programs),
            environment: &self.environment,
            django_project: self.django_project.as_deref(),
            django_python: &self.django_python,
            django_settings: self.django_settings.as_deref(),
            drain: self.drain,
        };
        let process = NodeProcess {
            data: self.data.clone(),
            listen: self.listen,
            database_url: self.database_url(),
            config: limits.into_node_config()?,
            demo: self.demo,
            cluster: None,
        };
        process.run(|url, _| self.print_greeting(url, is_new))
    }

    fn database_file(&self) -> PathBuf {
        self.data.join(database_access::FILE_NAME)
    }

    fn database_url(&self) -> String {
        match &self.database_url {
            Some(url) => url.clone(),
            None => database_access::sqlite_url_in_data_dir(&self.data),
        }
    }

    fn print_greeting(&self, url: &str, is_new: bool) {
        let data = self.data.display();
        let data_flag = if self.data == Path::new("tasuki-data") {
            String::new()
        } else {
            format!(" --data {data}")
        };
        let database = match &self.database_url {
            Some(url) => database_access::redact_url(url),
            None => self.database_file().display().to_string(),
        };
        let drain = duration::format_exact_duration(self.drain);
        let new_mark = if is_new && self.database_url.is_none() { " (new)" } else { "" };
        print_stderr(&format!(
            "tasuki is up at {url}
  database   {database}{new_mark}
  API token  {data}/token (the tasuki commands find it automatically)

next, in another terminal:
  tasuki job create hello{data_flag} --every 5s -- echo hi
  tasuki run list{data_flag}
  tasuki run logs -f ID{data_flag}

After Ctrl-C, this process waits at most {drain} for its runs, and exits."
        ));
    }
}
