//! The REST API of tasuki: what people may ask, over HTTP, thin over [`Operator`].
//!
//! What it promises: every answer is what `/api/openapi.json` says it is; every refusal is
//! `application/problem+json` with a stable code and, where a field is at fault, its name; nothing but
//! `/healthz` and `/readyz` answers without a token; body, page and time have limits.
//!
//! Deliberately not here: decisions about runs (they are the store's guards) and anything remembered
//! between two requests.

pub mod api;
mod auth;
mod document;
mod input;
mod problem;
mod route;
mod serve;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use tasuki::Operator;
use tower_http::catch_panic::CatchPanicLayer;

pub use problem::{CODES, Code};
pub use serve::serve;

/// Everything people may ask of this operator, as a router that is ready to be served.
pub fn router(operator: Operator) -> Router {
    let (asked, document) = document::finish(api::routes());
    let asked = asked
        .merge(document::route(&document))
        .fallback(problem::nothing_here)
        .method_not_allowed_fallback(problem::wrong_method)
        .layer(from_fn_with_state(operator.clone(), auth::authenticate));
    api::health()
        .merge(asked)
        .layer(CatchPanicLayer::custom(problem::panicked))
        .layer(from_fn(route::plainly))
        .with_state(operator)
}

/// The OpenAPI document of [`router`], as it is served and as it stands in the repository.
pub fn openapi() -> String {
    let (_, document) = document::finish(api::routes());
    format!("{document:#}\n")
}
