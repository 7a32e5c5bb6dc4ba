//! The worker's side of the spawner: starts the process, sends requests, receives events.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::spawner_loop::{ATTEMPT_MARK_ENV, SPAWNER_ID_ENV};
use super::wire::{ReceiveBuffer, encode, send};
use super::{SpawnerEvent, SpawnerRequest, tree};

/// How long a worker waits for its spawner to exit before it kills it.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Polling interval while a worker waits for processes to end.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum size of a batch of requests in bytes; a longer queue is sent as several batches.
const MAX_BATCH_BYTES: usize = 64 << 10;

/// A running spawner process. Dropping the handle ends the process and everything that it runs.
pub struct SpawnerHandle {
    requests: Option<Sender<EncodedRequest>>,
    socket: UnixStream,
    child: Child,
    threads: Vec<JoinHandle<()>>,
}

/// An encoded request, and the open files that are sent with it.
type EncodedRequest = (Vec<u8>, Vec<OwnedFd>);

impl SpawnerHandle {
    /// Starts a spawner with a command that calls [`run_spawner`](super::run_spawner) with its standard input.
    /// `on_events` gets the events as they arrive, several in one call if they arrive together. `None` is the last
    /// call: the spawner has ended.
    pub fn start(
        mut command: Command,
        mut on_events: impl FnMut(Option<Vec<SpawnerEvent>>) + Send + 'static,
    ) -> io::Result<Self> {
        let (socket, spawner_socket) = UnixStream::pair()?;
        let spawner_id = format!("{:016x}.", getrandom::u64()?);
        let child = command
            .stdin(OwnedFd::from(spawner_socket))
            .env(SPAWNER_ID_ENV, &spawner_id)
            .spawn()?;
        let pid = Pid::from_child(&child);
        let (receive_socket, send_socket) = (socket.try_clone()?, socket.try_clone()?);
        let (requests, queue) = channel();
        let mut spawner = Self { requests: Some(requests), socket, child, threads: Vec::new() };
        spawner.start_thread("spawner-receive", move || {
            let mut receive_buffer = ReceiveBuffer::default();
            while let Ok(true) = receive_buffer.fill(&receive_socket) {
                let mut events = Vec::new();
                while let Ok(Some(mut event)) = receive_buffer.next_message() {
                    if let SpawnerEvent::OutputPipes { pipes, .. } = &mut event {
                        *pipes = receive_buffer.take_files();
                    }
                    events.push(event);
                }
                on_events(Some(events));
            }
            kill_leftovers_after(pid, &spawner_id);
            on_events(None);
        })?;
        spawner.start_thread("spawner-send", move || write_requests(&send_socket, &queue))?;
        Ok(spawner)
    }

    fn start_thread(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(work)?);
        Ok(())
    }

    /// Sends a request. It never waits, even if the spawner is stopped. `files`: stdout and stderr of the command to
    /// start.
    pub fn send(&self, request: &SpawnerRequest, files: Vec<OwnedFd>) -> io::Result<()> {
        let gone = || io::Error::other("the spawner has ended");
        let requests = self.requests.as_ref().ok_or_else(gone)?;
        requests.send((encode(request)?, files)).map_err(|_| gone())
    }

    /// Sends several requests without files together.
    pub fn send_all(&self, requests: &[SpawnerRequest]) -> io::Result<()> {
        let gone = || io::Error::other("the spawner has ended");
        let mut bytes = Vec::new();
        for request in requests {
            bytes.extend(encode(request)?);
        }
        let sender = self.requests.as_ref().ok_or_else(gone)?;
        sender.send((bytes, Vec::new())).map_err(|_| gone())
    }

    /// Process id of the spawner.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Waits until a spawner has ended, and kills what it ran if the spawner was killed and could not do that itself.
fn kill_leftovers_after(spawner: Pid, spawner_id: &str) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let ended = loop {
        match waitid(WaitId::Pid(spawner), options) {
            Err(rustix::io::Errno::INTR) => {}
            // `drop` below also waits for the process and may have reaped it; then its exit status is not available
            // here.
            ended => break ended.ok().flatten(),
        }
    };
    if ended.is_some_and(|ended| ended.exit_status() == Some(0)) {
        return;
    }
    // A process that was just being started may be missing in the first scans.
    let mut empty_scans = 0;
    while empty_scans < 3 {
        let leftovers =
            tree::find_by_variable(ATTEMPT_MARK_ENV, |mark| mark.starts_with(spawner_id));
        empty_scans = if leftovers.is_empty() { empty_scans + 1 } else { 0 };
        leftovers.into_iter().for_each(tree::kill_tree);
        std::thread::sleep(5 * POLL_INTERVAL);
    }
}

/// Sends requests as they arrive, several together if they are queued. Ends when the handle is dropped or the spawner
/// has gone.
fn write_requests(socket: &UnixStream, queue: &Receiver<EncodedRequest>) {
    let mut next = queue.recv().ok();
    while let Some((mut requests, files)) = next {
        next = loop {
            match queue.try_recv() {
                // Files are sent with the first request of a batch only.
                Ok((request, files)) if files.is_empty() && requests.len() < MAX_BATCH_BYTES => {
                    requests.extend(request);
                }
                Ok(other) => break Some(other),
                Err(_) => break None,
            }
        };
        let fds: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
        if send(socket, &requests, &fds).is_err() {
            return;
        }
        // Close our copies: the reader of the pipes sees their end only when all copies are closed.
        drop(files);
        if next.is_none() {
            next = queue.recv().ok();
        }
    }
}

impl Drop for SpawnerHandle {
    fn drop(&mut self) {
        self.requests.take();
        // The spawner sees the end of the requests, kills what it runs, and exits.
        let _ = self.socket.shutdown(Shutdown::Both);
        let dropped_at = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            // A stopped spawner does not read. Its commands die with it (parent death signal).
            if dropped_at.elapsed() > EXIT_TIMEOUT {
                let _ = self.child.kill();
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
