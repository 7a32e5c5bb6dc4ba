//! Who asks: a bearer token, looked up by its hash.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tasuki::Operator;
use tasuki::operator::{Actor, Role};

use crate::problem::{FORBIDDEN, Problem, UNAUTHORIZED};

/// Lets nobody through whose token does not count, and names whoever acts to what comes after. Whatever
/// was shown is hashed and looked up alike, so that time tells nothing about it.
pub(crate) async fn authenticate(
    State(operator): State<Operator>,
    mut request: Request,
    next: Next,
) -> Response {
    let refused = |detail: &str| {
        Problem::new(UNAUTHORIZED, detail).on("Authorization").hint(
            "send `Authorization: Bearer TOKEN`; `tasuki up` writes one to its data directory",
        )
    };
    let Some(secret) = bearer(request.headers()) else {
        return refused("there is no bearer token in the request").into_response();
    };
    let token = match operator.bearer(secret).await {
        Ok(Some(token)) => token,
        Ok(None) => {
            return refused("the token is unknown, expired or revoked").into_response();
        }
        Err(error) => return Problem::from(error).into_response(),
    };
    let address = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let address = address.map(|ConnectInfo(address)| address.ip().to_string());
    request.extensions_mut().insert(Actor { name: token.name, address, role: token.role });
    next.run(request).await
}

/// Whether whoever asks may do what needs this role.
pub(crate) fn allows(actor: Option<&Actor>, needed: Role) -> Result<(), Problem> {
    match actor {
        Some(actor) if actor.role >= needed => Ok(()),
        Some(actor) => {
            let detail = format!("this needs the role {needed}, and the token has {}", actor.role);
            Err(Problem::new(FORBIDDEN, detail))
        }
        None => Err(Problem::new(UNAUTHORIZED, "nobody is known to ask")),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}
