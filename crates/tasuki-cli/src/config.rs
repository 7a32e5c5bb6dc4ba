//! `tasuki config`: how a node would start, and who says so.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use crate::layers::{KEYS, Layers, Typed};
use crate::output::Failure;
use crate::view::Look;

/// How a node would start
#[derive(Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Show what a node would start with, and where each value comes from
    #[command(after_help = "Examples:
  tasuki config show
  tasuki config show --config /etc/tasuki/tasuki.toml --json")]
    Show(Show),
}

#[derive(Args)]
struct Show {
    #[command(flatten)]
    typed: Typed,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Config {
    pub(crate) fn run(self, now: Timestamp) -> Result<String, Failure> {
        let Verb::Show(show) = self.verb;
        let layers = Layers::read(&show.typed, |name| std::env::var_os(name))?;
        let rows = KEYS.iter().map(|key| {
            let said = layers.said(key.name);
            let values = said.map(|said| {
                said.values.iter().map(|value| key.shown(value)).collect::<Vec<_>>().join(", ")
            });
            (key.name, values, said.map(|said| said.source.to_string()))
        });
        if show.json {
            let all: serde_json::Map<String, serde_json::Value> = rows
                .map(|(name, value, source)| {
                    (name.to_owned(), json!({ "value": value, "source": source }))
                })
                .collect();
            return Ok(format!("{:#}\n", serde_json::Value::from(all)));
        }
        let mut table = Look::new(now, false).table(["NAME", "VALUE", "FROM"]);
        let or_nothing = |told: Option<String>| told.unwrap_or_else(|| "-".to_owned());
        for (name, value, source) in rows {
            table.row([name.to_owned(), or_nothing(value), or_nothing(source)]);
        }
        Ok(table.or(""))
    }
}
