//! Authorization: every route with every role. The routes come from the OpenAPI document.

use reqwest::{Method, header};
use serde_json::{Value, json};
use tasuki::operator::AccessRole;

use crate::fixtures::{Server, send_request};

/// Returns every route and the role that it needs.
async fn routes(server: &Server) -> Vec<(Method, String, AccessRole)> {
    let document = server.request_without_token(Method::GET, "/api/openapi.json");
    let token = server.create_token(AccessRole::Viewer).await;
    let document = send_request(document.bearer_auth(token)).await.expect_status(200);
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            if let Some(role) = operation["x-role"].as_str() {
                let method = method.to_uppercase().parse().unwrap();
                // Names and ids that do not exist, so that the requests change nothing.
                let path = path.replace("{name}", "nobody").replace("{id}", "999999");
                routes.push((method, path, role.parse().unwrap()));
            }
        }
    }
    assert!(routes.len() > 35, "{routes:?}");
    routes
}

#[tokio::test]
async fn a_request_without_the_needed_role_is_forbidden() {
    let server = Server::start().await;
    let routes = routes(&server).await;
    for &role in AccessRole::ALL {
        let token = server.create_token(role).await;
        for (method, path, needed) in &routes {
            let request = server.request_without_token(method.clone(), path).bearer_auth(&token);
            let response = send_request(request).await;
            let refused = response.status == 403;
            assert_eq!(refused, role < *needed, "{role} {method} {path}: {response:?}");
            assert_ne!(response.status, 401, "{role} {method} {path}");
            assert!(response.status < 500, "{role} {method} {path}: {response:?}");
        }
    }
}

/// The roles as in the design document, written a second time to detect a mistake in the route table.
#[tokio::test]
async fn the_roles_are_those_of_the_design() {
    let server = Server::start().await;
    for (method, path, needed) in routes(&server).await {
        let ends_with = |suffixes: &[&str]| suffixes.iter().any(|suffix| path.ends_with(suffix));
        let expected = match method {
            Method::GET if path.contains("/audit") || path.contains("/tokens") => AccessRole::Admin,
            Method::GET if ends_with(&["/wait"]) => AccessRole::Operator,
            Method::GET => AccessRole::Viewer,
            _ if path.contains("/tokens") || path.contains("/settings") => AccessRole::Admin,
            Method::POST if ends_with(&["/schedules/preview"]) => AccessRole::Viewer,
            Method::POST if ends_with(&["/pause", "/resume", "/trigger"]) => AccessRole::Operator,
            _ if path.contains("/jobs") => AccessRole::Author,
            _ => AccessRole::Operator,
        };
        assert_eq!(needed, expected, "{method} {path}");
    }
}

#[tokio::test]
async fn every_route_except_health_checks_needs_a_token() {
    let server = Server::start().await;
    let mut paths: Vec<(Method, String)> =
        routes(&server).await.into_iter().map(|(method, path, _)| (method, path)).collect();
    for other in ["/", "/api/openapi.json", "/api/v1/nothing", "/metrics", "/api/v1/jobs/"] {
        paths.push((Method::GET, other.to_owned()));
    }
    for (method, path) in paths {
        let refused = send_request(server.request_without_token(method.clone(), &path)).await;
        assert_eq!(refused.error(), (401, "unauthorized", "Authorization"), "{method} {path}");
        for invalid in ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer tsk_0000", "tsk_0000"] {
            let request = server
                .request_without_token(method.clone(), &path)
                .header(header::AUTHORIZATION, invalid);
            assert_eq!(send_request(request).await.status, 401, "{method} {path} {invalid:?}");
        }
    }
    for path in ["/healthz", "/readyz"] {
        let response = send_request(server.request_without_token(Method::GET, path)).await;
        assert_eq!(response.expect_status(200), json!({ "status": "ok" }), "{path}");
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problem_responses() {
    let server = Server::start().await;
    for path in ["/nothing", "/jobs/a/b/c", "/runs/1/nothing", "/runs/%ff"] {
        assert_eq!(server.get(path).await.error().1, "not_found", "{path}");
    }
    for (method, path) in
        [(Method::DELETE, "/runs"), (Method::PUT, "/jobs/a"), (Method::POST, "/me")]
    {
        let refused = send_request(server.request(method, path)).await;
        assert_eq!(
            (refused.status, &refused.body["code"]),
            (405, &Value::from("method_not_allowed")),
            "{path}"
        );
    }
}
