//! What comes in: bodies, parameters and headers, read strictly and refused by name.

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
use tasuki_core::{Invalid, duration};
use utoipa::IntoParams;

use crate::problem::{
    INVALID_INPUT, MALFORMED, PRECONDITION_REQUIRED, Problem, TIMEOUT, TOO_LARGE, UNAUTHORIZED,
    UNSUPPORTED_MEDIA_TYPE,
};
use crate::serve::Stopping;

/// The longest body, unless a route says otherwise.
pub(crate) const BODY: usize = 1 << 20;
/// How much of a body that is too long is read all the same, so that its sender hears the refusal
/// instead of a broken connection.
const SWALLOWED: usize = 64 << 20;
/// The longest page.
const PAGE: u32 = 200;
/// The page unless something is said.
const USUAL_PAGE: u32 = 50;
/// The longest reason.
const REASON: usize = 1_000;

/// What may be sent to a route.
pub(crate) trait Input: DeserializeOwned {
    /// The longest body.
    const LONGEST: usize = BODY;
    /// What makes a body long, for the refusal.
    const LONG: &'static str = "body";
    /// Whether nothing at all stands for `{}`.
    const OPTIONAL: bool = false;
}

/// A JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: Input, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let bytes = read(request, T::LONGEST, T::LONG).await?;
        if bytes.is_empty() && T::OPTIONAL {
            return parse("{}").map(Self);
        }
        if !is_json {
            let detail = "the Content-Type of the body is not application/json";
            return Err(Problem::new(UNSUPPORTED_MEDIA_TYPE, detail).on("Content-Type"));
        }
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let detail = format!("the body is not UTF-8: byte {} is wrong", error.valid_up_to());
            Problem::new(MALFORMED, detail).on("body")
        })?;
        parse(text).map(Self)
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let told = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media = told.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    ["application/json", "application/merge-patch+json"]
        .iter()
        .any(|known| media.eq_ignore_ascii_case(known))
}

async fn read(mut request: Request, longest: usize, long: &str) -> Result<Bytes, Problem> {
    let stopping = Stopping::told(request.extensions_mut().remove::<Stopping>());
    let mut stopping = std::pin::pin!(stopping);
    let mut parts = request.into_body().into_data_stream();
    let (mut body, mut length) = (Vec::new(), 0);
    loop {
        let part = tokio::select! {
            biased;
            part = parts.next() => part,
            () = &mut stopping => {
                let detail = "the server stops, and not all of the body had come";
                return Err(Problem::new(TIMEOUT, detail).on("body"));
            }
        };
        let Some(part) = part else { break };
        let part = part.map_err(|_| {
            Problem::new(MALFORMED, "the body ended before all of it had come").on("body")
        })?;
        length += part.len();
        if length > SWALLOWED {
            break;
        }
        if length <= longest {
            body.extend_from_slice(&part);
        }
    }
    match length <= longest {
        true => Ok(body.into()),
        false => Err(too_large(longest, long)),
    }
}

fn too_large(longest: usize, long: &str) -> Problem {
    Problem::new(TOO_LARGE, format!("{long}: it may have at most {longest} bytes")).on(long)
}

/// A shape that is written as an object. By itself serde also takes a list of the values in order, which
/// nobody means and no document says.
pub(crate) struct Object<T>(pub(crate) T);

impl<T> std::ops::Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// Reads JSON into a shape, and names what does not fit.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let Object(read) = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        refusal(&path, error.inner())
    })?;
    reader.end().map_err(|error| refusal(".", &error))?;
    Ok(read)
}

/// The same from JSON that has been read.
pub(crate) fn fit<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, Problem> {
    let read: Result<Object<T>, _> = serde_path_to_error::deserialize(value);
    read.map(|Object(read)| read).map_err(|error| {
        let path = error.path().to_string();
        refusal(&path, error.inner())
    })
}

fn refusal(path: &str, error: &serde_json::Error) -> Problem {
    use serde_json::error::Category;
    let told = error.to_string();
    if matches!(error.classify(), Category::Syntax | Category::Eof | Category::Io) {
        return Problem::new(MALFORMED, format!("the body is not JSON: {told}")).on("body");
    }
    // Where it stands in the text matters less than what it is called.
    let told = told.split(" at line ").next().unwrap_or_default();
    let named = |start: &str| {
        let name = told.strip_prefix(start)?.split('`').next()?;
        Some(match path {
            "." => name.to_owned(),
            path if path == name || path.ends_with(&format!(".{name}")) => path.to_owned(),
            path => format!("{path}.{name}"),
        })
    };
    let field = named("unknown field `").or_else(|| named("missing field `"));
    let field = field.unwrap_or_else(|| match path {
        "." => "body".to_owned(),
        path => path.to_owned(),
    });
    Problem::new(INVALID_INPUT, format!("{field}: {told}")).on(field)
}

/// Parameters after the question mark.
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Query::<T>::try_from_uri(&parts.uri).map(|Query(asked)| Self(asked)).map_err(|refused| {
            let told = refused.body_text();
            let told = told.rsplit("query string: ").next().unwrap_or(&told).to_owned();
            let field = told.split('`').nth(1).unwrap_or("query").to_owned();
            Problem::new(MALFORMED, told).on(field)
        })
    }
}

/// What stands in the path, whatever it is.
pub(crate) struct Named(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(_) => Err(Problem::not_found("page", parts.uri.path())),
        }
    }
}

impl Named {
    /// What cannot be an id is nobody's.
    pub(crate) fn id<T: std::str::FromStr>(&self, what: &str) -> Result<T, Problem> {
        self.0.parse().map_err(|_| Problem::not_found(what, &self.0))
    }
}

/// Something that is done to something: who asks whom for it, and what stands in the path. Nothing is
/// looked up yet: what is wrong with the body is told first.
pub(crate) struct Act {
    pub(crate) operator: Operator,
    pub(crate) actor: Actor,
    pub(crate) to: Named,
    pub(crate) headers: Headers,
}

impl FromRequestParts<Operator> for Act {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, operator: &Operator) -> Result<Self, Problem> {
        let nobody = || Problem::new(UNAUTHORIZED, "nobody is known to ask");
        Ok(Self {
            operator: operator.clone(),
            actor: parts.extensions.get::<Actor>().cloned().ok_or_else(nobody)?,
            to: Named::from_request_parts(parts, operator).await?,
            headers: Headers::from_request_parts(parts, operator).await?,
        })
    }
}

/// The header of every change that must show the version it saw, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "Headers reads it")]
pub(crate) struct VersionSeen {
    #[param(rename = "If-Match", pattern = r#"^(\*|"[0-9]{1,18}")$"#)]
    if_match: String,
}

/// The headers of a request that say more about it.
pub(crate) struct Headers(HeaderMap);

impl<S: Send + Sync> FromRequestParts<S> for Headers {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self(parts.headers.clone()))
    }
}

impl Headers {
    /// The version that was seen; `None`: whatever it is now.
    pub(crate) fn if_match(&self) -> Result<Option<i64>, Problem> {
        let expected = "a version in quotes such as \"3\", or *";
        let Some(value) = self.0.get(header::IF_MATCH) else {
            let detail = "the header If-Match with the version that was seen is missing";
            return Err(Problem::new(PRECONDITION_REQUIRED, detail)
                .on("If-Match")
                .hint("send the ETag of the last answer, or * for whatever it is now"));
        };
        let text = value.to_str().unwrap_or("bytes").trim();
        if text == "*" {
            return Ok(None);
        }
        let version = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let digits = version.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        match digits.and_then(|text| text.parse().ok()) {
            Some(version) => Ok(Some(version)),
            None => Err(Problem::malformed("If-Match", &Invalid::typed("", text, expected))),
        }
    }

    /// What makes asking twice the same.
    pub(crate) fn idempotency_key(&self) -> Result<Option<String>, Problem> {
        let name = HeaderName::from_static("idempotency-key");
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let refused =
            |found: &str| Problem::invalid("Idempotency-Key", &Invalid::typed("", found, KEY));
        let text = value.to_str().map_err(|_| refused("bytes"))?;
        match !text.trim().is_empty() && text.trim() == text && text.len() <= 191 {
            true => Ok(Some(text.to_owned())),
            false => Err(refused(text)),
        }
    }

    /// Where a stream broke off.
    pub(crate) fn last_event_id(&self) -> Option<&str> {
        self.0.get("last-event-id")?.to_str().ok()
    }
}

const KEY: &str = "1 to 191 visible ASCII characters";

/// The length of a page.
pub(crate) fn limit(typed: Option<&str>) -> Result<u32, Problem> {
    number("limit", typed, 1, PAGE).map(|limit| limit.unwrap_or(USUAL_PAGE))
}

/// A number among the parameters.
pub(crate) fn number<N>(
    field: &str,
    typed: Option<&str>,
    least: N,
    most: N,
) -> Result<Option<N>, Problem>
where
    N: std::str::FromStr + Copy + PartialOrd + fmt::Display,
{
    let Some(text) = typed else { return Ok(None) };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<N>().ok().filter(|number| digits && *number >= least && *number <= most) {
        Some(number) => Ok(Some(number)),
        None => {
            let expected = format!("a number from {least} to {most}");
            Err(Problem::malformed(field, &Invalid::typed("", text, expected)))
        }
    }
}

/// One word among the parameters.
pub(crate) fn word<T: std::str::FromStr<Err = Invalid>>(
    field: &str,
    typed: Option<&str>,
) -> Result<Option<T>, Problem> {
    let read = typed.map(str::parse::<T>).transpose();
    read.map_err(|invalid| Problem::malformed(field, &invalid))
}

const INSTANT: &str = "an instant such as 2026-11-16T03:00:00Z";

fn read_instant(text: &str) -> Option<Timestamp> {
    // Whole microseconds are what the databases keep.
    let at: Timestamp = text.parse().ok()?;
    Timestamp::from_microsecond(at.as_microsecond()).ok()
}

/// An instant in a body.
pub(crate) fn instant(field: &str, typed: Option<&str>) -> Result<Option<Timestamp>, Problem> {
    let refused = |text: &str| Problem::invalid(field, &Invalid::typed("", text, INSTANT));
    typed.map(|text| read_instant(text).ok_or_else(|| refused(text))).transpose()
}

/// An instant among the parameters.
pub(crate) fn asked_instant(
    field: &str,
    typed: Option<&str>,
) -> Result<Option<Timestamp>, Problem> {
    let refused = |text: &str| Problem::malformed(field, &Invalid::typed("", text, INSTANT));
    typed.map(|text| read_instant(text).ok_or_else(|| refused(text))).transpose()
}

/// A length of time in a body.
pub(crate) fn length(field: &str, typed: Option<&str>) -> Result<Option<Duration>, Problem> {
    let read = typed.map(|text| duration::read("duration", text)).transpose();
    read.map_err(|invalid| Problem::invalid(field, &invalid))
}

/// A reason, which is kept and shown as it is.
pub(crate) fn reason(typed: &str) -> Result<String, Problem> {
    let fits = !typed.trim().is_empty()
        && typed.chars().count() <= REASON
        && !typed.chars().any(|c| c.is_control() && c != '\n' && c != '\t');
    match fits {
        true => Ok(typed.to_owned()),
        false => {
            let expected = "1 to 1000 visible characters";
            Err(Problem::invalid("reason", &Invalid::typed("", typed, expected)))
        }
    }
}

/// A reason that may be left out.
pub(crate) fn optional_reason(typed: Option<&str>) -> Result<Option<String>, Problem> {
    typed.map(reason).transpose()
}
