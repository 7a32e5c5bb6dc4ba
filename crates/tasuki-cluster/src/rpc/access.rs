//! Who may call what. Checked before anything of a call is read, and what is not listed is for nodes.

use std::task::{Context, Poll};

use futures_util::future::{Either, Ready, ready};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use crate::identity::{Identity, PeerRole};
use crate::security::Security;

/// What an observer may call as well: it tells, and changes nothing.
const TELLING: [&str; 6] = [
    "/tasuki.v1.WorkerService/Ping",
    "/tasuki.v1.WorkerService/GetStatus",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.health.v1.Health/List",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];

/// Whom the certificate of a connection vouches for. Where tokens do, nobody: each call shows its own.
#[derive(Debug, Clone)]
pub(super) struct Caller(pub(super) Option<Identity>);

#[derive(Clone)]
pub(super) struct AccessLayer {
    pub(super) security: Security,
}

impl<S> Layer<S> for AccessLayer {
    type Service = Access<S>;

    fn layer(&self, inner: S) -> Access<S> {
        Access { security: self.security.clone(), inner }
    }
}

#[derive(Clone)]
pub(super) struct Access<S> {
    security: Security,
    inner: S,
}

impl<S> Access<S> {
    /// Who calls, if that may be.
    fn check(&self, request: &Request<Body>) -> Result<Identity, Status> {
        let identity = match &self.security {
            Security::Mtls(_) => request.extensions().get::<Caller>().and_then(|it| it.0.clone()),
            Security::Token(tokens) => {
                let shown = request.headers().get(AUTHORIZATION);
                let shown = shown.and_then(|it| it.to_str().ok()?.strip_prefix("Bearer "));
                let shown = shown.ok_or_else(|| Status::unauthenticated("no token was shown"))?;
                let wrong = |wrong: crate::identity::WrongIdentity| {
                    tracing::info!(why = %wrong, "a token was refused");
                    Status::unauthenticated(wrong.to_string())
                };
                Some(tokens.check(shown).map_err(wrong)?)
            }
        };
        let identity = identity.ok_or_else(|| Status::unauthenticated("nobody vouches for you"))?;
        let path = request.uri().path();
        match identity.role() {
            PeerRole::Node => Ok(identity),
            PeerRole::Observer if TELLING.contains(&path) => Ok(identity),
            PeerRole::Observer => {
                tracing::warn!(%identity, path, "an observer called what is not for it");
                Err(Status::permission_denied("an observer may only look"))
            }
        }
    }
}

impl<S> Service<Request<Body>> for Access<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<Ready<Result<S::Response, S::Error>>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match self.check(&request) {
            Ok(identity) => {
                request.extensions_mut().insert(identity);
                Either::Right(self.inner.call(request))
            }
            Err(refusal) => Either::Left(ready(Ok(refusal.into_http()))),
        }
    }
}
