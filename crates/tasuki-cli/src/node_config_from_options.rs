//! Execution limits of a node from its command line: slots, labels, programs, environment. They are local to the
//! host: neither the leader nor the API can widen them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tasuki::node::{Config, DjangoProject};
use tasuki_core::NodeName;
use tasuki_core::argv_template::DjangoConfig;

use crate::failure::Failure;

/// Execution limits of a node, as given on its command line.
pub(crate) struct NodeExecutionOptions<'a> {
    pub(crate) node: NodeName,
    pub(crate) labels: &'a [String],
    pub(crate) slots: Option<u32>,
    /// Programs that the node may run; `None`: any program.
    pub(crate) programs: Option<&'a [String]>,
    pub(crate) environment: &'a [String],
    pub(crate) django_project: Option<&'a Path>,
    pub(crate) django_python: &'a str,
    pub(crate) django_settings: Option<&'a str>,
    pub(crate) drain: Duration,
}

impl NodeExecutionOptions<'_> {
    pub(crate) fn into_node_config(self) -> Result<Config, Failure> {
        let mut config = Config::new(self.node);
        config.labels = self.labels.iter().cloned().collect();
        config.slots = self.slots;
        config.drain_timeout = self.drain;
        config.environment.extend(self.environment.iter().cloned());
        config.allowed_programs = self.programs.map(|programs| programs.iter().cloned().collect());
        if let Some(directory) = self.django_project {
            let manage = directory.join("manage.py");
            if !manage.is_file() {
                let message = format!("file not found: {}", manage.display());
                return Err(Failure::bad_usage(message)
                    .hint("--django-project must name the directory that contains manage.py"));
            }
            config.django = Some(DjangoProject {
                start: DjangoConfig {
                    python: resolve_interpreter(self.django_python)?,
                    manage: "manage.py".to_owned(),
                },
                directory: std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned()),
                settings: self.django_settings.map(str::to_owned),
            });
        }
        Ok(config)
    }
}

/// Makes the path of the interpreter absolute, because commands run in the project directory. A name without a slash
/// is searched in `PATH`.
fn resolve_interpreter(input: &str) -> Result<String, Failure> {
    if !input.contains('/') {
        return Ok(input.to_owned());
    }
    let absolute = std::path::absolute(input).unwrap_or_else(|_| PathBuf::from(input));
    match absolute.is_file() {
        true => Ok(absolute.display().to_string()),
        false => Err(Failure::bad_usage(format!("file not found: {}", absolute.display()))
            .hint("--django-python must name the Python interpreter of the project's environment")),
    }
}
