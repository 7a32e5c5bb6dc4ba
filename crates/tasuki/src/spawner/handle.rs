//! The worker's side.

use std::io;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::thread::JoinHandle;

use super::wire::{Inbox, send};
use super::{Order, Report};

/// A spawner process. When this is dropped, it ends, and everything it runs with it.
pub struct Spawner {
    socket: UnixStream,
    child: Child,
    listener: Option<JoinHandle<()>>,
}

impl Spawner {
    /// Starts one by a command that will call [`run`](super::run) with its standard input. What it
    /// reports is handed on as it comes; `None` is the last: it is gone.
    pub fn start(
        mut command: Command,
        mut heard: impl FnMut(Option<Report>) + Send + 'static,
    ) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let child = command.stdin(OwnedFd::from(theirs)).spawn()?;
        let listening = socket.try_clone()?;
        let listener = std::thread::Builder::new().name("spawner".to_owned()).spawn(move || {
            let mut inbox = Inbox::default();
            while let Ok(true) = inbox.fill(&listening) {
                while let Ok(Some(report)) = inbox.next() {
                    heard(Some(report));
                }
            }
            heard(None);
        })?;
        Ok(Self { socket, child, listener: Some(listener) })
    }

    /// Gives an order. `files`: the output and the errors of what is to be started.
    pub fn order(&self, order: &Order, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(&self.socket, order, files)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        // The spawner reads the end of its orders, kills what it runs, and ends.
        let _ = self.socket.shutdown(Shutdown::Both);
        let _ = self.child.wait();
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}
