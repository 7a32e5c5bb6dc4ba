//! What jobs print, on its way to the database: in batches, with a cap, and never faster than it can be
//! kept. A job that prints faster waits for its pipe; what is beyond the cap is thrown away as it comes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::pipe::fcntl_getpipe_size;
use tasuki_core::RunId;
use tasuki_store::{FirstLines, LogLine, Stream};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{Notify, watch};

use super::attempt::Signs;
use super::keeper::Keeper;
use crate::node::world::Clock;
use crate::output::Lines;
use crate::spawner::JobKey;

/// How long lines wait for others to travel with.
const PACE: Duration = Duration::from_millis(200);
/// So much is not waited with.
const FULL: usize = 64 << 10;
/// More than this of one attempt is not held in memory.
const MOST: usize = 256 << 10;
/// Nor more than this of a function, which does not wait for room: what comes faster is passed over.
const FLOOD: usize = 1 << 20;
/// What is in a pipe at most, unless somebody changed that.
const PIPE: usize = 64 << 10;
/// So much is read at a time.
const PIECE: usize = 8 << 10;
/// How long the end of an attempt waits for its last lines.
const PATIENCE: Duration = Duration::from_secs(60);

/// The log of one attempt.
pub(crate) struct Log {
    keeper: Keeper,
    clock: Arc<dyn Clock>,
    key: JobKey,
    cap: i64,
    waiting: Mutex<Waiting>,
    /// There is something to keep.
    filled: Notify,
    /// There is room again.
    emptied: Notify,
}

#[derive(Default)]
struct Waiting {
    lines: Vec<LogLine>,
    bytes: usize,
    /// How many lines came too fast.
    passed_over: usize,
    /// Nothing more is kept: the cap was reached, or there is no such attempt any more.
    full: bool,
    /// The job has ended.
    ended: bool,
    /// Somebody keeps what comes.
    kept: bool,
    /// And has kept all of it.
    done: bool,
}

impl Log {
    pub(crate) fn new(keeper: Keeper, clock: Arc<dyn Clock>, key: JobKey, cap: i64) -> Arc<Self> {
        let bell = Notify::new;
        let (waiting, filled, emptied) = (Mutex::default(), bell(), bell());
        Arc::new(Self { keeper, clock, key, cap, waiting, filled, emptied })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one line.
    pub(crate) fn line(&self, stream: Stream, text: String) {
        let at = self.clock.wall();
        let mut waiting = self.waiting();
        if waiting.full {
            return;
        }
        if waiting.bytes > FLOOD {
            waiting.passed_over += 1;
            return;
        }
        waiting.bytes += text.len() + 32;
        waiting.lines.push(LogLine { stream, at, text });
    }

    /// Reads a stream to its end, or to what was in it when everything of the job had ended: whoever still
    /// holds it is not one of its processes.
    pub(crate) async fn read(
        self: Arc<Self>,
        mut from: Receiver,
        stream: Stream,
        signs: Signs,
        mut end: watch::Receiver<bool>,
    ) {
        let mut buffer = vec![0; 64 << 10];
        let mut lines = Lines::default();
        let mut left = None;
        loop {
            // In pieces of which the shortest lines find room: what is kept of a command is kept whole.
            let piece = if self.waiting().full { buffer.len() } else { PIECE };
            let got = match &mut left {
                None => tokio::select! {
                    got = from.read(&mut buffer[..piece]) => got,
                    _ = end.wait_for(|ended| *ended) => {
                        left = Some(fcntl_getpipe_size(&from).unwrap_or(PIPE));
                        continue;
                    }
                },
                Some(0) => break,
                Some(left) => {
                    // Not by way of its readiness, which may be yet to be told.
                    let piece = piece.min(*left);
                    let got = rustix::io::read(&from, &mut buffer[..piece]);
                    *left -= got.unwrap_or(0);
                    got.map_err(Into::into)
                }
            };
            let got = match got {
                Ok(0) | Err(_) => break,
                Ok(got) => got,
            };
            signs.show(self.clock.boottime());
            if self.waiting().full {
                continue;
            }
            lines.take_in(&buffer[..got], |text| self.line(stream, text));
            self.ring();
            self.room().await;
        }
        if let Some(text) = lines.end() {
            self.line(stream, text);
            self.ring();
        }
    }

    /// Waits until there is room for more.
    async fn room(&self) {
        loop {
            let emptied = self.emptied.notified();
            let waiting = { self.waiting().bytes };
            if waiting <= MOST {
                return;
            }
            emptied.await;
        }
    }

    /// Keeps what comes, batch by batch, until no more will.
    async fn keep(self: Arc<Self>) {
        let mut next_line = 0;
        loop {
            let (bytes, ended) = {
                let waiting = self.waiting();
                (waiting.bytes, waiting.ended)
            };
            if bytes == 0 && ended {
                self.waiting().done = true;
                self.emptied.notify_waiters();
                return;
            }
            if bytes == 0 {
                self.filled.notified().await;
            }
            let _ = tokio::time::timeout(PACE, self.enough()).await;
            self.flush(&mut next_line).await;
        }
    }

    /// Waits until there is so much that more is not waited for, or no more comes.
    async fn enough(&self) {
        loop {
            let (bytes, ended) = {
                let waiting = self.waiting();
                (waiting.bytes, waiting.ended)
            };
            if bytes >= FULL || ended {
                return;
            }
            self.filled.notified().await;
        }
    }

    /// There is a line to be kept.
    pub(crate) fn ring(self: &Arc<Self>) {
        if self.waiting().bytes == 0 {
            return;
        }
        if !std::mem::replace(&mut self.waiting().kept, true) {
            tokio::spawn(Arc::clone(self).keep());
        }
        self.filled.notify_one();
    }

    /// What is still being `read` is waited for, and then what is left to be kept. Where nothing was ever
    /// printed, nothing is done.
    pub(crate) async fn finish(self: &Arc<Self>, read: impl Future<Output = ()>) {
        let kept = async {
            read.await;
            self.close();
            loop {
                let emptied = self.emptied.notified();
                let (kept, done) = {
                    let waiting = self.waiting();
                    (waiting.kept, waiting.done)
                };
                if !kept || done {
                    return;
                }
                emptied.await;
            }
        };
        if tokio::time::timeout(PATIENCE, kept).await.is_err() {
            self.close();
            tracing::warn!(run_id = self.key.run, "the last lines of a log were not kept in time");
        }
    }

    /// No more comes: what is left is kept as soon as can be. Whether something is, or was.
    pub(crate) fn close(&self) -> bool {
        let kept = {
            let mut waiting = self.waiting();
            waiting.ended = true;
            waiting.kept
        };
        self.filled.notify_one();
        kept
    }

    /// Writes what waits. What cannot be written goes on waiting.
    async fn flush(&self, next_line: &mut i64) {
        let lines = {
            let mut waiting = self.waiting();
            waiting.bytes = 0;
            if let Some(last) = waiting.lines.last().filter(|_| waiting.passed_over > 0) {
                let text = format!("[{} lines came too fast and are missing]", waiting.passed_over);
                let mark = LogLine { text, ..last.clone() };
                waiting.lines.push(mark);
                waiting.passed_over = 0;
            }
            std::mem::take(&mut waiting.lines)
        };
        if lines.is_empty() {
            return;
        }
        let (run, attempt) = (RunId(self.key.run), self.key.attempt);
        let first = FirstLines { run, attempt_no: attempt, lines };
        if *next_line == 0 && first.are_few(self.cap) {
            // What is not known to be kept is kept below, once.
            if let Ok(true) = self.keeper.open(first.clone()).await {
                *next_line = first.lines.len() as i64;
                self.emptied.notify_waiters();
                return;
            }
        }
        let (store, lines) = (&self.keeper.store, first.lines);
        loop {
            match store.append_log(run, attempt, *next_line, &lines, self.cap).await {
                Ok(Some(logged)) => {
                    *next_line = logged.next_line;
                    self.waiting().full |= logged.truncated;
                    break;
                }
                Ok(None) => {
                    self.waiting().full = true;
                    break;
                }
                Err(error) if error.is_invalid_input() => {
                    tracing::warn!(run_id = %run, %error, "lines of a log were refused");
                    break;
                }
                Err(error) => {
                    tracing::debug!(run_id = %run, %error, "a log waits for the database");
                    tokio::time::sleep(PACE).await;
                }
            }
        }
        {
            let mut waiting = self.waiting();
            if waiting.full {
                waiting.lines.clear();
                waiting.bytes = 0;
            }
        }
        self.emptied.notify_waiters();
    }
}
