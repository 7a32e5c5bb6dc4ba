//! Who may act, and who did what.

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tasuki::Operator;
use tasuki::operator::{Actor, Role};
use tasuki_store::{AuditRow, Token};
use utoipa::{IntoParams, ToSchema};

use super::{Answer, at, kept, made, maybe_at};
use crate::input::{Act, Asked, Body, Input, length, limit, number};
use crate::problem::Problem;

/// A token, without itself.
#[derive(Serialize, ToSchema)]
pub(crate) struct TokenView {
    #[schema(minimum = 1)]
    id: i64,
    name: String,
    #[schema(pattern = "^(viewer|operator|author|admin)$")]
    role: &'static str,
    #[schema(format = DateTime)]
    created_at: String,
    created_by: String,
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// To within a minute.
    #[schema(format = DateTime)]
    last_used_at: Option<String>,
    #[schema(format = DateTime)]
    revoked_at: Option<String>,
    /// The token itself, once, when it is given out.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

/// Every token there was.
#[derive(Serialize, ToSchema)]
pub(crate) struct Tokens {
    items: Vec<TokenView>,
}

/// A token to be given out.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewToken {
    /// What it does appears in the audit under this name.
    #[schema(min_length = 1, max_length = 191)]
    name: String,
    /// What may be done with it.
    #[schema(pattern = "^(viewer|operator|author|admin)$")]
    role: String,
    /// How long it counts; until it is revoked, unless said.
    expires_in: Option<String>,
}

impl Input for NewToken {}

/// Who asks.
#[derive(Serialize, ToSchema)]
pub(crate) struct Me {
    name: String,
    #[schema(pattern = "^(viewer|operator|author|admin)$")]
    role: &'static str,
}

/// One thing that was done.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditView {
    #[schema(minimum = 1)]
    seq: i64,
    #[schema(format = DateTime)]
    at: String,
    actor: String,
    action: String,
    object: String,
    address: Option<String>,
    before: Option<Value>,
    after: Option<Value>,
    /// Of this row and of the one before: the chain.
    hash: String,
    prev_hash: String,
}

/// What was done, in order.
#[derive(Serialize, ToSchema)]
pub(crate) struct Audit {
    items: Vec<AuditView>,
    /// Where to look on: `after` of the next request.
    next: Option<i64>,
}

/// Which part of the audit.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditAsked {
    /// After this row.
    #[param(value_type = Option<i64>, minimum = 0)]
    after: Option<String>,
    /// At most so many.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<String>,
}

fn token_view(token: &Token) -> TokenView {
    TokenView {
        id: token.id,
        name: token.name.clone(),
        role: token.role.as_str(),
        created_at: at(token.created_at),
        created_by: token.created_by.clone(),
        expires_at: maybe_at(token.expires_at),
        last_used_at: maybe_at(token.last_used_at),
        revoked_at: maybe_at(token.revoked_at),
        token: None,
    }
}

fn audit_view(row: &AuditRow) -> AuditView {
    let hex = |hash: &[u8; 32]| hash.iter().map(|byte| format!("{byte:02x}")).collect();
    AuditView {
        seq: row.seq,
        at: at(row.at),
        actor: row.actor.clone(),
        action: row.action.clone(),
        object: row.object.clone(),
        address: row.address.clone(),
        before: kept(row.before.as_deref()),
        after: kept(row.after.as_deref()),
        hash: hex(&row.hash),
        prev_hash: hex(&row.prev_hash),
    }
}

/// Lists what was done.
#[utoipa::path(get, path = "/api/v1/audit", tag = "people", params(AuditAsked), responses(
    (status = 200, description = "a part of it, in order", body = Audit),
))]
pub(crate) async fn list_audit(
    State(operator): State<Operator>,
    Asked(asked): Asked<AuditAsked>,
) -> Result<Json<Audit>, Problem> {
    let after = number("after", asked.after.as_deref(), 0, i64::MAX)?.unwrap_or(0);
    let most = limit(asked.limit.as_deref())?;
    let rows = operator.audit(after, most).await?;
    let next = rows.last().filter(|_| rows.len() == most as usize).map(|row| row.seq);
    Ok(Json(Audit { items: rows.iter().map(audit_view).collect(), next }))
}

/// Lists every token there was.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "people", responses(
    (status = 200, description = "all of them", body = Tokens),
))]
pub(crate) async fn list_tokens(State(operator): State<Operator>) -> Result<Json<Tokens>, Problem> {
    Ok(Json(Tokens { items: operator.tokens().await?.iter().map(token_view).collect() }))
}

/// Gives a token out.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "people", request_body = NewToken, responses(
    (status = 201, description = "the token, shown this once", body = TokenView),
))]
pub(crate) async fn create_token(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    Body(body): Body<NewToken>,
) -> Answer<TokenView> {
    let role = body.role.parse::<Role>().map_err(|why| Problem::invalid("role", &why))?;
    let lifetime = length("expires_in", body.expires_in.as_deref())?;
    let given = operator.create_token(&actor, &body.name, role, lifetime).await?;
    made(false, TokenView { token: Some(given.secret), ..token_view(&given.token) })
}

/// From now on a token counts no more.
#[utoipa::path(delete, path = "/api/v1/tokens/{id}", tag = "people", params(("id" = i64, Path, minimum = 1)), responses(
    (status = 200, description = "the token, revoked", body = TokenView),
))]
pub(crate) async fn revoke_token(act: Act) -> Result<Json<TokenView>, Problem> {
    Ok(Json(token_view(&act.operator.revoke_token(&act.actor, act.to.id("token")?).await?)))
}

/// Tells who asks.
#[utoipa::path(get, path = "/api/v1/me", tag = "people", responses(
    (status = 200, description = "whoever the token belongs to", body = Me),
))]
pub(crate) async fn who_am_i(Extension(actor): Extension<Actor>) -> Json<Me> {
    Json(Me { name: actor.name, role: actor.role.as_str() })
}
