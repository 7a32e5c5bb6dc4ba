//! `tasuki migrate`: applies pending schema migrations.

use std::fmt::Write as _;

use clap::Args;
use serde_json::{Value, json};
use tasuki_store::Migration;

use crate::database_access::DatabaseOrDataDirOptions;
use crate::failure::Failure;

/// Migrate the database schema to the version that this program needs. It is safe to run it twice, or in several
/// processes at the same time
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki migrate
  tasuki migrate --database-url sqlite:other/tasuki.db
  tasuki migrate --check --database-url postgres://tasuki@localhost/tasuki")]
pub(crate) struct MigrateCommand {
    #[command(flatten)]
    target: DatabaseOrDataDirOptions,

    /// List pending migrations without applying them; exit 1 if there are any
    #[arg(long)]
    check: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl MigrateCommand {
    pub(crate) fn run(&self) -> Result<String, Failure> {
        let database = self.target.database();
        if !self.check {
            let may_create = self.target.has_url();
            let applied = database.with_store(may_create, async |store| store.migrate().await)?;
            return Ok(self.render("applied", &applied, "the schema is up to date, nothing to do"));
        }
        let pending = database.with_store(false, async |store| store.pending_migrations().await)?;
        let text = self.render("pending", &pending, "the schema is up to date");
        match pending.len() {
            0 => Ok(text),
            1 => Err(pending_failure("1 migration is pending", text)),
            many => Err(pending_failure(&format!("{many} migrations are pending"), text)),
        }
    }

    fn render(&self, status: &str, migrations: &[&Migration], if_empty: &str) -> String {
        if self.json {
            let list: Vec<Value> = migrations
                .iter()
                .map(|migration| json!({ "version": migration.version, "name": migration.name }))
                .collect();
            return format!("{:#}\n", json!({ status: list }));
        }
        if migrations.is_empty() {
            return format!("{if_empty}\n");
        }
        let mut text = String::new();
        for migration in migrations {
            writeln!(text, "{status} {:04} {}", migration.version, migration.name)
                .expect("writing to a string does not fail");
        }
        text
    }
}

fn pending_failure(message: &str, text: String) -> Failure {
    Failure::new(message).with_stdout(text).hint("run `tasuki migrate`")
}
