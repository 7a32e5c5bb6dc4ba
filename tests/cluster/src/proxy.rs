//! A TCP proxy whose links can be blocked or delayed, in each direction separately.
//!
//! A blocked link behaves like a cut cable: connections are not closed, nothing arrives, and data in transit arrives
//! when the link is open again, however late.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::test_support::{POLL_INTERVAL, runtime};

/// State of one direction of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkState {
    /// Data passes without delay.
    #[default]
    Open,
    /// Data passes with this delay.
    Delayed(Duration),
    /// No data passes until the state changes.
    Blocked,
}

/// A direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficDirection {
    /// From the client, which opened the connection, to the server.
    ToUpstream,
    /// From the server to the client.
    ToClient,
}

/// The link between one client and one server. Any number of connections use it.
#[derive(Debug, Clone)]
pub(crate) struct ProxyLink {
    states: Arc<watch::Sender<[LinkState; 2]>>,
}

impl ProxyLink {
    pub(crate) fn new() -> Self {
        Self { states: Arc::new(watch::Sender::new([LinkState::Open; 2])) }
    }

    /// Changes the state of one direction.
    pub(crate) fn set(&self, direction: TrafficDirection, state: LinkState) {
        self.states.send_modify(|states| states[direction as usize] = state);
    }

    /// Waits until data may pass in this direction.
    async fn wait_until_open(
        states: &mut watch::Receiver<[LinkState; 2]>,
        direction: TrafficDirection,
    ) {
        // The sender cannot be dropped before the receivers: each connection owns the link.
        let open = states.wait_for(|states| states[direction as usize] != LinkState::Blocked).await;
        if let Ok(LinkState::Delayed(delay)) = open.map(|states| states[direction as usize]) {
            tokio::time::sleep(delay).await;
        }
    }

    /// Connects an accepted client to the server, and forwards data in both directions.
    async fn connect(&self, client: TcpStream, upstream: SocketAddr) -> io::Result<()> {
        let mut states = self.states.subscribe();
        Self::wait_until_open(&mut states, TrafficDirection::ToUpstream).await;
        let server = TcpStream::connect(upstream).await?;
        server.set_nodelay(true)?;
        client.set_nodelay(true)?;
        let (from, to) = (client.into_split(), server.into_split());
        tokio::join!(
            Self::forward(from.0, to.1, states.clone(), TrafficDirection::ToUpstream),
            Self::forward(to.0, from.1, states, TrafficDirection::ToClient),
        );
        Ok(())
    }

    /// Forwards the data of one direction until the sender closes it.
    async fn forward(
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        mut states: watch::Receiver<[LinkState; 2]>,
        direction: TrafficDirection,
    ) {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            // The end of a connection is also delayed or blocked, like data.
            let read = from.read(&mut buffer).await.unwrap_or(0);
            Self::wait_until_open(&mut states, direction).await;
            if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
                let _ = to.shutdown().await;
                return;
            }
        }
    }
}

/// A port that forwards to a server. Dropping the value closes the port and all its connections.
pub(crate) struct ProxyListener {
    pub(crate) port: u16,
    task: AbortHandle,
}

impl ProxyListener {
    /// Listens on this port, or on any free port if it is 0. `find_link` returns the link of a client from the
    /// address of the client; a client without a link is disconnected.
    pub(crate) fn open(
        port: u16,
        upstream: SocketAddr,
        find_link: impl Fn(SocketAddr) -> Option<ProxyLink> + Send + Sync + 'static,
    ) -> Self {
        let _inside = runtime().enter();
        let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let listener = TcpListener::from_std(listener).unwrap();
        let find_link = Arc::new(find_link);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                while connections.try_join_next().is_some() {}
                let Ok((client, from)) = listener.accept().await else {
                    // For example too many open files: clients wait until there are fewer.
                    tokio::time::sleep(POLL_INTERVAL).await;
                    continue;
                };
                let find_link = Arc::clone(&find_link);
                connections.spawn(async move {
                    if let Some(link) = find_link(from) {
                        let _ = link.connect(client, upstream).await;
                    }
                });
            }
        });
        Self { port, task: task.abort_handle() }
    }
}

impl Drop for ProxyListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}
