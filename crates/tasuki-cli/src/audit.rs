//! `tasuki audit`: who did what.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::client::{Call, Client};
use crate::output::Failure;
use crate::pages;
use crate::server::Server;
use crate::view::{Look, items, text};

/// Who did what.
#[derive(Args)]
pub(crate) struct Audit {
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    List(List),
    Head(Head),
}

/// List what was done, oldest first
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki audit list
  tasuki audit list --after 120 -n 20
  tasuki audit list --json | jq '.items[] | select(.actor == \"hanako\")'")]
struct List {
    /// What came after this entry
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    after: i64,
    /// At most so many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

/// Show the last entry's number and hash. Kept elsewhere, they prove later that nothing was cut off
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki audit head > audit-head.txt")]
struct Head {}

impl Audit {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.server.ask(now, async |client, look| match &self.verb {
            Verb::List(List { after, limit }) => {
                let page = |next, limit| page(client, next, *after, limit);
                let entries = pages::collect(*limit, page).await?;
                Ok(look.answer(&entries, many))
            }
            Verb::Head(Head {}) => {
                let head = head(client).await?;
                Ok(look.answer(&head, |_, head| {
                    format!("{} {}\n", text(head, "seq"), text(head, "hash"))
                }))
            }
        })
    }
}

fn page<'a>(client: &'a Client, next: Option<String>, after: i64, limit: usize) -> Call<'a> {
    let after = next.unwrap_or_else(|| after.to_string());
    client.get("/audit").query("after", &after).query("limit", &limit)
}

/// The last entry: as the server tells it, or else found by reading on to the end.
async fn head(client: &Client) -> Result<Value, Failure> {
    let first = page(client, None, 0, 1).send().await?.body;
    if first["head"].is_object() {
        return Ok(first["head"].clone());
    }
    let all = pages::collect(usize::MAX, |next, limit| page(client, next, 0, limit)).await?;
    match items(&all, "items").last() {
        Some(last) => Ok(json!({ "seq": last["seq"], "hash": last["hash"] })),
        None => Err(Failure::refused("the audit is empty")),
    }
}

fn many(look: &Look, entries: &Value) -> String {
    let mut table = look.table(["SEQ", "AT", "BY", "FROM", "DID", "TO"]);
    for entry in items(entries, "items") {
        table.row([
            text(entry, "seq"),
            look.instant(entry, "at"),
            text(entry, "actor"),
            text(entry, "address"),
            text(entry, "action"),
            text(entry, "object"),
        ]);
    }
    let mut told = table.or("nothing was done");
    if !entries["next"].is_null() {
        told.push_str(&format!("there is more: --after {}\n", text(entries, "next")));
    }
    told
}
