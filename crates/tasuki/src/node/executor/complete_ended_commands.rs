//! Completion of commands that have ended: stores their output, reads their result files, and adds their completions to
//! the queue of the worker. Commands that end at about the same time are completed as a batch.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{LeaseToken, RunId};
use tasuki_store::{FirstOutputLines, LogLine, OutputStream};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::attempt_input_and_result::{Completion, CompletionQueue, ExecutionEnd, LastSignOfLife};
use super::attempt_log_writer::AttemptLog;
use super::log_creation_batcher::LogCreationBatcher;
use super::read_command_result_file;
use crate::line_splitter::LineSplitter;
use crate::node::clock_and_random::Clock;
use crate::spawner::{AttemptKey, LaunchRefusal, ProcessExit, ProcessOutput};

/// How long the next batch waits until the previous one is completed; meanwhile it gathers more commands.
const MAX_WAIT_FOR_PREVIOUS: Duration = Duration::from_millis(50);

/// A command that has ended or was refused.
pub(crate) struct EndedCommand {
    pub(crate) key: AttemptKey,
    pub(crate) token: LeaseToken,
    pub(crate) exit: Result<ProcessExit, LaunchRefusal>,
    /// Its output, if its pipes were not handed over.
    pub(crate) output: ProcessOutput,
    /// Path of its result file, which may not exist.
    pub(crate) result_path: PathBuf,
}

/// Stores output, reads result files and queues completions.
pub(crate) struct CommandCompleter {
    log_batcher: LogCreationBatcher,
    clock: Arc<dyn Clock>,
    max_log_bytes: i64,
    completions: CompletionQueue,
}

impl CommandCompleter {
    pub(crate) fn new(
        log_batcher: LogCreationBatcher,
        clock: Arc<dyn Clock>,
        max_log_bytes: i64,
        completions: CompletionQueue,
    ) -> Self {
        Self { log_batcher, clock, max_log_bytes, completions }
    }

    /// Reads the output pipes of a command until it has ended, and then completes it.
    pub(crate) async fn complete_after_output(
        self: Arc<Self>,
        key: AttemptKey,
        liveness: LastSignOfLife,
        pipes: Vec<OwnedFd>,
        exit: oneshot::Receiver<EndedCommand>,
    ) {
        let log = self.attempt_log(key);
        let (end_sender, end) = watch::channel(false);
        let mut readers = JoinSet::new();
        let streams = [OutputStream::Stdout, OutputStream::Stderr];
        if pipes.len() < streams.len() {
            log.push_line(
                OutputStream::Stderr,
                "[output is not captured: too many open files]".into(),
            );
            log.wake_writer();
        }
        for (pipe, stream) in pipes.into_iter().zip(streams) {
            match Receiver::from_owned_fd(pipe) {
                Ok(pipe) => {
                    let read =
                        Arc::clone(&log).read_pipe(pipe, stream, liveness.clone(), end.clone());
                    readers.spawn(read);
                }
                Err(error) => {
                    tracing::warn!(run_id = key.run, %error, "an output pipe cannot be read");
                }
            }
        }
        let Ok(ended) = exit.await else { return };
        let _ = end_sender.send(true);
        log.finish(async { while readers.join_next().await.is_some() {} }).await;
        self.complete(vec![ended]).await;
    }

    /// Completes ended commands in batches: the commands that end while a batch is completed form the next batch.
    pub(crate) async fn complete_in_batches(
        self: Arc<Self>,
        mut queue: mpsc::UnboundedReceiver<Vec<EndedCommand>>,
    ) {
        while let Some(mut ended) = queue.recv().await {
            while let Ok(more) = queue.try_recv() {
                ended.extend(more);
            }
            let batch = tokio::spawn(Arc::clone(&self).complete(ended));
            // A batch that takes long (a slow file system) does not block the next one for long.
            let _ = timeout(MAX_WAIT_FOR_PREVIOUS, batch).await;
        }
    }

    /// Reads the result files of these commands and queues their completions. Short output goes with the completion;
    /// long output is stored before.
    pub(crate) async fn complete(self: Arc<Self>, ended: Vec<EndedCommand>) {
        let exited = ended.iter().filter(|command| command.exit.is_ok());
        let results = read_command_result_file::read_result_files(
            exited.map(|command| command.result_path.clone()).collect(),
        )
        .await;
        let mut results = results.into_iter();
        let mut completions = Vec::with_capacity(ended.len());
        for EndedCommand { key, token, exit, output, .. } in ended {
            let lines = output_lines(&output, self.clock.wall_clock());
            let captured = FirstOutputLines { run: RunId(key.run), attempt_no: key.attempt, lines };
            let (short_output, long_output) =
                match exit.is_ok() && captured.fits_one_chunk(self.max_log_bytes) {
                    true => (Some(captured), Vec::new()),
                    false => (None, captured.lines),
                };
            let end = match exit {
                Ok(exit) => {
                    let result_file = results.next().unwrap_or_default();
                    ExecutionEnd::Exited { exit, result_file, output: short_output }
                }
                Err(why) => ExecutionEnd::NotStarted(why),
            };
            let completion = Completion { key, token, end };
            match long_output.is_empty() {
                true => completions.push(completion),
                false => drop(tokio::spawn(
                    Arc::clone(&self).complete_after_log(long_output, completion),
                )),
            }
        }
        self.completions.push_all(completions);
    }

    /// Stores the long output of a command in its log, and then queues its completion.
    async fn complete_after_log(self: Arc<Self>, lines: Vec<LogLine>, completion: Completion) {
        let log = self.attempt_log(completion.key);
        lines.into_iter().for_each(|line| log.push_line(line.stream, line.text));
        log.wake_writer();
        log.finish(std::future::ready(())).await;
        self.completions.push(completion);
    }

    fn attempt_log(&self, key: AttemptKey) -> Arc<AttemptLog> {
        AttemptLog::new(self.log_batcher.clone(), Arc::clone(&self.clock), key, self.max_log_bytes)
    }
}

/// The output of a command as log lines.
pub(in crate::node) fn output_lines(output: &ProcessOutput, at: Timestamp) -> Vec<LogLine> {
    let mut all = Vec::new();
    for (stream, text) in
        [(OutputStream::Stdout, &output.stdout), (OutputStream::Stderr, &output.stderr)]
    {
        let mut lines = LineSplitter::default();
        let mut line = |text| all.push(LogLine { stream, at, text });
        lines.push(text.as_bytes(), &mut line);
        lines.finish().into_iter().for_each(line);
    }
    all
}
