//! Authorization of calls: identifies the caller and checks whether it may call the method, before the request body is
//! read. Methods that are not listed for observers are for nodes only.

use std::task::{Context, Poll};

use futures_util::future::{Either, Ready, ready};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use crate::identity::{Identity, InvalidIdentity, RpcCallerRole};
use crate::security::RpcAuthMethod;

/// Methods that an observer may call. They only read.
const OBSERVER_METHODS: [&str; 6] = [
    "/tasuki.v1.WorkerService/Ping",
    "/tasuki.v1.WorkerService/GetStatus",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.health.v1.Health/List",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];

/// Identity in the client certificate of a connection. `None` without TLS: there every call has its own token.
#[derive(Debug, Clone)]
pub(super) struct CertifiedCaller(pub(super) Option<Identity>);

#[derive(Clone)]
pub(super) struct AuthorizeLayer {
    pub(super) security: RpcAuthMethod,
}

impl<S> Layer<S> for AuthorizeLayer {
    type Service = Authorize<S>;

    fn layer(&self, inner: S) -> Authorize<S> {
        Authorize { security: self.security.clone(), inner }
    }
}

#[derive(Clone)]
pub(super) struct Authorize<S> {
    security: RpcAuthMethod,
    inner: S,
}

impl<S> Authorize<S> {
    /// Returns the identity of the caller, or the refusal.
    fn authorize(&self, request: &Request<Body>) -> Result<Identity, Status> {
        let identity = match &self.security {
            RpcAuthMethod::Mtls(_) => {
                request.extensions().get::<CertifiedCaller>().and_then(|caller| caller.0.clone())
            }
            RpcAuthMethod::Token(tokens) => {
                let header = request.headers().get(AUTHORIZATION);
                let token = header.and_then(|header| header.to_str().ok()?.strip_prefix("Bearer "));
                let token = token
                    .ok_or_else(|| Status::unauthenticated("the request has no bearer token"))?;
                let refuse = |error: InvalidIdentity| {
                    tracing::info!(%error, "a token was refused");
                    Status::unauthenticated(error.to_string())
                };
                Some(tokens.verify(token).map_err(refuse)?)
            }
        };
        let identity = identity
            .ok_or_else(|| Status::unauthenticated("the caller has no verified identity"))?;
        let path = request.uri().path();
        match identity.role() {
            RpcCallerRole::Node => Ok(identity),
            RpcCallerRole::Observer if OBSERVER_METHODS.contains(&path) => Ok(identity),
            RpcCallerRole::Observer => {
                tracing::warn!(%identity, path, "an observer called a method that only nodes may call");
                Err(Status::permission_denied("an observer may only call methods that read"))
            }
        }
    }
}

impl<S> Service<Request<Body>> for Authorize<S>
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
        match self.authorize(&request) {
            Ok(identity) => {
                request.extensions_mut().insert(identity);
                Either::Right(self.inner.call(request))
            }
            Err(refusal) => Either::Left(ready(Ok(refusal.into_http()))),
        }
    }
}
