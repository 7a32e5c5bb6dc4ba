//! `tasuki up`: everything in one process. A scheduler, a worker, the API, and a database in a file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tasuki_core::{NodeName, duration};

use crate::database;
use crate::output::Failure;
use crate::serve::{Service, host_name, tell};
use crate::willing::Willing;

/// Start everything in one process: scheduler, worker, API, and a database in a file
#[derive(Args)]
#[command(after_help = "Examples:
  tasuki up
  tasuki up --demo
  tasuki up --data /var/lib/tasuki --listen 127.0.0.1:9000
  tasuki up --database-url postgres://tasuki@localhost/tasuki

Ctrl-C lets what runs finish, and stops at once the second time.")]
pub(crate) struct Up {
    /// Where everything is kept
    #[arg(long, env = "TASUKI_DATA", default_value = "tasuki-data", value_name = "DIR")]
    data: PathBuf,
    /// Where the API is served; port 0 takes a free one
    #[arg(long, env = "TASUKI_LISTEN", default_value = "127.0.0.1:7711", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Another database than the file in the data directory: postgres://… or mysql://…
    #[arg(long, env = "TASUKI_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,
    /// Add a handful of sample jobs
    #[arg(long)]
    demo: bool,
    /// What this node is called
    #[arg(long, env = "TASUKI_NODE", value_name = "NAME")]
    node: Option<NodeName>,
    /// What this worker is good for; may be given more than once
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    /// How many commands at once, instead of what the settings say
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    slots: Option<u32>,
    /// The only programs this worker runs; may be given more than once
    #[arg(long = "allow-program", value_name = "PROGRAM")]
    programs: Vec<String>,
    /// One more variable of the environment that jobs see; may be given more than once
    #[arg(long = "pass-env", value_name = "NAME")]
    environment: Vec<String>,
    /// Run jobs of kind django in this project directory
    #[arg(long, env = "TASUKI_DJANGO_PROJECT", value_name = "DIR")]
    django_project: Option<PathBuf>,
    /// The interpreter for it
    #[arg(long, env = "TASUKI_DJANGO_PYTHON", default_value = "python3", value_name = "PROGRAM")]
    django_python: String,
    /// Its DJANGO_SETTINGS_MODULE, if manage.py is not to choose
    #[arg(long, env = "TASUKI_DJANGO_SETTINGS", value_name = "MODULE")]
    django_settings: Option<String>,
    /// How long running work may go on after Ctrl-C
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = read_duration)]
    drain: Duration,
}

fn read_duration(typed: &str) -> Result<Duration, String> {
    duration::read("drain", typed).map_err(|refused| refused.to_string())
}

impl Up {
    pub(crate) fn run(self) -> Result<String, Failure> {
        let is_new = !self.database_file().exists();
        let willing = Willing {
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
        let service = Service {
            data: self.data.clone(),
            listen: self.listen,
            database_url: self.database_url(),
            config: willing.config()?,
            demo: self.demo,
            cluster: None,
        };
        service.run(|url, _| self.greet(url, is_new))
    }

    fn database_file(&self) -> PathBuf {
        self.data.join(database::FILE)
    }

    fn database_url(&self) -> String {
        match &self.database_url {
            Some(url) => url.clone(),
            None => database::in_directory(&self.data),
        }
    }

    fn greet(&self, url: &str, is_new: bool) {
        let data = self.data.display();
        let other = if self.data == Path::new("tasuki-data") {
            String::new()
        } else {
            format!(" --data {data}")
        };
        let database = match &self.database_url {
            Some(url) => database::shown(url),
            None => self.database_file().display().to_string(),
        };
        let first = if is_new && self.database_url.is_none() { " (new)" } else { "" };
        tell(&format!(
            "tasuki is up at {url}
  database   {database}{first}
  token      in {data}/token, for the API; the command line finds it by itself

next, in another terminal:
  tasuki job create hello{other} --every 5s -- echo hi
  tasuki run list{other}
  tasuki run logs -f ID{other}

Ctrl-C lets what runs finish and stops."
        ));
    }
}
