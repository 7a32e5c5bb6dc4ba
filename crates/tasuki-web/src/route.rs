//! The table of routes: each with the role it needs and the time it may take.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use tasuki::Operator;
use tasuki::operator::{Actor, Role};
use utoipa_axum::router::UtoipaMethodRouter;

use crate::auth;
use crate::problem::{Problem, TIMEOUT};

/// How long an answer may take, where waiting is not what was asked for.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);

/// One route of the table.
pub(crate) struct Entry {
    /// Who may ask.
    pub(crate) role: Role,
    /// What is asked.
    pub(crate) route: UtoipaMethodRouter<Operator>,
}

/// A route that needs a role and answers in time.
pub(crate) fn needs(role: Role, (schemas, paths, methods): UtoipaMethodRouter<Operator>) -> Entry {
    let in_time = from_fn(move |request: Request, next: Next| async move {
        match tokio::time::timeout(TIME_LIMIT, next.run(request)).await {
            Ok(answer) => answer,
            Err(_) => Problem::new(TIMEOUT, "the answer took longer than 30 s").into_response(),
        }
    });
    patiently_needs(role, (schemas, paths, methods.route_layer(in_time)))
}

/// A route that needs a role and takes as long as it takes: it waits, or goes on and on.
pub(crate) fn patiently_needs(
    role: Role,
    (schemas, paths, methods): UtoipaMethodRouter<Operator>,
) -> Entry {
    let allowed = from_fn(move |request: Request, next: Next| async move {
        match auth::allows(request.extensions().get::<Actor>(), role) {
            Ok(()) => next.run(request).await,
            Err(problem) => problem.into_response(),
        }
    });
    Entry { role, route: (schemas, paths, methods.route_layer(allowed)) }
}

/// Answers hold what only their reader may see, and are what their type says.
pub(crate) async fn plainly(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}
