//! `tasuki token`: who may ask for what.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::ask::Consent;
use crate::client::Client;
use crate::output::Failure;
use crate::server::Server;
use crate::view::{Look, items, text};

/// Who may ask for what.
#[derive(Args)]
pub(crate) struct Token {
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    List(List),
    Create(Create),
    Revoke(Revoke),
}

/// List tokens; what they are is never shown again
#[derive(Args)]
#[command(after_help = "Examples:\n  tasuki token list")]
struct List {}

/// Make a token and print it, once
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki token create ci --role operator --expires-in 30d
  tasuki token create hanako --role author > token.txt

Roles, each with all the ones before it may do:
  viewer    look
  operator  trigger, submit, emit, cancel, retry, pause, drain, detach, demote
  author    create, change and delete jobs
  admin     settings, tokens, audit")]
struct Create {
    /// Whose it is or what it is for
    name: String,
    /// What it may do: viewer, operator, author, admin
    #[arg(long)]
    role: String,
    /// How long it lasts [default: until revoked]
    #[arg(long, value_name = "DURATION")]
    expires_in: Option<String>,
}

/// Make a token worthless
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki token revoke 3
  tasuki token revoke 3 --yes")]
struct Revoke {
    /// The token's number
    id: i64,
    #[command(flatten)]
    consent: Consent,
}

impl Token {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        self.server.ask(now, async |client, look| match &self.verb {
            Verb::List(List {}) => {
                let tokens = client.get("/tokens").send().await?.body;
                Ok(look.answer(&tokens, |look, tokens| many(look, now, tokens)))
            }
            Verb::Create(create) => create.run(client, look).await,
            Verb::Revoke(revoke) => revoke.run(client, look, now).await,
        })
    }
}

impl Create {
    async fn run(&self, client: &Client, look: &Look) -> Result<String, Failure> {
        let mut body = json!({ "name": self.name, "role": self.role });
        if let Some(expires_in) = &self.expires_in {
            body["expires_in"] = json!(expires_in);
        }
        let token = client.post("/tokens").body(body).send().await?.body;
        eprintln!("note: it is shown this once; TASUKI_TOKEN or --token-file hand it over");
        Ok(look.answer(&token, |_, token| format!("{}\n", text(token, "token"))))
    }
}

impl Revoke {
    async fn run(&self, client: &Client, look: &Look, now: Timestamp) -> Result<String, Failure> {
        let mut tokens = client.get("/tokens").send().await?.body;
        let found = items(&tokens, "items").iter().find(|token| token["id"] == self.id).cloned();
        let Some(token) = found else {
            let hint = "tasuki token list shows those there are";
            return Err(Failure::refused(format!("there is no token {}", self.id)).hint(hint));
        };
        tokens["items"] = json!([token]);
        let told = many(look, now, &tokens);
        self.consent.ask(&format!("whoever uses this token will be refused:\n\n{told}\n"))?;
        let answer = client.delete(format!("/tokens/{}", self.id)).send().await?.body;
        Ok(look.answer(&answer, |_, _| format!("revoked token {}\n", self.id)))
    }
}

fn many(look: &Look, now: Timestamp, tokens: &Value) -> String {
    let mut table = look.table(["ID", "STATE", "NAME", "ROLE", "CREATED", "LAST USED", "EXPIRES"]);
    for token in items(tokens, "items") {
        table.row([
            text(token, "id"),
            state(now, token).to_owned(),
            text(token, "name"),
            text(token, "role"),
            look.instant(token, "created_at"),
            look.instant(token, "last_used_at"),
            look.instant(token, "expires_at"),
        ]);
    }
    table.or("there are no tokens")
}

fn state(now: Timestamp, token: &Value) -> &'static str {
    let expires = text(token, "expires_at").parse::<Timestamp>();
    match (token["revoked_at"].is_null(), expires) {
        (false, _) => "revoked",
        (true, Ok(expires)) if expires <= now => "expired",
        (true, _) => "active",
    }
}
