//! `tasuki token`: lists, creates and revokes API tokens.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api_server_and_token_flags::ApiServerFlags;
use crate::client::ApiClient;
use crate::confirmation_prompt::Confirmation;
use crate::failure::Failure;
use crate::view::{OutputStyle, field_items, field_text};

/// List, create and revoke API tokens
#[derive(Args)]
pub(crate) struct TokenCommand {
    #[command(flatten)]
    endpoint: ApiServerFlags,
    #[command(subcommand)]
    verb: RunVerb,
}

#[derive(Subcommand)]
enum RunVerb {
    List(List),
    Create(Create),
    Revoke(Revoke),
}

/// List tokens, without their secrets
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki token list")]
struct List {}

/// Create a token and print its secret, which cannot be shown again
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki token create ci --role operator --expires-in 30d
  tasuki token create hanako --role author > token.txt

Roles, from the lowest to the highest; each role includes the permissions of the lower roles:
  viewer    read
  operator  trigger, submit, emit, cancel, retry, rerun, wait, pause, resume, drain, detach, demote
  author    create, change, enable, disable and delete jobs
  admin     change settings, manage tokens, read the audit")]
struct Create {
    /// Name of the token: its owner or purpose
    name: String,
    /// Role: viewer, operator, author, admin
    #[arg(long)]
    role: String,
    /// Validity from now, such as 30d [default: until revoked]
    #[arg(long, value_name = "DURATION")]
    expires_in: Option<String>,
}

/// Revoke a token
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki token revoke 3
  tasuki token revoke 3 --yes")]
struct Revoke {
    /// Number of the token
    id: i64,
    #[command(flatten)]
    confirmation: Confirmation,
}

impl TokenCommand {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.endpoint.with_client(now, async |client, style| match &self.verb {
            RunVerb::List(List {}) => {
                let tokens = client.get("/tokens").send().await?.body;
                Ok(style.render(&tokens, |style, tokens| render_list(style, now, tokens)))
            }
            RunVerb::Create(create) => create.run(client, style).await,
            RunVerb::Revoke(revoke) => revoke.run(client, style, now).await,
        })
    }
}

impl Create {
    async fn run(&self, client: &ApiClient, style: &OutputStyle) -> Result<String, Failure> {
        let mut body = json!({ "name": self.name, "role": self.role });
        if let Some(expires_in) = &self.expires_in {
            body["expires_in"] = json!(expires_in);
        }
        let token = client.post("/tokens").body(body).send().await?.body;
        eprintln!(
            "note: the token is shown only once; pass it to commands in TASUKI_TOKEN or --token-file"
        );
        Ok(style.render(&token, |_, token| format!("{}\n", field_text(token, "token"))))
    }
}

impl Revoke {
    async fn run(
        &self,
        client: &ApiClient,
        style: &OutputStyle,
        now: Timestamp,
    ) -> Result<String, Failure> {
        let mut tokens = client.get("/tokens").send().await?.body;
        let found =
            field_items(&tokens, "items").iter().find(|token| token["id"] == self.id).cloned();
        let Some(token) = found else {
            let hint = "`tasuki token list` shows all tokens";
            return Err(Failure::new(format!("there is no token {}", self.id)).hint(hint));
        };
        tokens["items"] = json!([token]);
        let list = render_list(style, now, &tokens);
        self.confirmation.require(&format!("this token will be revoked:\n\n{list}\n"))?;
        let response = client.delete(format!("/tokens/{}", self.id)).send().await?.body;
        Ok(style.render(&response, |_, _| format!("revoked token {}\n", self.id)))
    }
}

fn render_list(style: &OutputStyle, now: Timestamp, tokens: &Value) -> String {
    let mut table = style.table(["ID", "STATE", "NAME", "ROLE", "CREATED", "LAST USED", "EXPIRES"]);
    for token in field_items(tokens, "items") {
        table.row([
            field_text(token, "id"),
            state_name(now, token).to_owned(),
            field_text(token, "name"),
            field_text(token, "role"),
            style.instant(token, "created_at"),
            style.instant(token, "last_used_at"),
            style.instant(token, "expires_at"),
        ]);
    }
    table.render_or("there are no tokens")
}

fn state_name(now: Timestamp, token: &Value) -> &'static str {
    let expires = field_text(token, "expires_at").parse::<Timestamp>();
    match (token["revoked_at"].is_null(), expires) {
        (false, _) => "revoked",
        (true, Ok(expires)) if expires <= now => "expired",
        (true, _) => "active",
    }
}
