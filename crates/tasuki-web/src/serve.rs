//! Serving: until somebody says stop, and then in order.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::{Extension, Router};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How long requests that are under way have after the stop.
const GRACE: Duration = Duration::from_secs(10);

/// Tells requests that go on and on that the server stops.
#[derive(Debug, Clone)]
pub(crate) struct Stopping(watch::Receiver<bool>);

impl Stopping {
    /// Returns when the server stops, and never if it does not.
    pub(crate) async fn begun(&mut self) {
        if self.0.wait_for(|stopping| *stopping).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns when the server that carries this request stops; a request without one waits for ever.
    pub(crate) async fn told(stopping: Option<Self>) {
        match stopping {
            Some(mut stopping) => stopping.begun().await,
            None => std::future::pending().await,
        }
    }
}

/// Serves a router until `shutdown` is ready. Then nothing new is taken, streams and waits end, and what
/// is under way has ten seconds.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (tell, told) = watch::channel(false);
    let router = router.layer(Extension(Stopping(told.clone())));
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let stop = async move {
        shutdown.await;
        let _ = tell.send(true);
        // Kept until the end: who waits for it must not take its end for a stop of another kind.
        tell.closed().await;
    };
    let mut begun = Stopping(told);
    let serving = axum::serve(listener, service).with_graceful_shutdown({
        let mut begun = begun.clone();
        async move { begun.begun().await }
    });
    let late = async move {
        begun.begun().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        ended = serving => ended,
        () = stop => Ok(()),
        () = late => Ok(()),
    }
}
