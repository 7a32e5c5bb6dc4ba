//! What a node is willing to run, as it was typed. The control plane cannot widen any of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tasuki::node::{Config, DjangoProject};
use tasuki_core::NodeName;
use tasuki_core::argv::Django;

use crate::output::Failure;

/// See the module.
pub(crate) struct Willing<'a> {
    pub(crate) node: NodeName,
    pub(crate) labels: &'a [String],
    pub(crate) slots: Option<u32>,
    /// `None`: any.
    pub(crate) programs: Option<&'a [String]>,
    pub(crate) environment: &'a [String],
    pub(crate) django_project: Option<&'a Path>,
    pub(crate) django_python: &'a str,
    pub(crate) django_settings: Option<&'a str>,
    pub(crate) drain: Duration,
}

impl Willing<'_> {
    pub(crate) fn config(self) -> Result<Config, Failure> {
        let mut config = Config::new(self.node);
        config.labels = self.labels.iter().cloned().collect();
        config.slots = self.slots;
        config.drain = self.drain;
        config.environment.extend(self.environment.iter().cloned());
        config.programs = self.programs.map(|programs| programs.iter().cloned().collect());
        if let Some(directory) = self.django_project {
            let manage = directory.join("manage.py");
            if !manage.is_file() {
                let found = format!("there is no {}", manage.display());
                return Err(Failure::bad_usage(found)
                    .hint("--django-project is the directory of manage.py"));
            }
            config.django = Some(DjangoProject {
                start: Django {
                    python: program(self.django_python)?,
                    manage: "manage.py".to_owned(),
                },
                directory: std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned()),
                settings: self.django_settings.map(str::to_owned),
            });
        }
        Ok(config)
    }
}

/// An interpreter, as seen from anywhere: commands run in the project's directory.
fn program(typed: &str) -> Result<String, Failure> {
    if !typed.contains('/') {
        return Ok(typed.to_owned());
    }
    let absolute = std::path::absolute(typed).unwrap_or_else(|_| PathBuf::from(typed));
    match absolute.is_file() {
        true => Ok(absolute.display().to_string()),
        false => Err(Failure::bad_usage(format!("there is no {}", absolute.display()))
            .hint("--django-python is the interpreter of the project's environment")),
    }
}
