//! The HTTP server and its graceful shutdown.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Time after the shutdown signal in which requests in progress may finish.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// Time in which the last responses are sent before connections are closed.
const FLUSH_TIME: Duration = Duration::from_millis(100);

/// Signals to a request that the server is stopping. A request that has one counts as in progress: the shutdown waits for it, up
/// to the grace time.
#[derive(Debug, Clone)]
pub(crate) struct ShutdownSignal {
    stopping: watch::Receiver<bool>,
    _in_progress: Arc<RequestInProgress>,
}

impl ShutdownSignal {
    /// Waits until the server is stopping. Without a signal it waits forever.
    pub(crate) async fn wait(signal: Option<Self>) {
        match signal {
            Some(mut signal) => wait_until_stopping(&mut signal.stopping).await,
            None => std::future::pending().await,
        }
    }
}

/// Waits until the server is stopping. Never returns if the sender is gone.
async fn wait_until_stopping(signal: &mut watch::Receiver<bool>) {
    if signal.wait_for(|stopping| *stopping).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Counts a request as in progress until it is dropped.
#[derive(Debug)]
struct RequestInProgress(watch::Sender<usize>);

impl RequestInProgress {
    fn new(counter: &watch::Sender<usize>) -> Arc<Self> {
        counter.send_modify(|count| *count += 1);
        Arc::new(Self(counter.clone()))
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Serves a router until `shutdown` completes. Then new connections are refused, streams and waits end, and requests in progress
/// have two seconds to finish. A client that sends only a part of a request does not delay the shutdown: without all headers the
/// request is not in progress, and waiting for a body ends with the signal.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (stop_sender, stopping) = watch::channel(false);
    let (counter, mut in_progress) = watch::channel(0);
    let router = router.layer(from_fn({
        let stopping = stopping.clone();
        move |mut request: Request, next: Next| {
            let signal = ShutdownSignal {
                stopping: stopping.clone(),
                _in_progress: RequestInProgress::new(&counter),
            };
            request.extensions_mut().insert(signal.clone());
            async move {
                let response = next.run(request).await;
                drop(signal);
                response
            }
        }
    }));
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let mut stop_accepting = stopping.clone();
    let server = axum::serve(listener, service)
        .with_graceful_shutdown(async move { wait_until_stopping(&mut stop_accepting).await });
    let stop = async {
        shutdown.await;
        let _ = stop_sender.send(true);
        let _ =
            tokio::time::timeout(SHUTDOWN_GRACE, in_progress.wait_for(|count| *count == 0)).await;
        tokio::time::sleep(FLUSH_TIME).await;
    };
    tokio::select! {
        result = server => result,
        () = stop => Ok(()),
    }
}
