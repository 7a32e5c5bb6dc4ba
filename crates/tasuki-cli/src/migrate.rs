//! `tasuki migrate`

use std::fmt::Write as _;

use clap::Args;
use serde_json::{Value, json};
use tasuki_store::Migration;

use crate::database::DataOrDatabase;
use crate::output::Failure;

/// Bring a database's schema up to date. Safe to run twice, and by several at once.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki migrate
  tasuki migrate --database-url sqlite:other/tasuki.db
  tasuki migrate --check --database-url postgres://tasuki@localhost/tasuki")]
pub(crate) struct Migrate {
    #[command(flatten)]
    place: DataOrDatabase,

    /// Change nothing; exit 1 if something is pending
    #[arg(long)]
    check: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Migrate {
    pub(crate) fn run(&self) -> Result<String, Failure> {
        let database = self.place.database();
        if !self.check {
            let may_create = self.place.is_named();
            let applied = database.with(may_create, async |store| store.migrate().await)?;
            return Ok(self.told("applied", &applied, "the schema is up to date, nothing to do"));
        }
        let pending = database.with(false, async |store| store.pending().await)?;
        let text = self.told("pending", &pending, "the schema is up to date");
        match pending.len() {
            0 => Ok(text),
            1 => Err(pending_failure("1 migration is pending", text)),
            many => Err(pending_failure(&format!("{many} migrations are pending"), text)),
        }
    }

    fn told(&self, word: &str, migrations: &[&Migration], nothing: &str) -> String {
        if self.json {
            let list: Vec<Value> = migrations
                .iter()
                .map(|one| json!({ "version": one.version, "name": one.name }))
                .collect();
            return format!("{:#}\n", json!({ word: list }));
        }
        if migrations.is_empty() {
            return format!("{nothing}\n");
        }
        let mut text = String::new();
        for one in migrations {
            writeln!(text, "{word} {:04} {}", one.version, one.name).expect("a string takes all");
        }
        text
    }
}

fn pending_failure(message: &str, text: String) -> Failure {
    Failure::refused(message).after(text).hint("tasuki migrate applies what is pending")
}
