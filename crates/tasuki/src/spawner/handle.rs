//! The worker's side.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::process::{CALLED, MARK};
use super::wire::{Inbox, encode, send};
use super::{Order, Report, tree};

/// How long its end is waited for, before it is made to end.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(1);
/// More bytes of orders than this do not travel together.
const TOGETHER: usize = 64 << 10;

/// A spawner process. When this is dropped, it ends, and everything it runs with it.
pub struct Spawner {
    orders: Option<Sender<Sent>>,
    socket: UnixStream,
    child: Child,
    threads: Vec<JoinHandle<()>>,
}

/// An encoded order, and the open files that go with it.
type Sent = (Vec<u8>, Vec<OwnedFd>);

impl Spawner {
    /// Starts one by a command that will call [`run`](super::run) with its standard input. What it
    /// reports is handed on as it comes, and together what comes together; `None` is the last: it is gone.
    pub fn start(
        mut command: Command,
        mut heard: impl FnMut(Option<Vec<Report>>) + Send + 'static,
    ) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let called = format!("{:016x}.", getrandom::u64()?);
        let child = command.stdin(OwnedFd::from(theirs)).env(CALLED, &called).spawn()?;
        let pid = Pid::from_child(&child);
        let (listening, speaking) = (socket.try_clone()?, socket.try_clone()?);
        let (orders, given) = channel();
        let mut spawner = Self { orders: Some(orders), socket, child, threads: Vec::new() };
        spawner.thread("spawner-heard", move || {
            let mut inbox = Inbox::default();
            while let Ok(true) = inbox.fill(&listening) {
                let mut reports = Vec::new();
                while let Ok(Some(mut report)) = inbox.next() {
                    if let Report::Prints { from, .. } = &mut report {
                        *from = inbox.files();
                    }
                    reports.push(report);
                }
                heard(Some(reports));
            }
            sweep_after(pid, &called);
            heard(None);
        })?;
        spawner.thread("spawner-told", move || speak(&speaking, &given))?;
        Ok(spawner)
    }

    fn thread(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(work)?);
        Ok(())
    }

    /// Gives an order; never waits, even for a spawner that is stopped. `files`: the output and the errors
    /// of what is to be started.
    pub fn order(&self, order: &Order, files: Vec<OwnedFd>) -> io::Result<()> {
        let gone = || io::Error::other("the spawner has ended");
        let orders = self.orders.as_ref().ok_or_else(gone)?;
        orders.send((encode(order)?, files)).map_err(|_| gone())
    }

    /// The same for several that need no files, in one go.
    pub fn order_all(&self, orders: &[Order]) -> io::Result<()> {
        let gone = || io::Error::other("the spawner has ended");
        let mut bytes = Vec::new();
        for order in orders {
            bytes.extend(encode(order)?);
        }
        let to = self.orders.as_ref().ok_or_else(gone)?;
        to.send((bytes, Vec::new())).map_err(|_| gone())
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Waits until a spawner has ended. One that was killed could not kill what it ran: that is done here.
fn sweep_after(spawner: Pid, called: &str) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let ended = loop {
        match waitid(WaitId::Pid(spawner), options) {
            Err(rustix::io::Errno::INTR) => {}
            // Whoever waits for it too may have been quicker, and knows how it ended.
            ended => break ended.ok().flatten(),
        }
    };
    if ended.is_some_and(|ended| ended.exit_status() == Some(0)) {
        return;
    }
    // One that was just being started may not be known at the first look.
    let mut looks_without = 0;
    while looks_without < 3 {
        let left = tree::with_variable(MARK, |mark| mark.starts_with(called));
        looks_without = if left.is_empty() { looks_without + 1 } else { 0 };
        left.into_iter().for_each(tree::kill);
        std::thread::sleep(5 * LOOK);
    }
}

/// Sends orders as they come, and in one go what has come, until there are none any more or nobody is there to
/// obey.
fn speak(socket: &UnixStream, given: &Receiver<Sent>) {
    let mut next = given.recv().ok();
    while let Some((mut orders, files)) = next {
        next = loop {
            match given.try_recv() {
                // Files go with the first order only.
                Ok((order, files)) if files.is_empty() && orders.len() < TOGETHER => {
                    orders.extend(order);
                }
                Ok(other) => break Some(other),
                Err(_) => break None,
            }
        };
        let beside: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
        if send(socket, &orders, &beside).is_err() {
            return;
        }
        // Whoever reads the other ends waits for these to be closed.
        drop(files);
        if next.is_none() {
            next = given.recv().ok();
        }
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.orders.take();
        // The spawner reads the end of its orders, kills what it runs, and ends.
        let _ = self.socket.shutdown(Shutdown::Both);
        let asked = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            // One that is stopped does not even read; what it runs dies with it.
            if asked.elapsed() > PATIENCE {
                let _ = self.child.kill();
            }
            std::thread::sleep(LOOK);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
