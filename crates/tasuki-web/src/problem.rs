//! Error responses (RFC 9457): one format and stable codes. After a conflict they contain the current state.

use std::any::Any;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::Value;
use tasuki::operator::{CurrentState, Error};
use tasuki_core::InvalidInput;
use utoipa::ToSchema;

use crate::api::{job_view, run_view, settings, workers_and_leader};

/// A kind of error response. Each has a section in `docs/reference/errors.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProblemCode {
    /// Stable code for programs.
    pub code: &'static str,
    /// HTTP status code.
    pub status: u16,
    /// Meaning, in one line.
    pub title: &'static str,
}

macro_rules! codes {
    ($($name:ident = $code:literal, $status:literal, $title:literal;)+) => {
        $(pub(crate) const $name: ProblemCode = ProblemCode { code: $code, status: $status, title: $title };)+

        /// All codes.
        pub const CODES: &[ProblemCode] = &[$($name),+];
    };
}

codes! {
    MALFORMED = "malformed", 400, "the request cannot be read";
    UNAUTHORIZED = "unauthorized", 401, "a token is needed";
    FORBIDDEN = "forbidden", 403, "the token's role does not allow this";
    NOT_FOUND = "not_found", 404, "the object does not exist";
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, "the path does not support this method";
    TIMEOUT = "timeout", 408, "the request took too long";
    CONFLICT = "conflict", 409, "the object has changed or is in another state";
    NAME_TAKEN = "name_taken", 409, "the name is already in use";
    TOO_LARGE = "too_large", 413, "the request is too large";
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", 415, "the body is not JSON";
    INVALID_INPUT = "invalid_input", 422, "a field is invalid";
    PRECONDITION_REQUIRED = "precondition_required", 428, "the header If-Match is missing";
    INTERNAL = "internal", 500, "an internal error";
    UNAVAILABLE = "unavailable", 503, "the database does not respond";
}

/// An error response. Boxed to keep results small.
#[derive(Debug, Clone)]
pub(crate) struct Problem(Box<ProblemBody>);

/// The JSON of an error response.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ProblemBody {
    /// Path of the description of this kind of error.
    #[serde(rename = "type")]
    kind: String,
    /// Meaning of this kind of error.
    title: &'static str,
    /// HTTP status code, repeated for readers of the body alone.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What happened in this case.
    detail: String,
    /// Stable code for programs.
    code: &'static str,
    /// Name of the invalid field, parameter or header.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// Current state of the object, after a conflict.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, additional_properties)]
    current: Option<Value>,
    /// All problems, if there can be several.
    #[serde(skip_serializing_if = "Option::is_none")]
    problems: Option<Vec<String>>,
}

impl Problem {
    pub(crate) fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self(Box::new(ProblemBody {
            kind: format!("/docs/errors#{}", code.code),
            title: code.title,
            status: code.status,
            detail: detail.into(),
            code: code.code,
            field: None,
            hint: None,
            current: None,
            problems: None,
        }))
    }

    /// An invalid field, with its name in the request.
    pub(crate) fn invalid(field: impl Into<String>, invalid: &InvalidInput) -> Self {
        let field = field.into();
        let detail = format!("{field}: found {}, expected {}", invalid.found, invalid.expected);
        Self::new(INVALID_INPUT, detail).with_field(field)
    }

    /// A parameter or header that cannot be parsed.
    pub(crate) fn malformed(field: impl Into<String>, invalid: &InvalidInput) -> Self {
        let field = field.into();
        let detail = format!("{field}: found {}, expected {}", invalid.found, invalid.expected);
        Self::new(MALFORMED, detail).with_field(field)
    }

    pub(crate) fn not_found(kind: &str, name: &str) -> Self {
        let name: String = name.chars().take(80).collect();
        Self::new(NOT_FOUND, format!("there is no {kind} {name}"))
    }

    pub(crate) fn with_field(mut self, field: impl Into<String>) -> Self {
        self.0.field = Some(field.into());
        self
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }
}

/// Internal names of fields, and their names in requests.
const REQUEST_FIELD_NAMES: &[(&str, &str)] = &[
    ("job name", "name"),
    ("event types", "trigger.events"),
    ("event filter", "trigger.filter"),
    ("filter", "trigger.filter"),
    ("misfire", "trigger.misfire"),
    ("schedule value", "trigger.schedule.value"),
    ("label", "labels"),
    ("lane", "handler"),
    ("backoff cap", "retry.backoff_cap"),
    ("backoff jitter", "retry.jitter_percent"),
    ("max_retries", "retry.max_retries"),
    ("max_attempts", "retry.max_retries"),
    ("exit_codes", "retry.exit_codes"),
    ("retry_on", "retry.retry_on"),
    ("fail_on", "retry.fail_on"),
    ("arguments", "args"),
    ("options", "args.options"),
    ("end of the pause", "until"),
    ("idempotency key", "Idempotency-Key"),
    ("event type", "type"),
    ("dedupe key", "dedupe_key"),
];

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound { kind, name } => Self::not_found(kind, &name),
            Error::Invalid(invalid) => {
                let known =
                    REQUEST_FIELD_NAMES.iter().find(|(internal, _)| *internal == invalid.field);
                let field = known.map_or(&*invalid.field, |(_, field)| field).to_owned();
                Self::invalid(field, &invalid)
            }
            Error::Settings(problems) => {
                let messages: Vec<String> = problems.iter().map(ToString::to_string).collect();
                let mut problem =
                    Self::new(INVALID_INPUT, messages.join("; ")).with_field("settings");
                problem.0.problems = Some(messages);
                problem
            }
            Error::NameTaken(name) => {
                Self::new(NAME_TAKEN, format!("a job named {name} already exists"))
                    .with_field("name")
                    .with_hint("choose another name, or change the existing job")
            }
            Error::Lost { message, current } => {
                let mut problem = Self::new(CONFLICT, message)
                    .with_hint("check the current state before you try again");
                problem.0.current = current_state_json(*current);
                problem
            }
            error if error.is_unavailable() => {
                tracing::warn!(%error, "the database did not respond to a request");
                Self::new(UNAVAILABLE, "the database does not respond at the moment")
                    .with_hint("try again in a moment")
            }
            Error::Store(error) => {
                tracing::error!(%error, "a request failed");
                Self::new(INTERNAL, "an internal error occurred; the server log has the details")
            }
        }
    }
}

fn current_state_json(current: CurrentState) -> Option<Value> {
    let value = match current {
        // The role of the caller is not known here, so environment values are hidden.
        CurrentState::Job(job) => serde_json::to_value(job_view::job_view(&job, false).ok()?),
        CurrentState::Run(run) => serde_json::to_value(run_view::run_view(&run)),
        CurrentState::Settings(settings) => {
            serde_json::to_value(settings::settings_view(&settings))
        }
        CurrentState::Leader(leader) => {
            serde_json::to_value(workers_and_leader::leader_view(&leader))
        }
        CurrentState::Worker(worker) => {
            serde_json::to_value(workers_and_leader::worker_view(&worker))
        }
        CurrentState::Nothing => return None,
    };
    value.ok()
}

impl IntoResponse for Problem {
    fn into_response(self) -> axum::response::Response {
        let body = serde_json::to_vec(&self.0).unwrap_or_default();
        let status =
            StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.0.status == UNAUTHORIZED.status {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Responds to a path that no route has.
pub(crate) async fn unknown_path(request: Request) -> Problem {
    Problem::not_found("page", request.uri().path())
        .with_hint("/api/openapi.json lists all paths and methods")
}

/// Responds to a method that the route of this path does not have.
pub(crate) async fn method_not_allowed(request: Request) -> Problem {
    let detail = format!("this path does not support the method {}", request.method());
    Problem::new(METHOD_NOT_ALLOWED, detail)
        .with_hint("/api/openapi.json lists all paths and methods")
}

/// Responds to a request whose handler panicked. The message of the panic is not sent, because it may contain secrets.
pub(crate) fn panic_response(_: Box<dyn Any + Send + 'static>) -> Response<Body> {
    tracing::error!("a request panicked");
    Problem::new(INTERNAL, "an internal error occurred; the server log has the details")
        .into_response()
}
