//! The REST client: calls in, JSON or a failure in words out.
//!
//! What the server refuses is told in the server's own words. What it never answered is told with
//! what to do about it. Nothing is tried again here: a call whose answer got lost may have been done.

use std::error::Error as _;
use std::time::Duration;

use reqwest::header::{
    AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH,
};
use reqwest::{Method, Response, StatusCode, Url, redirect};
use serde_json::Value;

use crate::output::Failure;

/// The server gives up after 30 s; whoever waits less would not hear why.
const PATIENCE: Duration = Duration::from_secs(35);
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Speaks to one server.
pub(crate) struct Client {
    http: reqwest::Client,
    url: Url,
    /// Whether refusals are printed as JSON too.
    json: bool,
}

/// What the server said.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
    etag: Option<String>,
}

impl Answer {
    /// What `If-Match` wants to hear to change just this.
    pub(crate) fn version(&self) -> String {
        let in_body = || self.body["version"].as_i64().map(quoted);
        self.etag.clone().or_else(in_body).unwrap_or_else(|| "*".to_owned())
    }
}

/// A version as `If-Match` spells it.
pub(crate) fn quoted(version: i64) -> String {
    format!("\"{version}\"")
}

impl Client {
    pub(crate) fn new(url: Url, token: &str, json: bool) -> Result<Self, Failure> {
        let mut bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
            Failure::bad_usage("the token holds characters that no token has")
                .hint("a token is one word that starts with tsk_")
        })?;
        bearer.set_sensitive(true);
        let mut builder = reqwest::Client::builder()
            .default_headers(HeaderMap::from_iter([(AUTHORIZATION, bearer)]))
            .user_agent(concat!("tasuki/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_PATIENCE)
            // The token is for this server; an answer cannot send it elsewhere.
            .redirect(redirect::Policy::none());
        if is_this_machine(&url) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| {
            Failure::refused(format!("cannot set up connections: {}", reason(&error)))
        })?;
        Ok(Self { http, url, json })
    }

    pub(crate) fn get(&self, path: impl AsRef<str>) -> Call<'_> {
        self.call(Method::GET, path.as_ref())
    }

    pub(crate) fn post(&self, path: impl AsRef<str>) -> Call<'_> {
        self.call(Method::POST, path.as_ref())
    }

    pub(crate) fn put(&self, path: impl AsRef<str>) -> Call<'_> {
        self.call(Method::PUT, path.as_ref())
    }

    pub(crate) fn patch(&self, path: impl AsRef<str>) -> Call<'_> {
        self.call(Method::PATCH, path.as_ref())
    }

    pub(crate) fn delete(&self, path: impl AsRef<str>) -> Call<'_> {
        self.call(Method::DELETE, path.as_ref())
    }

    fn call(&self, method: Method, path: &str) -> Call<'_> {
        let mut url = self.url.clone();
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}/api/v1{path}"));
        Call { client: self, method, url, headers: Vec::new(), body: None, patience: PATIENCE }
    }

    fn unanswered(&self, error: &reqwest::Error) -> Failure {
        let origin = self.url.origin().ascii_serialization();
        if error.is_connect() {
            return Failure::refused(format!("nothing answers at {origin}: {}", reason(error)))
                .hint("is it running? tasuki up starts one; --url or TASUKI_URL name another");
        }
        if error.is_timeout() {
            return Failure::refused(format!("{origin} did not answer in time"))
                .hint("what was asked may have been done nevertheless: look before asking again");
        }
        Failure::refused(format!("the connection to {origin} broke: {}", reason(error)))
            .hint("what was asked may have been done nevertheless: look before asking again")
    }

    /// Turns a refusal into the words to print.
    async fn refused(&self, response: Response) -> Failure {
        let status = response.status();
        let origin = self.url.origin().ascii_serialization();
        let text = response.text().await.unwrap_or_default();
        let Ok(problem @ Value::Object(_)) = serde_json::from_str(&text) else {
            return Failure::refused(format!("{origin} answered {status}"))
                .hint("is that a tasuki server, and of this version?");
        };
        let failure = from_problem(status, &problem);
        match self.json {
            true => failure.after(format!("{problem:#}\n")),
            false => failure,
        }
    }
}

/// The server's own words, and its hint or one that fits.
fn from_problem(status: StatusCode, problem: &Value) -> Failure {
    let word = |field: &str| problem[field].as_str().filter(|text| !text.is_empty());
    let told = word("detail").or_else(|| word("title")).map_or(status.to_string(), str::to_owned);
    let mut message = match word("field") {
        Some(field) if !told.contains(field) => format!("{field}: {told}"),
        _ => told,
    };
    for problem in problem["problems"].as_array().into_iter().flatten() {
        let words = [&problem["message"], &problem["detail"], problem];
        let words = words.iter().find_map(|one| one.as_str()).unwrap_or_default();
        if !message.contains(words) {
            message.push_str(&format!("\n  {words}"));
        }
    }
    let failure = match status.is_client_error() {
        true => Failure::refused(message).by_the_server(),
        false => Failure::refused(message),
    };
    let hint = word("hint").or(match word("code") {
        Some("unauthorized") => Some("the token is wrong, expired or revoked: tasuki token create makes one, TASUKI_TOKEN or --token-file hand it over"),
        Some("forbidden") => Some("this token's role is too low: viewer < operator < author < admin"),
        Some("conflict") => Some("it changed meanwhile and was left alone: look again, then decide"),
        _ => None,
    });
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// One call in the making.
pub(crate) struct Call<'a> {
    client: &'a Client,
    method: Method,
    url: Url,
    headers: Vec<(HeaderName, String)>,
    body: Option<Value>,
    patience: Duration,
}

impl Call<'_> {
    pub(crate) fn query(mut self, name: &str, value: &impl ToString) -> Self {
        self.url.query_pairs_mut().append_pair(name, &value.to_string());
        self
    }

    /// As `query`, if there is anything to say.
    pub(crate) fn query_if(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.query(name, &value),
            None => self,
        }
    }

    pub(crate) fn if_match(self, version: impl Into<String>) -> Self {
        self.header(IF_MATCH, version.into())
    }

    /// The same key twice is the same request: it is done once.
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

    pub(crate) fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Calls, and reads the whole answer.
    pub(crate) async fn send(self) -> Result<Answer, Failure> {
        let (client, patience) = (self.client, self.patience);
        let response = client.answered(self.request()?.timeout(patience)).await?;
        let etag =
            response.headers().get(ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        let status = response.status();
        let text = response.text().await.map_err(|error| client.unanswered(&error))?;
        let body = match text.trim() {
            "" => Value::Null,
            text => serde_json::from_str(text).map_err(|_| {
                Failure::refused(format!(
                    "{} answered with something else than JSON",
                    client.url.origin().ascii_serialization()
                ))
                .hint("is that a tasuki server?")
            })?,
        };
        Ok(Answer { status, body, etag })
    }

    /// Calls, and leaves the body to be read as it comes.
    pub(crate) async fn open(self) -> Result<Result<Response, Failure>, Unreached> {
        let client = self.client;
        let request = match self.request() {
            Ok(request) => request,
            Err(failure) => return Ok(Err(failure)),
        };
        match request.send().await {
            Ok(response) if response.status().is_success() => Ok(Ok(response)),
            Ok(response) if response.status().is_server_error() => {
                Err(Unreached(client.refused(response).await))
            }
            Ok(response) => Ok(Err(client.refused(response).await)),
            Err(error) => Err(Unreached(client.unanswered(&error))),
        }
    }

    fn request(self) -> Result<reqwest::RequestBuilder, Failure> {
        let mut request = self.client.http.request(self.method, self.url);
        for (name, value) in self.headers {
            let value = HeaderValue::from_str(&value)
                .map_err(|_| Failure::bad_usage(format!("{value:?} cannot be sent as {name}")))?;
            request = request.header(name, value);
        }
        Ok(match self.body {
            Some(body) => request.header(CONTENT_TYPE, "application/json").body(body.to_string()),
            None => request,
        })
    }
}

/// The server was not reached or not well: another try may help.
pub(crate) struct Unreached(pub(crate) Failure);

impl Client {
    async fn answered(&self, request: reqwest::RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| self.unanswered(&error))?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(self.refused(response).await),
        }
    }
}

/// One segment of a path, with everything that could mean something else escaped.
pub(crate) fn segment(name: &str) -> Result<String, Failure> {
    if matches!(name, "" | "." | "..") {
        return Err(Failure::bad_usage(format!("{name:?} cannot be part of an address")));
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

/// A proxy is for what is far away.
fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The innermost cause: the layers above it only say that something below them failed.
fn reason(error: &reqwest::Error) -> String {
    let mut cause = error.source();
    let mut words = error.to_string();
    while let Some(inner) = cause {
        words = inner.to_string();
        cause = inner.source();
    }
    words
}

/// Runs what has to wait for the server.
pub(crate) fn in_one_thread<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime needs only a thread").block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_stays_one_segment() {
        assert_eq!(
            segment("nightly/日報 100%?").unwrap(),
            "nightly%2F%E6%97%A5%E5%A0%B1%20100%25%3F"
        );
        for wrong in ["", ".", ".."] {
            assert!(segment(wrong).is_err(), "{wrong:?}");
        }
    }
}
