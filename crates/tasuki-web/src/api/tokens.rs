//! Endpoints of API tokens: list, create, revoke, and the identity of the caller.

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tasuki::Operator;
use tasuki::operator::{AccessRole, Actor};
use tasuki_store::Token;
use utoipa::ToSchema;

use super::{JsonResponse, created_or_existing, format_instant, format_optional_instant};
use crate::input::{ActionContext, JsonBody, RequestInput, parse_duration};
use crate::problem::Problem;

/// An API token.
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
    /// Last use, accurate to a minute.
    #[schema(format = DateTime)]
    last_used_at: Option<String>,
    #[schema(format = DateTime)]
    revoked_at: Option<String>,
    /// The secret. Only in the response that creates the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

/// All tokens, also expired and revoked ones.
#[derive(Serialize, ToSchema)]
pub(crate) struct TokenList {
    items: Vec<TokenView>,
}

/// A new token.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTokenInput {
    /// Name of the token. Audit entries show it as the actor.
    #[schema(min_length = 1, max_length = 191)]
    name: String,
    /// Role of the token. It determines which requests are allowed.
    #[schema(pattern = "^(viewer|operator|author|admin)$")]
    role: String,
    /// Lifetime. By default the token is valid until it is revoked.
    expires_in: Option<String>,
}

impl RequestInput for NewTokenInput {}

/// Identity of the caller.
#[derive(Serialize, ToSchema)]
pub(crate) struct TokenIdentity {
    name: String,
    #[schema(pattern = "^(viewer|operator|author|admin)$")]
    role: &'static str,
}

fn token_view(token: &Token) -> TokenView {
    TokenView {
        id: token.id,
        name: token.name.clone(),
        role: token.role.as_str(),
        created_at: format_instant(token.created_at),
        created_by: token.created_by.clone(),
        expires_at: format_optional_instant(token.expires_at),
        last_used_at: format_optional_instant(token.last_used_at),
        revoked_at: format_optional_instant(token.revoked_at),
        token: None,
    }
}

/// Lists all tokens, also expired and revoked ones.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "tokens", responses(
    (status = 200, description = "the tokens", body = TokenList),
))]
pub(crate) async fn list_tokens(
    State(operator): State<Operator>,
) -> Result<Json<TokenList>, Problem> {
    Ok(Json(TokenList { items: operator.list_tokens().await?.iter().map(token_view).collect() }))
}

/// Creates a token.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "tokens", request_body = NewTokenInput, responses(
    (status = 201, description = "the token with its secret, which is not shown again", body = TokenView),
))]
pub(crate) async fn create_token(
    State(operator): State<Operator>,
    Extension(actor): Extension<Actor>,
    JsonBody(body): JsonBody<NewTokenInput>,
) -> JsonResponse<TokenView> {
    let role =
        body.role.parse::<AccessRole>().map_err(|invalid| Problem::invalid("role", &invalid))?;
    let lifetime = parse_duration("expires_in", body.expires_in.as_deref())?;
    let issued = operator.create_token(&actor, &body.name, role, lifetime).await?;
    created_or_existing(
        false,
        TokenView { token: Some(issued.secret), ..token_view(&issued.token) },
    )
}

/// Revokes a token.
#[utoipa::path(delete, path = "/api/v1/tokens/{id}", tag = "tokens", params(("id" = i64, Path, minimum = 1)), responses(
    (status = 200, description = "the revoked token", body = TokenView),
))]
pub(crate) async fn revoke_token(request: ActionContext) -> Result<Json<TokenView>, Problem> {
    Ok(Json(token_view(
        &request.operator.revoke_token(&request.actor, request.target.id("token")?).await?,
    )))
}

/// Shows the name and role of the caller.
#[utoipa::path(get, path = "/api/v1/me", tag = "tokens", responses(
    (status = 200, description = "the identity of the caller", body = TokenIdentity),
))]
pub(crate) async fn who_am_i(Extension(actor): Extension<Actor>) -> Json<TokenIdentity> {
    Json(TokenIdentity { name: actor.name, role: actor.role.as_str() })
}
