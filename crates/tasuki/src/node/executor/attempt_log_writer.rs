//! Writes the output of an attempt to its log in the database: in batches, up to a maximum size, and never faster than
//! the database can store it. A command that prints faster waits for its pipe. Output beyond the maximum is read and
//! discarded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::pipe::fcntl_getpipe_size;
use tasuki_core::RunId;
use tasuki_store::{FirstOutputLines, LogLine, OutputStream};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{Notify, watch};

use super::attempt_input_and_result::LastSignOfLife;
use super::log_creation_batcher::LogCreationBatcher;
use crate::line_splitter::LineSplitter;
use crate::node::clock_and_random::Clock;
use crate::spawner::AttemptKey;

/// How long lines are gathered before they are written; also the delay before a failed write is repeated.
const FLUSH_INTERVAL: Duration = Duration::from_millis(200);
/// Number of buffered bytes after which they are written without delay.
const FLUSH_BYTES: usize = 64 << 10;
/// Maximum of buffered bytes of one attempt. Reading of its pipes pauses above it.
const MAX_BUFFERED_BYTES: usize = 256 << 10;
/// Maximum of buffered bytes of a function, which is not slowed down: further lines are dropped and counted.
const MAX_UNTHROTTLED_BYTES: usize = 1 << 20;
/// Default capacity of a pipe in bytes, if the kernel does not return it.
const DEFAULT_PIPE_BYTES: usize = 64 << 10;
/// Number of bytes that are read from a pipe at a time.
const READ_CHUNK_BYTES: usize = 8 << 10;
/// How long the end of an attempt waits until its last lines are stored.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);

/// The log of one attempt.
pub(crate) struct AttemptLog {
    batcher: LogCreationBatcher,
    clock: Arc<dyn Clock>,
    key: AttemptKey,
    max_bytes: i64,
    buffer: Mutex<LogBuffer>,
    /// Wakes the writer: lines were added, or the attempt has ended.
    lines_added: Notify,
    /// Wakes the readers: lines were written.
    space_freed: Notify,
}

#[derive(Default)]
struct LogBuffer {
    lines: Vec<LogLine>,
    bytes: usize,
    /// Number of lines that were dropped since the last write.
    dropped_lines: usize,
    /// Whether further lines are discarded: the log is full, or the attempt no longer exists.
    discards: bool,
    /// Whether the attempt has ended.
    ended: bool,
    /// Whether the task that writes the lines was started.
    writer_started: bool,
    /// Whether that task has written everything and ended.
    writer_finished: bool,
}

impl AttemptLog {
    pub(crate) fn new(
        batcher: LogCreationBatcher,
        clock: Arc<dyn Clock>,
        key: AttemptKey,
        max_bytes: i64,
    ) -> Arc<Self> {
        let notify = Notify::new;
        let (buffer, lines_added, space_freed) = (Mutex::default(), notify(), notify());
        Arc::new(Self { batcher, clock, key, max_bytes, buffer, lines_added, space_freed })
    }

    fn buffer(&self) -> MutexGuard<'_, LogBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line to the buffer.
    pub(crate) fn push_line(&self, stream: OutputStream, text: String) {
        let at = self.clock.wall_clock();
        let mut buffer = self.buffer();
        if buffer.discards {
            return;
        }
        if buffer.bytes > MAX_UNTHROTTLED_BYTES {
            buffer.dropped_lines += 1;
            return;
        }
        buffer.bytes += text.len() + 32;
        buffer.lines.push(LogLine { stream, at, text });
    }

    /// Reads a pipe to its end. If all processes of the command have ended, it reads only what is in the pipe then:
    /// another process that still holds the pipe does not belong to the command.
    pub(crate) async fn read_pipe(
        self: Arc<Self>,
        mut pipe: Receiver,
        stream: OutputStream,
        liveness: LastSignOfLife,
        mut end: watch::Receiver<bool>,
    ) {
        let mut bytes = vec![0; 64 << 10];
        let mut lines = LineSplitter::default();
        let mut remaining = None;
        loop {
            // Small enough that even a chunk of empty lines fits into the buffer, so that no line of a command is
            // dropped.
            let chunk = if self.buffer().discards { bytes.len() } else { READ_CHUNK_BYTES };
            let count = match &mut remaining {
                None => tokio::select! {
                    count = pipe.read(&mut bytes[..chunk]) => count,
                    _ = end.wait_for(|ended| *ended) => {
                        remaining = Some(fcntl_getpipe_size(&pipe).unwrap_or(DEFAULT_PIPE_BYTES));
                        continue;
                    }
                },
                Some(0) => break,
                Some(remaining) => {
                    // Read directly: tokio may not have seen yet that the pipe is readable.
                    let chunk = chunk.min(*remaining);
                    let count = rustix::io::read(&pipe, &mut bytes[..chunk]);
                    *remaining -= count.unwrap_or(0);
                    count.map_err(Into::into)
                }
            };
            let count = match count {
                Ok(0) | Err(_) => break,
                Ok(count) => count,
            };
            liveness.touch(self.clock.boottime());
            if self.buffer().discards {
                continue;
            }
            lines.push(&bytes[..count], |text| self.push_line(stream, text));
            self.wake_writer();
            self.wait_for_space().await;
        }
        if let Some(text) = lines.finish() {
            self.push_line(stream, text);
            self.wake_writer();
        }
    }

    /// Waits until the buffer has space for more.
    async fn wait_for_space(&self) {
        loop {
            let space_freed = self.space_freed.notified();
            let bytes = { self.buffer().bytes };
            if bytes <= MAX_BUFFERED_BYTES {
                return;
            }
            space_freed.await;
        }
    }

    /// Writes the buffered lines, batch by batch, until the attempt has ended and everything is written.
    async fn write_batches(self: Arc<Self>) {
        let mut next_line = 0;
        loop {
            let (bytes, ended) = {
                let buffer = self.buffer();
                (buffer.bytes, buffer.ended)
            };
            if bytes == 0 && ended {
                self.buffer().writer_finished = true;
                self.space_freed.notify_waiters();
                return;
            }
            if bytes == 0 {
                self.lines_added.notified().await;
            }
            let _ = tokio::time::timeout(FLUSH_INTERVAL, self.wait_for_full_batch()).await;
            self.flush(&mut next_line).await;
        }
    }

    /// Waits until a full batch is buffered or the attempt has ended.
    async fn wait_for_full_batch(&self) {
        loop {
            let (bytes, ended) = {
                let buffer = self.buffer();
                (buffer.bytes, buffer.ended)
            };
            if bytes >= FLUSH_BYTES || ended {
                return;
            }
            self.lines_added.notified().await;
        }
    }

    /// Wakes the writer if lines are buffered, and starts it if it does not run yet.
    pub(crate) fn wake_writer(self: &Arc<Self>) {
        if self.buffer().bytes == 0 {
            return;
        }
        if !std::mem::replace(&mut self.buffer().writer_started, true) {
            tokio::spawn(Arc::clone(self).write_batches());
        }
        self.lines_added.notify_one();
    }

    /// Waits for the future `read`, which reads the rest, and then until everything is written. Does nothing if there
    /// never was a line.
    pub(crate) async fn finish(self: &Arc<Self>, read: impl Future<Output = ()>) {
        let stored = async {
            read.await;
            self.close();
            loop {
                let space_freed = self.space_freed.notified();
                let (stored, done) = {
                    let buffer = self.buffer();
                    (buffer.writer_started, buffer.writer_finished)
                };
                if !stored || done {
                    return;
                }
                space_freed.await;
            }
        };
        if tokio::time::timeout(FINISH_TIMEOUT, stored).await.is_err() {
            self.close();
            tracing::warn!(
                run_id = self.key.run,
                "the last lines of a log were not stored in time"
            );
        }
    }

    /// Marks the attempt as ended, so that the rest is written immediately. Returns whether there ever was a line.
    pub(crate) fn close(&self) -> bool {
        let stored = {
            let mut buffer = self.buffer();
            buffer.ended = true;
            buffer.writer_started
        };
        self.lines_added.notify_one();
        stored
    }

    /// Writes the buffered lines, and repeats a failed write until the database answers.
    async fn flush(&self, next_line: &mut i64) {
        let lines = {
            let mut buffer = self.buffer();
            buffer.bytes = 0;
            if let Some(last) = buffer.lines.last().filter(|_| buffer.dropped_lines > 0) {
                let text = format!(
                    "[{} lines are missing: they came faster than they could be stored]",
                    buffer.dropped_lines
                );
                let notice = LogLine { text, ..last.clone() };
                buffer.lines.push(notice);
                buffer.dropped_lines = 0;
            }
            std::mem::take(&mut buffer.lines)
        };
        if lines.is_empty() {
            return;
        }
        let (run, attempt) = (RunId(self.key.run), self.key.attempt);
        let captured = FirstOutputLines { run, attempt_no: attempt, lines };
        if *next_line == 0 && captured.fits_one_chunk(self.max_bytes) {
            // If it is not certain that the lines were stored, `append_log` below stores them, but never twice.
            if let Ok(true) = self.batcher.create_log(captured.clone()).await {
                *next_line = captured.lines.len() as i64;
                self.space_freed.notify_waiters();
                return;
            }
        }
        let (store, lines) = (&self.batcher.store, captured.lines);
        loop {
            match store.append_log(run, attempt, *next_line, &lines, self.max_bytes).await {
                Ok(Some(logged)) => {
                    *next_line = logged.next_line;
                    self.buffer().discards |= logged.truncated;
                    break;
                }
                Ok(None) => {
                    self.buffer().discards = true;
                    break;
                }
                Err(error) if error.is_invalid_input() => {
                    tracing::warn!(run_id = %run, %error, "lines of a log were refused by the database");
                    break;
                }
                Err(error) => {
                    tracing::debug!(run_id = %run, %error, "lines of a log could not be stored; trying again");
                    tokio::time::sleep(FLUSH_INTERVAL).await;
                }
            }
        }
        {
            let mut buffer = self.buffer();
            if buffer.discards {
                buffer.lines.clear();
                buffer.bytes = 0;
            }
        }
        self.space_freed.notify_waiters();
    }
}
