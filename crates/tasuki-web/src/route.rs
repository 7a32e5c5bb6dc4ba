//! The table of routes: each with the role it needs and the time it may take.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use tasuki::Operator;
use tasuki::operator::{Actor, Role};
use tasuki_core::duration;
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
    let in_time =
        from_fn(async |request: Request, next: Next| in_time(TIME_LIMIT, next.run(request)).await);
    patiently_needs(role, (schemas, paths, methods.route_layer(in_time)))
}

async fn in_time(limit: Duration, answer: impl Future<Output = Response>) -> Response {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => {
            let detail = format!("the answer took longer than {}", duration::show(limit));
            Problem::new(TIMEOUT, detail)
                .hint("look whether it was done before asking again")
                .into_response()
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use tower_http::catch_panic::CatchPanicLayer;

    async fn told(answer: Response) -> (u16, String) {
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn what_takes_too_long_is_told_in_time() {
        let slow = in_time(Duration::from_millis(20), std::future::pending());
        let (status, body) = told(slow.await).await;
        assert_eq!(status, 408);
        assert!(
            body.contains("\"code\":\"timeout\"") && body.contains("longer than 20ms"),
            "{body}"
        );
        let quick = in_time(Duration::from_secs(5), async { "done".into_response() });
        assert_eq!(told(quick.await).await, (200, "done".to_owned()));
    }

    #[tokio::test]
    async fn a_panic_is_a_problem_like_any_other() {
        let router: Router = Router::new()
            .route("/", get(async || -> &'static str { panic!("a secret") }))
            .layer(CatchPanicLayer::custom(crate::problem::panicked));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let serving = tokio::spawn(crate::serve(listener, router, std::future::pending()));
        let answer = reqwest::get(url).await.expect("an answer");
        assert_eq!(answer.status(), 500);
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        let body = answer.text().await.expect("a body");
        assert!(body.contains("\"code\":\"internal\"") && !body.contains("secret"), "{body}");
        serving.abort();
    }
}
