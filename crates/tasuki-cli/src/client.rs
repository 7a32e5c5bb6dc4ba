//! REST client: sends a request, returns the JSON response or a [`Failure`].
//!
//! A refusal shows the message of the server. A request without a response fails with a hint. No request is repeated
//! here: the server may have executed a request whose response was lost.

use std::error::Error as _;
use std::time::Duration;

use reqwest::header::{
    AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH,
};
use reqwest::{Method, Response, StatusCode, Url, redirect};
use serde_json::Value;

use crate::failure::Failure;

/// Request timeout. The server itself gives up after 30 s and then reports why, so the client waits longer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(35);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Client of the REST API of one server.
pub(crate) struct ApiClient {
    http: reqwest::Client,
    url: Url,
    /// Whether the body of a refusal is also printed as JSON.
    json: bool,
}

/// A successful response of the API.
pub(crate) struct ApiResponse {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
    etag: Option<String>,
}

impl ApiResponse {
    /// The value of `If-Match` for a change of exactly this version: the ETag, else the `version` field, else `*`.
    pub(crate) fn if_match_value(&self) -> String {
        let in_body = || self.body["version"].as_i64().map(format_etag);
        self.etag.clone().or_else(in_body).unwrap_or_else(|| "*".to_owned())
    }
}

/// Formats a version as an ETag, for `If-Match`.
pub(crate) fn format_etag(version: i64) -> String {
    format!("\"{version}\"")
}

impl ApiClient {
    pub(crate) fn new(url: Url, token: &str, json: bool) -> Result<Self, Failure> {
        let mut bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
            Failure::bad_usage("the token contains characters that are not allowed in a token")
                .hint("a token starts with tsk_ and contains no spaces")
        })?;
        bearer.set_sensitive(true);
        let mut builder = reqwest::Client::builder()
            .default_headers(HeaderMap::from_iter([(AUTHORIZATION, bearer)]))
            .user_agent(concat!("tasuki/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            // The token is for this server only; a redirect must not send it to another one.
            .redirect(redirect::Policy::none());
        if is_local(&url) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| {
            Failure::new(format!("cannot create the HTTP client: {}", root_cause(&error)))
        })?;
        Ok(Self { http, url, json })
    }

    pub(crate) fn get(&self, path: impl AsRef<str>) -> ApiRequest<'_> {
        self.request(Method::GET, path.as_ref())
    }

    pub(crate) fn post(&self, path: impl AsRef<str>) -> ApiRequest<'_> {
        self.request(Method::POST, path.as_ref())
    }

    pub(crate) fn put(&self, path: impl AsRef<str>) -> ApiRequest<'_> {
        self.request(Method::PUT, path.as_ref())
    }

    pub(crate) fn patch(&self, path: impl AsRef<str>) -> ApiRequest<'_> {
        self.request(Method::PATCH, path.as_ref())
    }

    pub(crate) fn delete(&self, path: impl AsRef<str>) -> ApiRequest<'_> {
        self.request(Method::DELETE, path.as_ref())
    }

    fn request(&self, method: Method, path: &str) -> ApiRequest<'_> {
        let mut url = self.url.clone();
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}/api/v1{path}"));
        ApiRequest {
            client: self,
            method,
            url,
            headers: Vec::new(),
            body: None,
            timeout: REQUEST_TIMEOUT,
        }
    }

    fn connection_failure(&self, error: &reqwest::Error) -> Failure {
        let origin = self.url.origin().ascii_serialization();
        if error.is_connect() {
            return Failure::new(format!("cannot connect to {origin}: {}", root_cause(error)))
                .hint("check that the server is running; `tasuki up` starts a server, --url or TASUKI_URL selects another server");
        }
        if error.is_timeout() {
            return Failure::new(format!("{origin} did not respond in time")).hint(
                "the request may have been executed nevertheless: check before you repeat it",
            );
        }
        Failure::new(format!("the connection to {origin} broke: {}", root_cause(error)))
            .hint("the request may have been executed nevertheless: check before you repeat it")
    }

    /// Converts an error response into a failure.
    async fn failure_from_response(&self, response: Response) -> Failure {
        let status = response.status();
        let origin = self.url.origin().ascii_serialization();
        let text = response.text().await.unwrap_or_default();
        let Ok(problem @ Value::Object(_)) = serde_json::from_str(&text) else {
            return Failure::new(format!("{origin} responded with {status}"))
                .hint("check that this is a tasuki server of the same version");
        };
        let failure = failure_from_problem(status, &problem);
        match self.json {
            true => failure.with_stdout(format!("{problem:#}\n")),
            false => failure,
        }
    }
}

/// Converts a problem document of the server into a failure, with the server's hint or one that matches the error code.
fn failure_from_problem(status: StatusCode, problem: &Value) -> Failure {
    let text_of = |field: &str| problem[field].as_str().filter(|text| !text.is_empty());
    let message_text =
        text_of("detail").or_else(|| text_of("title")).map_or(status.to_string(), str::to_owned);
    let mut message = match text_of("field") {
        Some(field) if !message_text.contains(field) => format!("{field}: {message_text}"),
        _ => message_text,
    };
    for problem in problem["problems"].as_array().into_iter().flatten() {
        let text = [&problem["message"], &problem["detail"], problem];
        let text = text.iter().find_map(|one| one.as_str()).unwrap_or_default();
        if !message.contains(text) {
            message.push_str(&format!("\n  {text}"));
        }
    }
    let failure = match status.is_client_error() {
        true => Failure::new(message).mark_refused_by_server(),
        false => Failure::new(message),
    };
    let hint = text_of("hint").or(match text_of("code") {
        Some("unauthorized") => Some("the token is unknown, expired or revoked; create one with `tasuki token create` and pass it in TASUKI_TOKEN or --token-file"),
        Some("forbidden") => Some("the role of this token is too low; roles in ascending order: viewer, operator, author, admin"),
        Some("conflict") => Some("this command changed nothing, because another request changed the object first, or because the state of the object does not allow this action; check the state before you repeat the command"),
        _ => None,
    });
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// An API request that is being built.
pub(crate) struct ApiRequest<'a> {
    client: &'a ApiClient,
    method: Method,
    url: Url,
    headers: Vec<(HeaderName, String)>,
    body: Option<Value>,
    timeout: Duration,
}

impl ApiRequest<'_> {
    pub(crate) fn query(mut self, name: &str, value: &impl ToString) -> Self {
        self.url.query_pairs_mut().append_pair(name, &value.to_string());
        self
    }

    /// Adds a query parameter if there is a value.
    pub(crate) fn query_if(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.query(name, &value),
            None => self,
        }
    }

    pub(crate) fn if_match(self, version: impl Into<String>) -> Self {
        self.header(IF_MATCH, version.into())
    }

    /// Adds an idempotency key: the server executes requests with the same key once.
    pub(crate) fn idempotency_key(self, key: Option<&str>) -> Self {
        match key {
            Some(key) => self.header(HeaderName::from_static("idempotency-key"), key.to_owned()),
            None => self,
        }
    }

    pub(crate) fn header(mut self, name: HeaderName, value: String) -> Self {
        self.headers.push((name, value));
        self
    }

    pub(crate) fn body(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    pub(crate) fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends the request and reads the whole response.
    pub(crate) async fn send(self) -> Result<ApiResponse, Failure> {
        let (client, timeout) = (self.client, self.timeout);
        let response = client.send_checked(self.into_builder()?.timeout(timeout)).await?;
        let etag =
            response.headers().get(ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        let status = response.status();
        let text = response.text().await.map_err(|error| client.connection_failure(&error))?;
        let body = match text.trim() {
            "" => Value::Null,
            text => serde_json::from_str(text).map_err(|_| {
                Failure::new(format!(
                    "the response of {} is not JSON",
                    client.url.origin().ascii_serialization()
                ))
                .hint("check that this is a tasuki server")
            })?,
        };
        Ok(ApiResponse { status, body, etag })
    }

    /// Sends the request and returns the response with its body unread, for streaming.
    pub(crate) async fn open_stream(self) -> Result<Result<Response, Failure>, ServerUnavailable> {
        let client = self.client;
        let request = match self.into_builder() {
            Ok(request) => request,
            Err(failure) => return Ok(Err(failure)),
        };
        match request.send().await {
            Ok(response) if response.status().is_success() => Ok(Ok(response)),
            Ok(response) if response.status().is_server_error() => {
                Err(ServerUnavailable(client.failure_from_response(response).await))
            }
            Ok(response) => Ok(Err(client.failure_from_response(response).await)),
            Err(error) => Err(ServerUnavailable(client.connection_failure(&error))),
        }
    }

    fn into_builder(self) -> Result<reqwest::RequestBuilder, Failure> {
        let mut request = self.client.http.request(self.method, self.url);
        for (name, value) in self.headers {
            let value = HeaderValue::from_str(&value).map_err(|_| {
                Failure::bad_usage(format!("{value:?} is not a valid value for the header {name}"))
            })?;
            request = request.header(name, value);
        }
        Ok(match self.body {
            Some(body) => request.header(CONTENT_TYPE, "application/json").body(body.to_string()),
            None => request,
        })
    }
}

/// The server is unreachable or returned a server error: a retry may help.
pub(crate) struct ServerUnavailable(pub(crate) Failure);

impl ApiClient {
    async fn send_checked(&self, request: reqwest::RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| self.connection_failure(&error))?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(self.failure_from_response(response).await),
        }
    }
}

/// Encodes a name as one segment of a URL path.
pub(crate) fn encode_path_segment(name: &str) -> Result<String, Failure> {
    if matches!(name, "" | "." | "..") {
        return Err(Failure::bad_usage(format!(
            "{name:?} is not a valid name: it cannot be part of a URL path"
        )));
    }
    let mut escaped = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(byte));
            }
            byte => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(escaped)
}

/// Whether the URL is on this machine; such requests bypass a proxy.
fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The message of the innermost error; the outer ones only report that an inner one occurred.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause = error.source();
    let mut text = error.to_string();
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    text
}

/// Runs a future on a single-threaded runtime.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime needs only a thread").block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_as_one_path_segment() {
        assert_eq!(
            encode_path_segment("nightly/日報 100%?").unwrap(),
            "nightly%2F%E6%97%A5%E5%A0%B1%20100%25%3F"
        );
        for wrong in ["", ".", ".."] {
            assert!(encode_path_segment(wrong).is_err(), "{wrong:?}");
        }
    }
}
