//! Authentication with bearer tokens, and authorization by role.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tasuki::Operator;
use tasuki::operator::{AccessRole, Actor};

use crate::problem::{FORBIDDEN, Problem, UNAUTHORIZED};

/// Refuses requests without a valid token, and adds the [`Actor`] to the others. Every token is hashed and looked up in the same
/// way, so that the duration of the request reveals nothing about valid tokens.
pub(crate) async fn authenticate(
    State(operator): State<Operator>,
    mut request: Request,
    next: Next,
) -> Response {
    let unauthorized = |detail: &str| {
        Problem::new(UNAUTHORIZED, detail).with_field("Authorization").with_hint(
            "send `Authorization: Bearer TOKEN`; `tasuki up` writes a token to its data directory",
        )
    };
    let Some(secret) = bearer_token(request.headers()) else {
        return unauthorized("the request has no bearer token").into_response();
    };
    let token = match operator.authenticate_token_secret(secret).await {
        Ok(Some(token)) => token,
        Ok(None) => {
            return unauthorized("the token is unknown, expired or revoked").into_response();
        }
        Err(error) => return Problem::from(error).into_response(),
    };
    let address = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let address = address.map(|ConnectInfo(address)| address.ip().to_string());
    request.extensions_mut().insert(Actor { name: token.name, address, role: token.role });
    next.run(request).await
}

/// Checks that the caller has at least a role.
pub(crate) fn require_role(actor: Option<&Actor>, needed: AccessRole) -> Result<(), Problem> {
    match actor {
        Some(actor) if actor.role >= needed => Ok(()),
        Some(actor) => {
            let detail = format!("this needs the role {needed}, and the token has {}", actor.role);
            Err(Problem::new(FORBIDDEN, detail))
        }
        None => Err(Problem::new(UNAUTHORIZED, "the request has no valid token")),
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}
