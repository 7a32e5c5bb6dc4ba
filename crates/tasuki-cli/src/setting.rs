//! `tasuki setting`: how the cluster behaves.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::client::{Client, quoted, segment};
use crate::output::Failure;
use crate::server::Server;
use crate::typed;
use crate::view::{Look, text};

/// How the cluster behaves.
#[derive(Args)]
pub(crate) struct Setting {
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    List(List),
    Get(Get),
    Set(Set),
}

/// List all settings; those that were changed are marked with a star
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki setting list
  tasuki setting list --changed")]
struct List {
    /// Only those that are not at their default
    #[arg(long)]
    changed: bool,
}

/// Show one setting and what it does
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki setting get lease_ttl")]
struct Get {
    /// The setting's name
    name: String,
}

/// Change settings, together: either all or none
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki setting set leader_tick 500ms
  tasuki setting set lease_renew 1s lease_ttl 10s
  tasuki setting set lease_renew=1s lease_ttl=10s")]
struct Set {
    /// What to change, and to what; NAME=VALUE will do as well
    #[arg(required = true, value_name = "NAME VALUE")]
    words: Vec<String>,
}

impl Setting {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.server.ask(now, async |client, look| match &self.verb {
            Verb::List(list) => {
                let settings = client.get("/settings").send().await?.body;
                Ok(look.answer(&settings, |look, settings| list.table(look, settings)))
            }
            Verb::Get(Get { name }) => {
                let path = format!("/settings/{}", segment(name)?);
                let setting = client.get(path).send().await?.body;
                Ok(look.answer(&setting, |look, setting| one(look, name, setting)))
            }
            Verb::Set(set) => set.run(client, look).await,
        })
    }
}

impl List {
    fn table(&self, look: &Look, settings: &Value) -> String {
        let mut table = look.table(["NAME", "VALUE", "DEFAULT", "FROM", "TO"]);
        for (name, one) in settings["settings"].as_object().into_iter().flatten() {
            let is_changed = one["value"] != one["default"];
            if self.changed && !is_changed {
                continue;
            }
            let mark = if is_changed { " *" } else { "" };
            table.row([
                name.clone(),
                format!("{}{mark}", text(one, "value")),
                text(one, "default"),
                text(one, "min"),
                text(one, "max"),
            ]);
        }
        table.or("every setting is at its default")
    }
}

fn one(look: &Look, name: &str, setting: &Value) -> String {
    look.facts(&[
        ("name", name.to_owned()),
        ("value", text(setting, "value")),
        ("default", text(setting, "default")),
        ("from", text(setting, "min")),
        ("to", text(setting, "max")),
        ("", text(setting, "help")),
    ])
}

impl Set {
    async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let mut body = Map::new();
        let mut words = self.words.iter();
        while let Some(word) = words.next() {
            let (name, value) = match word.contains('=') {
                true => typed::pair("setting", word)?,
                false => match words.next() {
                    Some(value) => (word.as_str(), value.as_str()),
                    None => {
                        let message = format!("{word} is to be set to what? Its value is missing");
                        return Err(Failure::bad_usage(message)
                            .hint(format!("tasuki setting get {word} shows what it is now")));
                    }
                },
            };
            if body.insert(name.to_owned(), json!(value)).is_some() {
                return Err(Failure::bad_usage(format!("{name} is given twice")));
            }
        }
        let before = client.get("/settings").send().await?.body;
        let version = before["version"].as_i64().map_or("*".to_owned(), quoted);
        let call = client.put("/settings").if_match(version).body(Value::Object(body.clone()));
        let is_known = |name: &String| before["settings"].get(name).is_some();
        let after = call.send().await.map_err(|failure| match body.keys().all(is_known) {
            true => failure,
            false => failure.hint("tasuki setting list shows all there are"),
        })?;
        let after = after.body;
        Ok(look.answer(&after, |_, after| {
            let line = |name: &String| {
                let value = |settings: &Value| text(&settings["settings"][name], "value");
                match (value(&before), value(after)) {
                    (old, new) if old == new => format!("{name} is {new}, as before\n"),
                    (old, new) => format!("{name}: {old} -> {new}\n"),
                }
            };
            body.keys().map(line).collect()
        }))
    }
}
