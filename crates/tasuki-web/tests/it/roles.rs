//! Every route with every role, from the list of routes itself.

use reqwest::{Method, header};
use serde_json::{Value, json};
use tasuki::operator::Role;

use crate::workshop::{Server, answer};

/// Every route there is, and the role it needs.
async fn routes(server: &Server) -> Vec<(Method, String, Role)> {
    let document = server.stranger(Method::GET, "/api/openapi.json");
    let token = server.token_of(Role::Viewer).await;
    let document = answer(document.bearer_auth(token)).await.ok(200);
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            if let Some(role) = operation["x-role"].as_str() {
                let method = method.to_uppercase().parse().unwrap();
                // The last row of a table that is never there: nothing is done to anybody.
                let path = path.replace("{name}", "nobody").replace("{id}", "999999");
                routes.push((method, path, role.parse().unwrap()));
            }
        }
    }
    assert!(routes.len() > 35, "{routes:?}");
    routes
}

#[tokio::test]
async fn nobody_does_what_their_role_does_not_allow() {
    let server = Server::start().await;
    let routes = routes(&server).await;
    for &role in Role::ALL {
        let token = server.token_of(role).await;
        for (method, path, needed) in &routes {
            let request = server.stranger(method.clone(), path).bearer_auth(&token);
            let answer = answer(request).await;
            let refused = answer.status == 403;
            assert_eq!(refused, role < *needed, "{role} {method} {path}: {answer:?}");
            assert_ne!(answer.status, 401, "{role} {method} {path}");
            assert!(answer.status < 500, "{role} {method} {path}: {answer:?}");
        }
    }
}

/// What the design says, spelled out once more: a role that slips in the table is noticed here.
#[tokio::test]
async fn the_roles_are_those_of_the_design() {
    let server = Server::start().await;
    for (method, path, needed) in routes(&server).await {
        let says = |words: &[&str]| words.iter().any(|word| path.ends_with(word));
        let expected = match method {
            Method::GET if path.contains("/audit") || path.contains("/tokens") => Role::Admin,
            Method::GET if says(&["/wait"]) => Role::Operator,
            Method::GET => Role::Viewer,
            _ if path.contains("/tokens") || path.contains("/settings") => Role::Admin,
            Method::POST if says(&["/schedules/preview"]) => Role::Viewer,
            Method::POST if says(&["/pause", "/resume", "/trigger"]) => Role::Operator,
            _ if path.contains("/jobs") => Role::Author,
            _ => Role::Operator,
        };
        assert_eq!(needed, expected, "{method} {path}");
    }
}

#[tokio::test]
async fn nothing_but_health_answers_without_a_token() {
    let server = Server::start().await;
    let mut paths: Vec<(Method, String)> =
        routes(&server).await.into_iter().map(|(method, path, _)| (method, path)).collect();
    for other in ["/", "/api/openapi.json", "/api/v1/nothing", "/metrics", "/api/v1/jobs/"] {
        paths.push((Method::GET, other.to_owned()));
    }
    for (method, path) in paths {
        let refused = answer(server.stranger(method.clone(), &path)).await;
        assert_eq!(refused.refusal(), (401, "unauthorized", "Authorization"), "{method} {path}");
        for wrong in ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer tsk_0000", "tsk_0000"] {
            let request =
                server.stranger(method.clone(), &path).header(header::AUTHORIZATION, wrong);
            assert_eq!(answer(request).await.status, 401, "{method} {path} {wrong:?}");
        }
    }
    for path in ["/healthz", "/readyz"] {
        let told = answer(server.stranger(Method::GET, path)).await;
        assert_eq!(told.ok(200), json!({ "status": "ok" }), "{path}");
    }
}

#[tokio::test]
async fn what_is_not_there_and_what_cannot_be_done_are_problems_too() {
    let server = Server::start().await;
    for path in ["/nothing", "/jobs/a/b/c", "/runs/1/nothing", "/runs/%ff"] {
        assert_eq!(server.get(path).await.refusal().1, "not_found", "{path}");
    }
    for (method, path) in
        [(Method::DELETE, "/runs"), (Method::PUT, "/jobs/a"), (Method::POST, "/me")]
    {
        let refused = answer(server.ask(method, path)).await;
        assert_eq!(
            (refused.status, &refused.body["code"]),
            (405, &Value::from("method_not_allowed")),
            "{path}"
        );
    }
}
