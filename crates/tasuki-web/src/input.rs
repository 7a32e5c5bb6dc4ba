//! Input of requests: bodies, parameters and headers. They are parsed strictly, and errors name the invalid field.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tasuki::Operator;
use tasuki::operator::Actor;
use tasuki_core::{InvalidInput, duration};
use utoipa::IntoParams;

use crate::problem::{
    INVALID_INPUT, MALFORMED, PRECONDITION_REQUIRED, Problem, TIMEOUT, TOO_LARGE, UNAUTHORIZED,
    UNSUPPORTED_MEDIA_TYPE,
};
use crate::serve::ShutdownSignal;

/// Default maximum size of a body, in bytes.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 20;
/// A body that is too large is read and discarded up to this size, in bytes, so that the client receives the error response instead
/// of a closed connection.
const MAX_DISCARDED_BYTES: usize = 64 << 20;
/// Maximum length of a page.
const MAX_PAGE_LIMIT: u32 = 200;
/// Default length of a page.
const DEFAULT_PAGE_LIMIT: u32 = 50;
/// Maximum length of a reason, in characters.
const MAX_REASON_CHARS: usize = 1_000;

/// A type that a route accepts as its body.
pub(crate) trait RequestInput: DeserializeOwned {
    /// Maximum size of the body, in bytes.
    const MAX_BYTES: usize = MAX_BODY_BYTES;
    /// Name of the field that makes the body large, for the error message.
    const SIZE_FIELD: &'static str = "body";
    /// Whether an empty body counts as `{}`.
    const OPTIONAL: bool = false;
}

/// A JSON body.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: RequestInput, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let bytes = read_body(request, T::MAX_BYTES, T::SIZE_FIELD).await?;
        if bytes.is_empty() && T::OPTIONAL {
            return parse_json("{}").map(Self);
        }
        if !is_json {
            let detail = "the Content-Type of the body is not application/json";
            return Err(Problem::new(UNSUPPORTED_MEDIA_TYPE, detail).with_field("Content-Type"));
        }
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let detail =
                format!("the body is not valid UTF-8: byte {} is invalid", error.valid_up_to());
            Problem::new(MALFORMED, detail).with_field("body")
        })?;
        parse_json(text).map(Self)
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    ["application/json", "application/merge-patch+json"]
        .iter()
        .any(|known| media_type.eq_ignore_ascii_case(known))
}

async fn read_body(
    mut request: Request,
    max_bytes: usize,
    size_field: &str,
) -> Result<Bytes, Problem> {
    let stopping = ShutdownSignal::wait(request.extensions_mut().remove::<ShutdownSignal>());
    let mut stopping = std::pin::pin!(stopping);
    let mut chunks = request.into_body().into_data_stream();
    let (mut body, mut length) = (Vec::new(), 0);
    loop {
        let chunk = tokio::select! {
            biased;
            chunk = chunks.next() => chunk,
            () = &mut stopping => {
                let detail = "the server is stopping, and the body has not arrived completely";
                return Err(Problem::new(TIMEOUT, detail).with_field("body"));
            }
        };
        let Some(chunk) = chunk else { break };
        let chunk = chunk.map_err(|_| {
            Problem::new(MALFORMED, "the connection closed before the body had arrived completely")
                .with_field("body")
        })?;
        length += chunk.len();
        if length > MAX_DISCARDED_BYTES {
            break;
        }
        if length <= max_bytes {
            body.extend_from_slice(&chunk);
        }
    }
    match length <= max_bytes {
        true => Ok(body.into()),
        false => Err(too_large(max_bytes, size_field)),
    }
}

fn too_large(max_bytes: usize, field: &str) -> Problem {
    Problem::new(TOO_LARGE, format!("{field} is too large: the maximum is {max_bytes} bytes"))
        .with_field(field)
}

/// A value that must be a JSON object. Without it, serde also accepts an array of the field values in their order, which is not
/// documented.
pub(crate) struct JsonObject<T>(pub(crate) T);

impl<T> std::ops::Deref for JsonObject<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = JsonObject<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<JsonObject<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(JsonObject)
    }
}

/// Parses JSON. Errors name the invalid field.
pub(crate) fn parse_json<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let JsonObject(value) = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        json_problem(&path, error.inner())
    })?;
    reader.end().map_err(|error| json_problem(".", &error))?;
    Ok(value)
}

/// Converts parsed JSON. Errors name the invalid field.
pub(crate) fn from_json_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, Problem> {
    let parsed: Result<JsonObject<T>, _> = serde_path_to_error::deserialize(value);
    parsed.map(|JsonObject(parsed)| parsed).map_err(|error| {
        let path = error.path().to_string();
        json_problem(&path, error.inner())
    })
}

fn json_problem(path: &str, error: &serde_json::Error) -> Problem {
    use serde_json::error::Category;
    let message = error.to_string();
    if matches!(error.classify(), Category::Syntax | Category::Eof | Category::Io) {
        return Problem::new(MALFORMED, format!("the body is not JSON: {message}"))
            .with_field("body");
    }
    // The position in the text is removed: the name of the field is more useful.
    let message = message.split(" at line ").next().unwrap_or_default();
    let field_after = |prefix: &str| {
        let name = message.strip_prefix(prefix)?.split('`').next()?;
        Some(match path {
            "." => name.to_owned(),
            path if path == name || path.ends_with(&format!(".{name}")) => path.to_owned(),
            path => format!("{path}.{name}"),
        })
    };
    let field = field_after("unknown field `").or_else(|| field_after("missing field `"));
    let field = field.unwrap_or_else(|| match path {
        "." => "body".to_owned(),
        path => path.to_owned(),
    });
    Problem::new(INVALID_INPUT, format!("{field}: {message}")).with_field(field)
}

/// Query parameters.
pub(crate) struct QueryParams<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Query::<T>::try_from_uri(&parts.uri).map(|Query(query)| Self(query)).map_err(|rejection| {
            let message = rejection.body_text();
            let message = message.rsplit("query string: ").next().unwrap_or(&message).to_owned();
            let field = message.split('`').nth(1).unwrap_or("query").to_owned();
            Problem::new(MALFORMED, message).with_field(field)
        })
    }
}

/// The name or id in the path, not validated.
pub(crate) struct UnvalidatedPathParam(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for UnvalidatedPathParam {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(_) => Err(Problem::not_found("page", parts.uri.path())),
        }
    }
}

impl UnvalidatedPathParam {
    /// Parses the id of an object of this kind. An invalid id is the id of no object, so the error is "not found".
    pub(crate) fn id<T: std::str::FromStr>(&self, kind: &str) -> Result<T, Problem> {
        self.0.parse().map_err(|_| Problem::not_found(kind, &self.0))
    }
}

/// Common input of requests that change an object: the actor, the name or id in the path, and headers. The object is not read yet,
/// so that errors in the body are reported first.
pub(crate) struct ActionContext {
    pub(crate) operator: Operator,
    pub(crate) actor: Actor,
    pub(crate) target: UnvalidatedPathParam,
    pub(crate) headers: ActionHeaders,
}

impl FromRequestParts<Operator> for ActionContext {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, operator: &Operator) -> Result<Self, Problem> {
        let unauthorized = || Problem::new(UNAUTHORIZED, "the request has no valid token");
        Ok(Self {
            operator: operator.clone(),
            actor: parts.extensions.get::<Actor>().cloned().ok_or_else(unauthorized)?,
            target: UnvalidatedPathParam::from_request_parts(parts, operator).await?,
            headers: ActionHeaders::from_request_parts(parts, operator).await?,
        })
    }
}

/// The header If-Match of changes that require the current version, for the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "ActionHeaders reads it; this struct only documents it")]
pub(crate) struct IfMatchHeaderDoc {
    #[param(rename = "If-Match", pattern = r#"^(\*|"[0-9]{1,18}")$"#)]
    if_match: String,
}

/// Headers with additional parameters of a request.
pub(crate) struct ActionHeaders(HeaderMap);

impl<S: Send + Sync> FromRequestParts<S> for ActionHeaders {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self(parts.headers.clone()))
    }
}

impl ActionHeaders {
    /// Parses `If-Match`: the version that the object must still have; `None`: any version (`*`).
    pub(crate) fn if_match(&self) -> Result<Option<i64>, Problem> {
        let expected = "a version in quotes such as \"3\", or *";
        let Some(value) = self.0.get(header::IF_MATCH) else {
            let detail = "the header If-Match with the version of the object is missing";
            return Err(Problem::new(PRECONDITION_REQUIRED, detail)
                .with_field("If-Match")
                .with_hint("send the ETag of the last response, or * to accept any version"));
        };
        let text = value.to_str().unwrap_or("bytes").trim();
        if text == "*" {
            return Ok(None);
        }
        let version = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let digits = version.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        match digits.and_then(|text| text.parse().ok()) {
            Some(version) => Ok(Some(version)),
            None => {
                Err(Problem::malformed("If-Match", &InvalidInput::with_value("", text, expected)))
            }
        }
    }

    /// Parses `Idempotency-Key`: two requests with the same key create one object.
    pub(crate) fn idempotency_key(&self) -> Result<Option<String>, Problem> {
        let name = HeaderName::from_static("idempotency-key");
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let invalid = |found: &str| {
            Problem::invalid("Idempotency-Key", &InvalidInput::with_value("", found, EXPECTED_KEY))
        };
        let text = value.to_str().map_err(|_| invalid("bytes"))?;
        match !text.trim().is_empty() && text.trim() == text && text.len() <= 191 {
            true => Ok(Some(text.to_owned())),
            false => Err(invalid(text)),
        }
    }

    /// Id of the last event that the client has received before its stream was interrupted.
    pub(crate) fn last_event_id(&self) -> Option<&str> {
        self.0.get("last-event-id")?.to_str().ok()
    }
}

const EXPECTED_KEY: &str = "1 to 191 visible ASCII characters";

/// Parses the query parameter `limit`: the length of a page.
pub(crate) fn parse_page_limit(text: Option<&str>) -> Result<u32, Problem> {
    parse_number_param("limit", text, 1, MAX_PAGE_LIMIT)
        .map(|limit| limit.unwrap_or(DEFAULT_PAGE_LIMIT))
}

/// Parses a number in a query parameter.
pub(crate) fn parse_number_param<N>(
    field: &str,
    text: Option<&str>,
    min: N,
    max: N,
) -> Result<Option<N>, Problem>
where
    N: std::str::FromStr + Copy + PartialOrd + fmt::Display,
{
    let Some(text) = text else { return Ok(None) };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<N>().ok().filter(|number| digits && *number >= min && *number <= max) {
        Some(number) => Ok(Some(number)),
        None => {
            let expected = format!("a number from {min} to {max}");
            Err(Problem::malformed(field, &InvalidInput::with_value("", text, expected)))
        }
    }
}

/// Parses a query parameter.
pub(crate) fn parse_optional_param<T: std::str::FromStr<Err = InvalidInput>>(
    field: &str,
    text: Option<&str>,
) -> Result<Option<T>, Problem> {
    let parsed = text.map(str::parse::<T>).transpose();
    parsed.map_err(|invalid| Problem::malformed(field, &invalid))
}

const EXPECTED_INSTANT: &str = "an instant such as 2026-11-16T03:00:00Z";

fn to_instant(text: &str) -> Option<Timestamp> {
    // Truncated to microseconds, which is the precision in the databases.
    let instant: Timestamp = text.parse().ok()?;
    Timestamp::from_microsecond(instant.as_microsecond()).ok()
}

/// Parses an instant in a body.
pub(crate) fn parse_instant(field: &str, text: Option<&str>) -> Result<Option<Timestamp>, Problem> {
    let problem =
        |text: &str| Problem::invalid(field, &InvalidInput::with_value("", text, EXPECTED_INSTANT));
    text.map(|text| to_instant(text).ok_or_else(|| problem(text))).transpose()
}

/// Parses an instant in a query parameter.
pub(crate) fn parse_instant_param(
    field: &str,
    text: Option<&str>,
) -> Result<Option<Timestamp>, Problem> {
    let problem = |text: &str| {
        Problem::malformed(field, &InvalidInput::with_value("", text, EXPECTED_INSTANT))
    };
    text.map(|text| to_instant(text).ok_or_else(|| problem(text))).transpose()
}

/// Parses a duration in a body.
pub(crate) fn parse_duration(field: &str, text: Option<&str>) -> Result<Option<Duration>, Problem> {
    let parsed = text.map(|text| duration::parse_duration_field("duration", text)).transpose();
    parsed.map_err(|invalid| Problem::invalid(field, &invalid))
}

/// Validates a reason. It is stored and displayed unchanged.
pub(crate) fn parse_reason(text: &str) -> Result<String, Problem> {
    let is_valid = !text.trim().is_empty()
        && text.chars().count() <= MAX_REASON_CHARS
        && !text.chars().any(|c| c.is_control() && c != '\n' && c != '\t');
    match is_valid {
        true => Ok(text.to_owned()),
        false => {
            let expected = "1 to 1000 visible characters";
            Err(Problem::invalid("reason", &InvalidInput::with_value("", text, expected)))
        }
    }
}

/// Validates an optional reason.
pub(crate) fn parse_optional_reason(text: Option<&str>) -> Result<Option<String>, Problem> {
    text.map(parse_reason).transpose()
}
