//! Entries of the route table: a route with the role that it needs and its timeout.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use tasuki::Operator;
use tasuki::operator::{AccessRole, Actor};
use tasuki_core::duration;
use utoipa_axum::router::UtoipaMethodRouter;

use crate::auth;
use crate::problem::{Problem, TIMEOUT};

/// Timeout of a request, except for requests that wait or stream.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A route and the role that it needs.
pub(crate) struct RouteEntry {
    /// Role that the caller must have at least.
    pub(crate) role: AccessRole,
    /// The route with its documentation.
    pub(crate) route: UtoipaMethodRouter<Operator>,
}

/// A route that needs a role and has a timeout.
pub(crate) fn route_for_role(
    role: AccessRole,
    (schemas, paths, methods): UtoipaMethodRouter<Operator>,
) -> RouteEntry {
    let timeout_layer = from_fn(async |request: Request, next: Next| {
        with_timeout(REQUEST_TIMEOUT, next.run(request)).await
    });
    streaming_route_for_role(role, (schemas, paths, methods.route_layer(timeout_layer)))
}

async fn with_timeout(limit: Duration, response: impl Future<Output = Response>) -> Response {
    match tokio::time::timeout(limit, response).await {
        Ok(response) => response,
        Err(_) => {
            let detail =
                format!("the request took longer than {}", duration::format_exact_duration(limit));
            Problem::new(TIMEOUT, detail)
                .with_hint("check whether the request had an effect before you send it again")
                .into_response()
        }
    }
}

/// A route that needs a role and has no timeout, because it waits or streams.
pub(crate) fn streaming_route_for_role(
    role: AccessRole,
    (schemas, paths, methods): UtoipaMethodRouter<Operator>,
) -> RouteEntry {
    let authorize = from_fn(move |request: Request, next: Next| async move {
        match auth::require_role(request.extensions().get::<Actor>(), role) {
            Ok(()) => next.run(request).await,
            Err(problem) => problem.into_response(),
        }
    });
    RouteEntry { role, route: (schemas, paths, methods.route_layer(authorize)) }
}

/// Forbids caching, because responses contain data for the caller only, and guessing of content types.
pub(crate) async fn add_security_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use tower_http::catch_panic::CatchPanicLayer;

    async fn status_and_body(response: Response) -> (u16, String) {
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("a body");
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn a_slow_request_times_out() {
        let slow = with_timeout(Duration::from_millis(20), std::future::pending());
        let (status, body) = status_and_body(slow.await).await;
        assert_eq!(status, 408);
        assert!(
            body.contains("\"code\":\"timeout\"") && body.contains("longer than 20ms"),
            "{body}"
        );
        let quick = with_timeout(Duration::from_secs(5), async { "done".into_response() });
        assert_eq!(status_and_body(quick.await).await, (200, "done".to_owned()));
    }

    #[tokio::test]
    async fn a_panic_becomes_a_problem_response() {
        let router: Router = Router::new()
            .route("/", get(async || -> &'static str { panic!("a secret") }))
            .layer(CatchPanicLayer::custom(crate::problem::panic_response));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let server = tokio::spawn(crate::serve(listener, router, std::future::pending()));
        let response = reqwest::get(url).await.expect("a response");
        assert_eq!(response.status(), 500);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        let body = response.text().await.expect("a body");
        assert!(body.contains("\"code\":\"internal\"") && !body.contains("secret"), "{body}");
        server.abort();
    }
}
