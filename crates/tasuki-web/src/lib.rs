//! The REST API of tasuki, a thin layer over [`Operator`].
//!
//! Every response matches `/api/openapi.json`. Every error is `application/problem+json` with a stable code and, if a field is
//! invalid, its name. Every request except `/healthz` and `/readyz` needs a token. Size of bodies, length of pages and duration of
//! requests are limited.
//!
//! Deliberately absent: decisions about runs, which are guards in the store, and any state between two requests.

pub mod api;
mod auth;
mod input;
mod openapi;
mod problem;
mod route_entry;
mod serve;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use tasuki::Operator;
use tower_http::catch_panic::CatchPanicLayer;

pub use problem::{CODES, ProblemCode};
pub use serve::serve;

/// Creates the router of the REST API, ready for [`serve()`].
pub fn router(operator: Operator) -> Router {
    let (routes, document) = openapi::build_router_and_document(api::list_routes_with_roles());
    let routes = routes
        .merge(openapi::openapi_document_route(&document))
        .fallback(problem::unknown_path)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(from_fn_with_state(operator.clone(), auth::authenticate));
    api::health_routes()
        .merge(routes)
        .layer(CatchPanicLayer::custom(problem::panic_response))
        .layer(from_fn(route_entry::add_security_headers))
        .with_state(operator)
}

/// Returns the OpenAPI document of [`router`], as it is served and as it is stored in the repository.
pub fn build_openapi_text() -> String {
    let (_, document) = openapi::build_router_and_document(api::list_routes_with_roles());
    format!("{document:#}\n")
}
