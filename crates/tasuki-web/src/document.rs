//! The OpenAPI document: what the routes say of themselves, and what is true of all of them.
//!
//! Handlers name what is particular to them. That any of them can answer 401, or 413 if it takes a body,
//! is said once, here; so is that no object has more fields than it says.

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::{Map, Value, json};
use tasuki::Operator;
use utoipa::PartialSchema as _;
use utoipa::openapi::{Info, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;

use crate::problem::{
    CODES, CONFLICT, FORBIDDEN, INTERNAL, INVALID_INPUT, MALFORMED, NOT_FOUND,
    PRECONDITION_REQUIRED, Refusal, TIMEOUT, TOO_LARGE, UNAUTHORIZED, UNAVAILABLE,
    UNSUPPORTED_MEDIA_TYPE,
};
use crate::route::Entry;

const PATH: &str = "/api/openapi.json";
/// Shapes of which nothing at all stands for `{}`.
const OPTIONAL: [&str; 2] = ["Why", "TriggerAsked"];
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// The routes as a router, and the document of them.
pub(crate) fn finish(entries: Vec<Entry>) -> (Router<Operator>, Value) {
    let about = OpenApiBuilder::new().info(Info::new("tasuki", "1")).build();
    let mut routes = OpenApiRouter::with_openapi(about);
    let mut roles = Vec::new();
    for Entry { role, route } in entries {
        roles.extend(route.1.paths.keys().cloned().flat_map(|path| {
            let operations = serde_json::to_value(&route.1.paths[&path]).unwrap_or_default();
            let known = move |method: &&str| operations.get(*method).is_some();
            METHODS.into_iter().filter(known).map(move |method| (path.clone(), method, role))
        }));
        routes = routes.routes(route);
    }
    let (router, document) = routes.split_for_parts();
    let mut document = serde_json::to_value(document).unwrap_or_default();
    for (path, method, role) in roles {
        document["paths"][&path][method]["x-role"] = role.as_str().into();
    }
    complete(&mut document);
    (router, document)
}

/// Serves the document.
pub(crate) fn route(document: &Value) -> Router<Operator> {
    let text = document.to_string();
    let json = HeaderValue::from_static("application/json");
    Router::new().route(
        PATH,
        get(async move || ([(header::CONTENT_TYPE, json.clone())], text.clone()).into_response()),
    )
}

fn complete(document: &mut Value) {
    document["info"]["description"] =
        "What people may ask of tasuki. Instants are RFC 3339 in UTC, durations are text such as 300ms, 5s or 30m."
            .into();
    document["info"]["license"] = json!({ "name": "Apache-2.0 OR MIT" });
    let bearer = json!({ "type": "http", "scheme": "bearer" });
    document["components"]["securitySchemes"] = json!({ "bearer": bearer });
    document["security"] = json!([{ "bearer": [] }]);
    // No route names it, because every route can answer with it.
    document["components"]["schemas"]["Problem"] =
        serde_json::to_value(Refusal::schema()).unwrap_or_default();
    patch_of_a_job(document);
    beside_the_table(document);
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        schemas.values_mut().for_each(strict);
    }
    let codes: Vec<&str> = CODES.iter().map(|code| code.code).collect();
    document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"] = json!(codes);
    if let Some(paths) = document["paths"].as_object_mut() {
        for (path, methods) in paths {
            for operation in methods.as_object_mut().into_iter().flat_map(Map::values_mut) {
                answers(path, operation);
                parameters(operation);
            }
        }
    }
}

/// What stands in no table of routes: the process, its database and this document.
fn beside_the_table(document: &mut Value) {
    let json = |schema: Value| json!({ "application/json": { "schema": schema } });
    let status = json!({ "type": "object", "properties": { "status": { "const": "ok" } }, "required": ["status"] });
    for (path, id, summary, schema) in [
        ("/healthz", "alive", "The process lives.", &status),
        ("/readyz", "ready", "The database answers.", &status),
        (PATH, "openapi", "This document.", &json!({ "type": "object" })),
    ] {
        let answer = json!({ "description": "it does", "content": json(schema.clone()) });
        document["paths"][path]["get"] = json!({
            "operationId": id,
            "summary": summary,
            "tags": ["health"],
            "responses": { "200": answer },
        });
    }
    document["paths"][PATH]["get"]["x-role"] = "viewer".into();
    document["paths"]["/readyz"]["get"]["responses"]["503"] =
        json!({ "description": "it does not" });
}

/// A merge patch has every field of a job but needs none.
fn patch_of_a_job(document: &mut Value) {
    let schemas = &mut document["components"]["schemas"];
    let mut patch = schemas["NewJob"].clone();
    if let Some(patch) = patch.as_object_mut() {
        patch.remove("required");
        patch.insert("example".to_owned(), json!({ "timeout": "5m", "description": null }));
        patch.insert("description".to_owned(), "What is to change of a job (RFC 7396).".into());
    }
    schemas["JobPatch"] = patch;
}

/// Nothing has more fields than it says, and a word from a list is one of the list.
fn strict(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let is_object = fields.get("type").is_some_and(|kind| {
                kind == "object"
                    || kind.as_array().is_some_and(|any| any.contains(&json!("object")))
            });
            if is_object && fields.contains_key("properties") {
                fields.entry("additionalProperties").or_insert(json!(false));
            }
            let words = fields.get("pattern").and_then(Value::as_str).and_then(words_of);
            if let Some(mut words) = words {
                if fields["type"].is_array() {
                    words.push(Value::Null);
                }
                fields.remove("pattern");
                fields.insert("enum".to_owned(), words.into());
            }
            fields.values_mut().for_each(strict);
        }
        Value::Array(values) => values.iter_mut().for_each(strict),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// `^(a|b)$` is a list of words.
fn words_of(pattern: &str) -> Option<Vec<Value>> {
    let inner = pattern.strip_prefix("^(")?.strip_suffix(")$")?;
    let plain = |word: &str| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    inner.split('|').map(|word| plain(word).then(|| word.into())).collect()
}

/// What any route can answer besides what it says itself.
fn answers(path: &str, operation: &mut Value) {
    let given: Vec<String> = operation["parameters"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| {
            format!(
                "{} {}",
                one["in"].as_str().unwrap_or_default(),
                one["name"].as_str().unwrap_or_default()
            )
        })
        .collect();
    let has = |start: &str| given.iter().any(|one| one.starts_with(start));
    let mut codes = vec![INTERNAL];
    if path.starts_with("/api/") {
        codes.extend([UNAUTHORIZED, FORBIDDEN, TIMEOUT, UNAVAILABLE]);
    } else {
        operation["security"] = json!([]);
    }
    if has("path ") {
        codes.push(NOT_FOUND);
    }
    if has("query ") {
        codes.push(MALFORMED);
    }
    if has("header If-Match") {
        codes.extend([MALFORMED, PRECONDITION_REQUIRED, CONFLICT]);
    }
    if has("header Idempotency-Key") {
        codes.push(INVALID_INPUT);
    }
    if let Some(body) = operation.get_mut("requestBody") {
        let shape = &body["content"]["application/json"]["schema"]["$ref"];
        let shape = shape.as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
        body["required"] = (!OPTIONAL.contains(&shape)).into();
        codes.extend([MALFORMED, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID_INPUT]);
    }
    if let Some(answers) = operation["responses"].as_object_mut() {
        for code in codes {
            let problem = json!({ "$ref": "#/components/schemas/Problem" });
            answers.entry(code.status.to_string()).or_insert_with(|| {
                json!({
                    "description": code.title,
                    "content": { "application/problem+json": { "schema": problem } },
                })
            });
        }
        // Those that handlers name by their number alone are problems too.
        for (status, answer) in answers.iter_mut() {
            if status.starts_with(['4', '5']) && answer.get("content").is_none() {
                let problem = json!({ "$ref": "#/components/schemas/Problem" });
                answer["content"] = json!({ "application/problem+json": { "schema": problem } });
            }
        }
        answers.sort_keys();
    }
}

/// A parameter is there or not; it is never null.
fn parameters(operation: &mut Value) {
    let given = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for schema in given.into_iter().flatten().filter_map(|one| one.get_mut("schema")) {
        strict(schema);
        if let Some(kinds) = schema.get("type").and_then(Value::as_array) {
            let kind = kinds.iter().find(|kind| **kind != "null").cloned();
            schema["type"] = kind.unwrap_or_default();
        }
        if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
            words.retain(|word| !word.is_null());
        }
    }
}
