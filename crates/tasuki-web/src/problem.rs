//! Refusals: one shape, stable codes, and what is true now where that was not what was expected.

use std::any::Any;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::Value;
use tasuki::operator::{Current, Error};
use tasuki_core::Invalid;
use utoipa::ToSchema;

use crate::api::{cluster, job_view, run_view, settings};

/// The kinds of refusals. Each has a section in `docs/reference/errors.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// The word that never changes.
    pub code: &'static str,
    /// The status it travels with.
    pub status: u16,
    /// What it means, in a line.
    pub title: &'static str,
}

macro_rules! codes {
    ($($name:ident = $code:literal, $status:literal, $title:literal;)+) => {
        $(pub(crate) const $name: Code = Code { code: $code, status: $status, title: $title };)+

        /// Every code there is.
        pub const CODES: &[Code] = &[$($name),+];
    };
}

codes! {
    MALFORMED = "malformed", 400, "the request cannot be read";
    UNAUTHORIZED = "unauthorized", 401, "a token is needed";
    FORBIDDEN = "forbidden", 403, "the token's role does not allow this";
    NOT_FOUND = "not_found", 404, "there is no such thing";
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, "this cannot be done here";
    TIMEOUT = "timeout", 408, "it took too long";
    CONFLICT = "conflict", 409, "it is no longer what was expected";
    NAME_TAKEN = "name_taken", 409, "the name is taken";
    TOO_LARGE = "too_large", 413, "the request is too large";
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", 415, "this is not JSON";
    INVALID_INPUT = "invalid_input", 422, "a field is wrong";
    PRECONDITION_REQUIRED = "precondition_required", 428, "the version that was seen is needed";
    INTERNAL = "internal", 500, "something is wrong with tasuki";
    UNAVAILABLE = "unavailable", 503, "the database does not answer";
}

/// A refusal. Boxed, because everything that can be refused carries room for one.
#[derive(Debug, Clone)]
pub(crate) struct Problem(Box<Refusal>);

/// A refusal as it travels.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Refusal {
    /// Where this kind of refusal is described.
    #[serde(rename = "type")]
    kind: String,
    /// What this kind of refusal means.
    title: &'static str,
    /// The status again, for whoever has only the body.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What happened this time.
    detail: String,
    /// The word that never changes.
    code: &'static str,
    /// The field, parameter or header at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// What is true now, where something else was expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, additional_properties)]
    current: Option<Value>,
    /// All that is wrong, where that is more than one thing.
    #[serde(skip_serializing_if = "Option::is_none")]
    problems: Option<Vec<String>>,
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Box::new(Refusal {
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

    /// A field will not do: told with the name it has in the request.
    pub(crate) fn invalid(field: impl Into<String>, invalid: &Invalid) -> Self {
        let field = field.into();
        let detail = format!("{field}: found {}, expected {}", invalid.found, invalid.expected);
        Self::new(INVALID_INPUT, detail).on(field)
    }

    /// A parameter or header cannot be read.
    pub(crate) fn malformed(field: impl Into<String>, invalid: &Invalid) -> Self {
        let field = field.into();
        let detail = format!("{field}: found {}, expected {}", invalid.found, invalid.expected);
        Self::new(MALFORMED, detail).on(field)
    }

    pub(crate) fn not_found(what: &str, name: &str) -> Self {
        let shown: String = name.chars().take(80).collect();
        Self::new(NOT_FOUND, format!("there is no {what} {shown}"))
    }

    pub(crate) fn on(mut self, field: impl Into<String>) -> Self {
        self.0.field = Some(field.into());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }
}

/// The names fields have inside, and the names they have in requests.
const FIELDS: &[(&str, &str)] = &[
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
            Error::NotFound { what, name } => Self::not_found(what, &name),
            Error::Invalid(invalid) => {
                let known = FIELDS.iter().find(|(inside, _)| *inside == invalid.field);
                let field = known.map_or(&*invalid.field, |(_, field)| field).to_owned();
                Self::invalid(field, &invalid)
            }
            Error::Settings(problems) => {
                let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
                let mut problem = Self::new(INVALID_INPUT, told.join("; ")).on("settings");
                problem.0.problems = Some(told);
                problem
            }
            Error::NameTaken(name) => {
                Self::new(NAME_TAKEN, format!("there is a job {name} already"))
                    .on("name")
                    .hint("choose another name, or change the job that has it")
            }
            Error::Lost { what, current } => {
                let mut problem =
                    Self::new(CONFLICT, what).hint("look at what is true now, and decide anew");
                problem.0.current = shown(*current);
                problem
            }
            error if error.is_unavailable() => {
                tracing::warn!(%error, "the database did not answer a request");
                Self::new(UNAVAILABLE, "the database does not answer at the moment")
                    .hint("try again in a moment")
            }
            Error::Store(error) => {
                tracing::error!(%error, "a request failed");
                Self::new(INTERNAL, "something went wrong; the log of the server has the details")
            }
        }
    }
}

fn shown(current: Current) -> Option<Value> {
    let value = match current {
        // Whoever lost a race may be anybody, so nothing secret is shown.
        Current::Job(job) => serde_json::to_value(job_view::view(&job, false).ok()?),
        Current::Run(run) => serde_json::to_value(run_view::view(&run)),
        Current::Settings(settings) => serde_json::to_value(settings::view(&settings)),
        Current::Lead(lead) => serde_json::to_value(cluster::lead_view(&lead)),
        Current::Worker(worker) => serde_json::to_value(cluster::worker_view(&worker)),
        Current::Nothing => return None,
    };
    value.ok()
}

impl IntoResponse for Problem {
    fn into_response(self) -> axum::response::Response {
        let body = serde_json::to_vec(&self.0).unwrap_or_default();
        let status =
            StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer = (status, body).into_response();
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.0.status == UNAUTHORIZED.status {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    }
}

/// No route has this path.
pub(crate) async fn nothing_here(request: Request) -> Problem {
    Problem::not_found("page", request.uri().path())
        .hint("/api/openapi.json lists everything there is")
}

/// A route has this path, but not this method.
pub(crate) async fn wrong_method(request: Request) -> Problem {
    let detail = format!("{} is nothing to do here", request.method());
    Problem::new(METHOD_NOT_ALLOWED, detail).hint("/api/openapi.json lists everything there is")
}

/// A panic is our fault, and must not look like anything else.
pub(crate) fn panicked(_: Box<dyn Any + Send + 'static>) -> Response<Body> {
    tracing::error!("a request panicked");
    Problem::new(INTERNAL, "something went wrong; the log of the server has the details")
        .into_response()
}
