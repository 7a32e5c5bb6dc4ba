//! `tasuki config`: shows the start-up configuration of a node and the source of each value.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use crate::config_layers::{CONFIG_KEYS, ConfigFlags, MergedConfig};
use crate::failure::Failure;
use crate::view::OutputStyle;

/// Show the start-up configuration of a node
#[derive(Args)]
pub(crate) struct ConfigCommand {
    #[command(subcommand)]
    verb: RunVerb,
}

#[derive(Subcommand)]
enum RunVerb {
    /// Show the start-up configuration of a node and the source of each value
    #[command(after_help = "Examples:
  tasuki config show
  tasuki config show --config /etc/tasuki/tasuki.toml --json")]
    Show(Show),
}

#[derive(Args)]
struct Show {
    #[command(flatten)]
    flags: ConfigFlags,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ConfigCommand {
    pub(crate) fn run(self, now: Timestamp) -> Result<String, Failure> {
        let RunVerb::Show(show) = self.verb;
        let layers = MergedConfig::read_and_merge(&show.flags, |name| std::env::var_os(name))?;
        let rows = CONFIG_KEYS.iter().map(|key| {
            let found = layers.get(key.name);
            let values = found.map(|found| {
                found
                    .values
                    .iter()
                    .map(|value| key.redact_value(value))
                    .collect::<Vec<_>>()
                    .join(", ")
            });
            (key.name, values, found.map(|found| found.source.to_string()))
        });
        if show.json {
            let all: serde_json::Map<String, serde_json::Value> = rows
                .map(|(name, value, source)| {
                    (name.to_owned(), json!({ "value": value, "source": source }))
                })
                .collect();
            return Ok(format!("{:#}\n", serde_json::Value::from(all)));
        }
        let mut table = OutputStyle::new(now, false).table(["NAME", "VALUE", "SOURCE"]);
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        for (name, value, source) in rows {
            table.row([name.to_owned(), or_dash(value), or_dash(source)]);
        }
        Ok(table.render_or(""))
    }
}
