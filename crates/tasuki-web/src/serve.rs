//! Serving: until somebody says stop, and then in order.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How long requests that are under way have after the stop.
const GRACE: Duration = Duration::from_secs(2);
/// How long the last answers have to get onto the wire.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Tells a request that the server stops. Whoever has one is under way, and is waited for a little.
#[derive(Debug, Clone)]
pub(crate) struct Stopping {
    told: watch::Receiver<bool>,
    _counted: Arc<Counted>,
}

impl Stopping {
    /// Returns when the server that carries this request stops; a request without one waits for ever.
    pub(crate) async fn told(stopping: Option<Self>) {
        match stopping {
            Some(mut stopping) => begun(&mut stopping.told).await,
            None => std::future::pending().await,
        }
    }
}

/// Returns when the server stops, and never if it does not.
async fn begun(told: &mut watch::Receiver<bool>) {
    if told.wait_for(|stopping| *stopping).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// One of the requests that are under way, until it is dropped.
#[derive(Debug)]
struct Counted(watch::Sender<usize>);

impl Counted {
    fn new(under_way: &watch::Sender<usize>) -> Arc<Self> {
        under_way.send_modify(|count| *count += 1);
        Arc::new(Self(under_way.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Serves a router until `shutdown` is ready. Then nothing new is taken, streams and waits end, and what
/// is under way has two seconds. A request of which a part has not come yet is not under way: whoever
/// sends half of one does not hold up a stop.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (tell, told) = watch::channel(false);
    let (under_way, mut left) = watch::channel(0);
    let router = router.layer(from_fn({
        let told = told.clone();
        move |mut request: Request, next: Next| {
            let stopping = Stopping { told: told.clone(), _counted: Counted::new(&under_way) };
            request.extensions_mut().insert(stopping.clone());
            async move {
                let answer = next.run(request).await;
                drop(stopping);
                answer
            }
        }
    }));
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let mut taking = told.clone();
    let serving = axum::serve(listener, service)
        .with_graceful_shutdown(async move { begun(&mut taking).await });
    let stop = async {
        shutdown.await;
        let _ = tell.send(true);
        let _ = tokio::time::timeout(GRACE, left.wait_for(|count| *count == 0)).await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        ended = serving => ended,
        () = stop => Ok(()),
    }
}
