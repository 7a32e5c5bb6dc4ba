//! `tasuki setting`: lists, shows and changes the settings of the cluster.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::api_server_and_token_flags::ApiServerFlags;
use crate::client::{ApiClient, encode_path_segment, format_etag};
use crate::failure::Failure;
use crate::flag_values;
use crate::view::{OutputStyle, field_text};

/// List, show and change the settings of the cluster
#[derive(Args)]
pub(crate) struct SettingCommand {
    #[command(flatten)]
    endpoint: ApiServerFlags,
    #[command(subcommand)]
    verb: RunVerb,
}

#[derive(Subcommand)]
enum RunVerb {
    List(List),
    Get(Get),
    Set(Set),
}

/// List all settings; a star marks settings that differ from their default
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki setting list
  tasuki setting list --changed")]
struct List {
    /// Only settings that differ from their default
    #[arg(long)]
    changed: bool,
}

/// Show one setting with its description
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki setting get lease_ttl")]
struct Get {
    /// Name of the setting
    name: String,
}

/// Change one or more settings atomically
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki setting set leader_tick 500ms
  tasuki setting set lease_renew 1s lease_ttl 10s
  tasuki setting set lease_renew=1s lease_ttl=10s")]
struct Set {
    /// Names and new values; NAME=VALUE is also accepted
    #[arg(required = true, value_name = "NAME VALUE")]
    assignments: Vec<String>,
}

impl SettingCommand {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.endpoint.with_client(now, async |client, style| match &self.verb {
            RunVerb::List(list) => {
                let settings = client.get("/settings").send().await?.body;
                Ok(style.render(&settings, |style, settings| list.table(style, settings)))
            }
            RunVerb::Get(Get { name }) => {
                let path = format!("/settings/{}", encode_path_segment(name)?);
                let setting = client.get(path).send().await?.body;
                Ok(style.render(&setting, |style, setting| render_details(style, name, setting)))
            }
            RunVerb::Set(set) => set.run(client, style).await,
        })
    }
}

impl List {
    fn table(&self, style: &OutputStyle, settings: &Value) -> String {
        let mut table = style.table(["NAME", "VALUE", "DEFAULT", "MIN", "MAX"]);
        for (name, one) in settings["settings"].as_object().into_iter().flatten() {
            let is_changed = one["value"] != one["default"];
            if self.changed && !is_changed {
                continue;
            }
            let mark = if is_changed { " *" } else { "" };
            table.row([
                name.clone(),
                format!("{}{mark}", field_text(one, "value")),
                field_text(one, "default"),
                field_text(one, "min"),
                field_text(one, "max"),
            ]);
        }
        table.render_or("all settings have their default values")
    }
}

fn render_details(style: &OutputStyle, name: &str, setting: &Value) -> String {
    style.fields(&[
        ("name", name.to_owned()),
        ("value", field_text(setting, "value")),
        ("default", field_text(setting, "default")),
        ("min", field_text(setting, "min")),
        ("max", field_text(setting, "max")),
        ("", field_text(setting, "help")),
    ])
}

impl Set {
    async fn run(&self, client: &ApiClient, style: &OutputStyle) -> Result<String, Failure> {
        let mut body = Map::new();
        let mut assignments = self.assignments.iter();
        while let Some(argument) = assignments.next() {
            let (name, value) = match argument.contains('=') {
                true => flag_values::split_name_value("setting", argument)?,
                false => match assignments.next() {
                    Some(value) => (argument.as_str(), value.as_str()),
                    None => {
                        let message = format!("the value for setting {argument} is missing");
                        return Err(Failure::bad_usage(message).hint(format!(
                            "`tasuki setting get {argument}` shows its current value and its limits"
                        )));
                    }
                },
            };
            if body.insert(name.to_owned(), json!(value)).is_some() {
                return Err(Failure::bad_usage(format!("setting {name} is given twice")));
            }
        }
        let before = client.get("/settings").send().await?.body;
        let version = before["version"].as_i64().map_or("*".to_owned(), format_etag);
        let request = client.put("/settings").if_match(version).body(Value::Object(body.clone()));
        let exists = |name: &String| before["settings"].get(name).is_some();
        let after = request.send().await.map_err(|failure| match body.keys().all(exists) {
            true => failure,
            false => failure.hint("`tasuki setting list` shows all settings"),
        })?;
        let after = after.body;
        Ok(style.render(&after, |_, after| {
            let line = |name: &String| {
                let value = |settings: &Value| field_text(&settings["settings"][name], "value");
                match (value(&before), value(after)) {
                    (old, new) if old == new => format!("{name}: {new} (unchanged)\n"),
                    (old, new) => format!("{name}: {old} -> {new}\n"),
                }
            };
            body.keys().map(line).collect()
        }))
    }
}
