//! The OpenAPI document, built from the annotations of the routes and from rules that apply to all of them.
//!
//! Handlers document only what is specific to them. This module adds the error responses that many routes share, such as 401, or
//! 413 for routes with a body, and forbids additional fields in all objects.

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
    PRECONDITION_REQUIRED, ProblemBody, TIMEOUT, TOO_LARGE, UNAUTHORIZED, UNAVAILABLE,
    UNSUPPORTED_MEDIA_TYPE,
};
use crate::route_entry::RouteEntry;

/// Path of the document.
const DOCUMENT_PATH: &str = "/api/openapi.json";
/// Schemas of optional request bodies: an empty body counts as `{}`.
const OPTIONAL_BODIES: [&str; 2] = ["ReasonInput", "TriggerRunInput"];
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// Builds the router of the routes and their document.
pub(crate) fn build_router_and_document(entries: Vec<RouteEntry>) -> (Router<Operator>, Value) {
    let info = OpenApiBuilder::new().info(Info::new("tasuki", "1")).build();
    let mut routes = OpenApiRouter::with_openapi(info);
    let mut roles = Vec::new();
    for RouteEntry { role, route } in entries {
        roles.extend(route.1.paths.keys().cloned().flat_map(|path| {
            let operations = serde_json::to_value(&route.1.paths[&path]).unwrap_or_default();
            let has_operation = move |method: &&str| operations.get(*method).is_some();
            METHODS
                .into_iter()
                .filter(has_operation)
                .map(move |method| (path.clone(), method, role))
        }));
        routes = routes.routes(route);
    }
    let (router, document) = routes.split_for_parts();
    let mut document = serde_json::to_value(document).unwrap_or_default();
    for (path, method, role) in roles {
        document["paths"][&path][method]["x-role"] = role.as_str().into();
    }
    complete_document(&mut document);
    (router, document)
}

/// Route that serves the document.
pub(crate) fn openapi_document_route(document: &Value) -> Router<Operator> {
    let text = document.to_string();
    let json = HeaderValue::from_static("application/json");
    Router::new().route(
        DOCUMENT_PATH,
        get(async move || ([(header::CONTENT_TYPE, json.clone())], text.clone()).into_response()),
    )
}

fn complete_document(document: &mut Value) {
    document["info"]["description"] =
        "The REST API of tasuki. Instants are RFC 3339 in UTC, durations are text such as 300ms, 5s or 30m."
            .into();
    document["info"]["license"] = json!({ "name": "Apache-2.0 OR MIT" });
    let bearer = json!({ "type": "http", "scheme": "bearer" });
    document["components"]["securitySchemes"] = json!({ "bearer": bearer });
    document["security"] = json!([{ "bearer": [] }]);
    // No route documents this schema, because every route can respond with it.
    document["components"]["schemas"]["Problem"] =
        serde_json::to_value(ProblemBody::schema()).unwrap_or_default();
    add_job_patch_schema(document);
    add_other_routes(document);
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        schemas.values_mut().for_each(make_strict);
    }
    let codes: Vec<&str> = CODES.iter().map(|code| code.code).collect();
    document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"] = json!(codes);
    if let Some(paths) = document["paths"].as_object_mut() {
        for (path, methods) in paths {
            for operation in methods.as_object_mut().into_iter().flat_map(Map::values_mut) {
                add_error_responses(path, operation);
                make_parameters_not_nullable(operation);
            }
        }
    }
}

/// Adds the routes that are not in the route table: the health checks and this document.
fn add_other_routes(document: &mut Value) {
    let json = |schema: Value| json!({ "application/json": { "schema": schema } });
    let status = json!({ "type": "object", "properties": { "status": { "const": "ok" } }, "required": ["status"] });
    for (path, id, summary, schema) in [
        ("/healthz", "alive", "Liveness: succeeds while the process runs.", &status),
        ("/readyz", "ready", "Readiness: succeeds if the database responds.", &status),
        (DOCUMENT_PATH, "openapi", "Returns this document.", &json!({ "type": "object" })),
    ] {
        let response = json!({ "description": "success", "content": json(schema.clone()) });
        document["paths"][path]["get"] = json!({
            "operationId": id,
            "summary": summary,
            "tags": ["health"],
            "responses": { "200": response },
        });
    }
    document["paths"][DOCUMENT_PATH]["get"]["x-role"] = "viewer".into();
    document["paths"]["/readyz"]["get"]["responses"]["503"] =
        json!({ "description": "the database does not respond" });
}

/// Adds the schema of a merge patch: all fields of a new job, none of them required.
fn add_job_patch_schema(document: &mut Value) {
    let schemas = &mut document["components"]["schemas"];
    let mut patch = schemas["NewJob"].clone();
    if let Some(patch) = patch.as_object_mut() {
        patch.remove("required");
        patch.insert("example".to_owned(), json!({ "timeout": "5m", "description": null }));
        patch.insert(
            "description".to_owned(),
            "Changes to a job, as a JSON merge patch (RFC 7396).".into(),
        );
    }
    schemas["JobPatch"] = patch;
}

/// Forbids additional fields in objects, and converts patterns that list alternatives to enums.
fn make_strict(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let is_object = fields.get("type").is_some_and(|kind| {
                kind == "object"
                    || kind.as_array().is_some_and(|any| any.contains(&json!("object")))
            });
            if is_object && fields.contains_key("properties") {
                fields.entry("additionalProperties").or_insert(json!(false));
            }
            let values = fields.get("pattern").and_then(Value::as_str).and_then(alternatives_of);
            if let Some(mut values) = values {
                if fields["type"].is_array() {
                    values.push(Value::Null);
                }
                fields.remove("pattern");
                fields.insert("enum".to_owned(), values.into());
            }
            fields.values_mut().for_each(make_strict);
        }
        Value::Array(values) => values.iter_mut().for_each(make_strict),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns the alternatives of a pattern of the form `^(a|b)$`.
fn alternatives_of(pattern: &str) -> Option<Vec<Value>> {
    let inner = pattern.strip_prefix("^(")?.strip_suffix(")$")?;
    let is_plain =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    inner.split('|').map(|text| is_plain(text).then(|| text.into())).collect()
}

/// Adds the error responses that follow from the path, parameters and body of an operation.
fn add_error_responses(path: &str, operation: &mut Value) {
    let parameters: Vec<String> = operation["parameters"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|parameter| {
            format!(
                "{} {}",
                parameter["in"].as_str().unwrap_or_default(),
                parameter["name"].as_str().unwrap_or_default()
            )
        })
        .collect();
    let has = |start: &str| parameters.iter().any(|parameter| parameter.starts_with(start));
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
        let schema = &body["content"]["application/json"]["schema"]["$ref"];
        let schema = schema.as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
        body["required"] = (!OPTIONAL_BODIES.contains(&schema)).into();
        codes.extend([MALFORMED, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID_INPUT]);
    }
    if let Some(responses) = operation["responses"].as_object_mut() {
        for code in codes {
            let problem = json!({ "$ref": "#/components/schemas/Problem" });
            responses.entry(code.status.to_string()).or_insert_with(|| {
                json!({
                    "description": code.title,
                    "content": { "application/problem+json": { "schema": problem } },
                })
            });
        }
        // Error responses that a handler documents with a status and description only are problems too.
        for (status, response) in responses.iter_mut() {
            if status.starts_with(['4', '5']) && response.get("content").is_none() {
                let problem = json!({ "$ref": "#/components/schemas/Problem" });
                response["content"] = json!({ "application/problem+json": { "schema": problem } });
            }
        }
        responses.sort_keys();
    }
}

/// Removes null from the schemas of parameters: a parameter is present or absent, never null.
fn make_parameters_not_nullable(operation: &mut Value) {
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for schema in
        parameters.into_iter().flatten().filter_map(|parameter| parameter.get_mut("schema"))
    {
        make_strict(schema);
        if let Some(kinds) = schema.get("type").and_then(Value::as_array) {
            let kind = kinds.iter().find(|kind| **kind != "null").cloned();
            schema["type"] = kind.unwrap_or_default();
        }
        if let Some(values) = schema.get_mut("enum").and_then(Value::as_array_mut) {
            values.retain(|value| !value.is_null());
        }
    }
}
