//! A wire: whatever connects through it can be held up, in either direction.
//!
//! Holding is what a cut cable does: nothing is refused, nothing arrives, and what was on its way arrives when the
//! cable is mended, however late.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::place::{LOOK, runtime};

/// How one direction is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flow {
    /// As if there were no wire.
    #[default]
    Open,
    /// Everything comes so much later.
    Slow(Duration),
    /// Nothing comes.
    Held,
}

/// A direction, as seen by whoever dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From whoever dialled.
    There,
    /// To whoever dialled.
    Back,
}

/// One wire; any number of connections go through it.
#[derive(Debug, Clone)]
pub(crate) struct Wire {
    flows: Arc<watch::Sender<[Flow; 2]>>,
}

impl Wire {
    pub(crate) fn new() -> Self {
        Self { flows: Arc::new(watch::Sender::new([Flow::Open; 2])) }
    }

    pub(crate) fn set(&self, way: Way, flow: Flow) {
        self.flows.send_modify(|flows| flows[way as usize] = flow);
    }

    /// Returns when something may pass.
    async fn pass(flows: &mut watch::Receiver<[Flow; 2]>, way: Way) {
        // The sender lives as long as its connections: they hold the wire.
        let open = flows.wait_for(|flows| flows[way as usize] != Flow::Held).await;
        if let Ok(Flow::Slow(late)) = open.map(|flows| flows[way as usize]) {
            tokio::time::sleep(late).await;
        }
    }

    /// Connects somebody who dialled with whom they want.
    async fn connect(&self, dialled: TcpStream, upstream: SocketAddr) -> io::Result<()> {
        let mut flows = self.flows.subscribe();
        Self::pass(&mut flows, Way::There).await;
        let wanted = TcpStream::connect(upstream).await?;
        wanted.set_nodelay(true)?;
        dialled.set_nodelay(true)?;
        let (from, to) = (dialled.into_split(), wanted.into_split());
        tokio::join!(
            Self::pump(from.0, to.1, flows.clone(), Way::There),
            Self::pump(to.0, from.1, flows, Way::Back),
        );
        Ok(())
    }

    /// Carries one direction until its sender has no more to say.
    async fn pump(
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        mut flows: watch::Receiver<[Flow; 2]>,
        way: Way,
    ) {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            // That somebody is gone is also told no sooner than anything else.
            let read = from.read(&mut buffer).await.unwrap_or(0);
            Self::pass(&mut flows, way).await;
            if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
                let _ = to.shutdown().await;
                return;
            }
        }
    }
}

/// A port that leads to a server. It is closed with this value, and so is whatever goes through it.
pub(crate) struct Door {
    pub(crate) port: u16,
    served: AbortHandle,
}

impl Door {
    /// Opens this port, or any if it is 0; `whose` says which wire somebody who dials it uses, and nobody is let in
    /// without one.
    pub(crate) fn open(
        port: u16,
        upstream: SocketAddr,
        whose: impl Fn(SocketAddr) -> Option<Wire> + Send + Sync + 'static,
    ) -> Self {
        let _inside = runtime().enter();
        let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let listener = TcpListener::from_std(listener).unwrap();
        let whose = Arc::new(whose);
        let served = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                while connections.try_join_next().is_some() {}
                let Ok((dialled, from)) = listener.accept().await else {
                    // Too many files are open, say: whoever dials waits until there are fewer.
                    tokio::time::sleep(LOOK).await;
                    continue;
                };
                let whose = Arc::clone(&whose);
                connections.spawn(async move {
                    if let Some(wire) = whose(from) {
                        let _ = wire.connect(dialled, upstream).await;
                    }
                });
            }
        });
        Self { port, served: served.abort_handle() }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.served.abort();
    }
}
