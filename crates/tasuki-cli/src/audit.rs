//! `tasuki audit`: lists the audit entries (who did what).

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api_server_and_token_flags::ApiServerFlags;
use crate::client::{ApiClient, ApiRequest};
use crate::failure::Failure;
use crate::fetch_all_pages;
use crate::view::{OutputStyle, field_items, field_text};

/// List the audit entries
#[derive(Args)]
pub(crate) struct AuditCommand {
    #[command(flatten)]
    endpoint: ApiServerFlags,
    #[command(subcommand)]
    verb: RunVerb,
}

#[derive(Subcommand)]
enum RunVerb {
    List(List),
    Head(Head),
}

/// List audit entries, oldest first
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki audit list
  tasuki audit list --after 120 -n 20
  tasuki audit list --json | jq '.items[] | select(.actor == \"hanako\")'")]
struct List {
    /// Only entries after this sequence number
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    after: i64,
    /// Maximum number of entries
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

/// Print the sequence number and the hash of the last entry. Store this output outside the database. Later, compare it with
/// the audit: if the entry is missing or has another hash, someone changed the audit
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki audit head > audit-head.txt")]
struct Head {}

impl AuditCommand {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.endpoint.with_client(now, async |client, style| match &self.verb {
            RunVerb::List(List { after, limit }) => {
                let page = |next, limit| list_request(client, next, *after, limit);
                let entries = fetch_all_pages::fetch_items(*limit, page).await?;
                Ok(style.render(&entries, render_list))
            }
            RunVerb::Head(Head {}) => {
                let head = fetch_head(client).await?;
                Ok(style.render(&head, |_, head| {
                    format!("{} {}\n", field_text(head, "seq"), field_text(head, "hash"))
                }))
            }
        })
    }
}

fn list_request<'a>(
    client: &'a ApiClient,
    next: Option<String>,
    after: i64,
    limit: usize,
) -> ApiRequest<'a> {
    let after = next.unwrap_or_else(|| after.to_string());
    client.get("/audit").query("after", &after).query("limit", &limit)
}

/// Returns the last entry: from the server's `head` field if it has one, else by reading all entries.
async fn fetch_head(client: &ApiClient) -> Result<Value, Failure> {
    let first = list_request(client, None, 0, 1).send().await?.body;
    if first["head"].is_object() {
        return Ok(first["head"].clone());
    }
    let all = fetch_all_pages::fetch_items(usize::MAX, |next, limit| {
        list_request(client, next, 0, limit)
    })
    .await?;
    match field_items(&all, "items").last() {
        Some(last) => Ok(json!({ "seq": last["seq"], "hash": last["hash"] })),
        None => Err(Failure::new("there are no audit entries")),
    }
}

fn render_list(style: &OutputStyle, entries: &Value) -> String {
    let mut table = style.table(["SEQ", "AT", "ACTOR", "ADDRESS", "ACTION", "OBJECT"]);
    for entry in field_items(entries, "items") {
        table.row([
            field_text(entry, "seq"),
            style.instant(entry, "at"),
            field_text(entry, "actor"),
            field_text(entry, "address"),
            field_text(entry, "action"),
            field_text(entry, "object"),
        ]);
    }
    let mut output = table.render_or("there are no audit entries");
    if !entries["next"].is_null() {
        output.push_str(&format!("more entries: --after {}\n", field_text(entries, "next")));
    }
    output
}
