//! Executor of commands: each attempt is a process of the spawner. Short output of a short command arrives together
//! with its exit; other output is read from pipes while the command runs. The spawner keeps the exit of an attempt
//! until the worker acknowledges it (`forget`).

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tasuki_core::LeaseToken;
use tasuki_core::exit::AttemptStopReason;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::attempt_input_and_result::{
    Attempt, Completion, CompletionQueue, ExecutionEnd, Executor, LastSignOfLife,
};
use super::build_launch_spec::{self, AttemptPaths, token_to_hex};
use super::complete_ended_commands::{CommandCompleter, EndedCommand};
use super::log_creation_batcher::LogCreationBatcher;
use super::work_dirs::WorkDirs;
use crate::node::clock_and_random::Clock;
use crate::node::config::Config;
use crate::spawner::{
    AttemptKey, LaunchRefusal, LaunchSpec, SpawnerEvent, SpawnerHandle, SpawnerRequest,
};

/// Runs commands through the spawner of this node.
pub(crate) struct CommandExecutor {
    spawner: Mutex<Option<SpawnerHandle>>,
    config: Config,
    data_dir_id: String,
    /// Directory for exit records.
    exit_records: PathBuf,
    work_dirs: Mutex<WorkDirs>,
    completions: CompletionQueue,
    table: Arc<Mutex<CommandTable>>,
}

/// The commands that were sent to the spawner.
#[derive(Default)]
struct CommandTable {
    /// Commands whose start was sent and whose end has not been reported.
    launched: HashMap<AttemptKey, LaunchedCommand>,
    /// Stops that arrived before the start of their attempt was sent.
    early_stops: HashMap<AttemptKey, (AttemptStopReason, Duration)>,
}

struct LaunchedCommand {
    token: LeaseToken,
    liveness: LastSignOfLife,
    result: PathBuf,
    /// Passes the end to the task that reads the output pipes, if there is one.
    exit_sender: Option<oneshot::Sender<EndedCommand>>,
}

impl CommandTable {
    /// Applies events of the spawner. Returns the ended commands whose output is not read by a task.
    fn apply_events(
        &mut self,
        events: Vec<SpawnerEvent>,
        completion: &Arc<CommandCompleter>,
        runtime: &Handle,
    ) -> Vec<EndedCommand> {
        let mut ended_commands = Vec::new();
        for event in events {
            let (key, exit, output) = match event {
                SpawnerEvent::Ready => continue,
                SpawnerEvent::Started { key, pid } => {
                    tracing::debug!(run_id = key.run, attempt = key.attempt, pid, "launched");
                    continue;
                }
                SpawnerEvent::OutputPipes { key, pipes } => {
                    if let Some(launched) = self.launched.get_mut(&key) {
                        let (exit_sender, exit) = oneshot::channel();
                        launched.exit_sender = Some(exit_sender);
                        let read = Arc::clone(completion).complete_after_output(
                            key,
                            launched.liveness.clone(),
                            pipes,
                            exit,
                        );
                        runtime.spawn(read);
                    }
                    continue;
                }
                SpawnerEvent::Ended { key, exit, output } => (key, Ok(exit), output),
                SpawnerEvent::Refused { key, why } => (key, Err(why), None),
            };
            let Some(LaunchedCommand { token, liveness, result, exit_sender }) =
                self.launched.remove(&key)
            else {
                continue;
            };
            liveness.mark_ended();
            let output = output.unwrap_or_default();
            let ended = EndedCommand { key, token, exit, output, result_path: result };
            match exit_sender {
                Some(exit_sender) => drop(exit_sender.send(ended)),
                None => ended_commands.push(ended),
            }
        }
        ended_commands
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CommandExecutor {
    /// Starts the spawner and waits until it has killed what an earlier spawner left behind. `gone` is called when the
    /// spawner has ended.
    pub(crate) async fn start_spawner(
        spawner: Command,
        config: Config,
        worker_dir: WorkerDir,
        log_batcher: LogCreationBatcher,
        clock: Arc<dyn Clock>,
        completions: CompletionQueue,
        gone: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let table: Arc<Mutex<CommandTable>> = Arc::default();
        let (ready, is_ready) = oneshot::channel();
        let (mut ready, event_table, runtime) =
            (Some(ready), Arc::clone(&table), Handle::current());
        let completion = Arc::new(CommandCompleter::new(
            log_batcher,
            clock,
            config.max_log_bytes,
            completions.clone(),
        ));
        let (ended_sender, ended_receiver) = mpsc::unbounded_channel();
        let wakes = completions.clone();
        runtime.spawn(Arc::clone(&completion).complete_in_batches(ended_receiver));
        let spawner = SpawnerHandle::start(spawner, move |events| match events {
            Some(events) => {
                if events.iter().any(|event| matches!(event, SpawnerEvent::Ready)) {
                    let _ = ready.take().map(|ready| ready.send(()));
                }
                let ended_commands = lock(&event_table).apply_events(events, &completion, &runtime);
                if !ended_commands.is_empty() {
                    let _ = ended_sender.send(ended_commands);
                    // The ended commands free their slots now, before their completions are in the queue.
                    wakes.wake_worker();
                }
            }
            None => gone(),
        })?;
        // After the spawner was started, which must inherit the old limit for its commands.
        crate::spawner::raise_open_files();
        is_ready.await.map_err(|_| io::Error::other("the spawner ended before it was ready"))?;
        let WorkerDir { data_dir, data_dir_id, exit_records } = worker_dir;
        let spawner = Mutex::new(Some(spawner));
        let worker = exit_records.file_name().unwrap_or_default().to_string_lossy();
        let work_dirs = Mutex::new(WorkDirs::new(&data_dir, &worker));
        Ok(Self { spawner, config, data_dir_id, exit_records, work_dirs, completions, table })
    }

    fn send(&self, request: &SpawnerRequest) -> io::Result<()> {
        self.send_all(std::slice::from_ref(request))
    }

    fn send_all(&self, requests: &[SpawnerRequest]) -> io::Result<()> {
        match &*lock(&self.spawner) {
            Some(spawner) => spawner.send_all(requests),
            None => Err(io::Error::other("the spawner has ended")),
        }
    }

    fn send_stop(&self, key: AttemptKey, why: AttemptStopReason, grace: Duration) {
        let request = SpawnerRequest::Stop { key, why, grace: grace.as_micros() as u64 };
        if let Err(error) = self.send(&request) {
            tracing::warn!(%error, "the spawner cannot be reached");
        }
    }

    /// Ends the spawner and kills every command that it still runs.
    pub(crate) fn shut_down(&self) {
        drop(lock(&self.spawner).take());
    }

    /// Builds the start request of an attempt and the path of its result file. The error is the end of an attempt that
    /// cannot be started.
    fn prepare(&self, attempt: &Attempt) -> Result<(LaunchSpec, PathBuf), Box<ExecutionEnd>> {
        let key = attempt.key();
        let work_dir = lock(&self.work_dirs).take(key);
        let work_dir = work_dir.map_err(|error| temporary_failure("work directory", &error))?;
        let exit_record = self.exit_records.join(format!("{}-{}.json", key.run, key.attempt));
        let paths = AttemptPaths { result: work_dir.join("result.json"), exit_record };
        let inherited = |name: &str| std::env::var(name).ok();
        let launch = build_launch_spec::launch_spec(
            attempt,
            &self.config,
            &self.data_dir_id,
            &paths,
            inherited,
        )
        .map_err(|error| Box::new(ExecutionEnd::InvalidArguments(error)))?;
        Ok((launch, paths.result))
    }

    /// Sends the starts of several attempts together.
    fn send_starts(&self, requests: &[SpawnerRequest], attempts: Vec<(Attempt, PathBuf)>) {
        let mut table = lock(&self.table);
        match (self.send_all(requests), &attempts[..]) {
            (Ok(()), _) => {}
            (Err(error), [(attempt, _)]) => {
                return self
                    .completions
                    .push(completion(attempt, *temporary_failure("the spawner", &error)));
            }
            // One request cannot be sent (it is too long) and blocks the others: send each one separately.
            (Err(_), _) => {
                drop(table);
                for (request, attempt) in requests.iter().zip(attempts) {
                    self.send_starts(std::slice::from_ref(request), vec![attempt]);
                }
                return;
            }
        }
        for (attempt, result) in attempts {
            let (key, token, liveness) = (attempt.key(), attempt.token, attempt.liveness.clone());
            table
                .launched
                .insert(key, LaunchedCommand { token, liveness, result, exit_sender: None });
            // A stop arrived before the start.
            if let Some((why, grace)) = table.early_stops.remove(&key) {
                self.send_stop(key, why, grace);
            }
        }
    }
}

/// The end of an attempt that could not be started on this worker now; a retry may succeed.
fn temporary_failure(what: &str, error: &io::Error) -> Box<ExecutionEnd> {
    Box::new(ExecutionEnd::NotStarted(LaunchRefusal::TemporaryFailure(format!("{what}: {error}"))))
}

fn completion(attempt: &Attempt, end: ExecutionEnd) -> Completion {
    Completion { key: attempt.key(), token: attempt.token, end }
}

/// Directories of a worker and the id of its data directory.
#[derive(Debug, Clone)]
pub(crate) struct WorkerDir {
    /// The data directory.
    pub(crate) data_dir: PathBuf,
    /// Id of the data directory. All processes of its commands have it in their environment.
    pub(crate) data_dir_id: String,
    /// Directory for the exit records of this worker id.
    pub(crate) exit_records: PathBuf,
}

impl Executor for CommandExecutor {
    fn set_lease_deadline(&self, token: LeaseToken, until: u64) {
        let sent = self.send(&SpawnerRequest::Lease { token: token_to_hex(token), until });
        if let Err(error) = sent {
            tracing::warn!(%error, "the spawner cannot be reached");
        }
    }

    fn launch(&self, attempt: Attempt) {
        self.launch_all(vec![attempt]);
    }

    fn launch_all(&self, attempts: Vec<Attempt>) {
        let mut requests = Vec::with_capacity(attempts.len());
        let mut launched = Vec::with_capacity(attempts.len());
        for attempt in attempts {
            match self.prepare(&attempt) {
                Ok((launch, result)) => {
                    requests.push(SpawnerRequest::Start(launch));
                    launched.push((attempt, result));
                }
                Err(end) => self.completions.push(completion(&attempt, *end)),
            }
        }
        if !requests.is_empty() {
            self.send_starts(&requests, launched);
        }
    }

    fn stop(&self, key: AttemptKey, why: AttemptStopReason, grace: Duration) {
        let mut table = lock(&self.table);
        match table.launched.contains_key(&key) {
            true => self.send_stop(key, why, grace),
            false => drop(table.early_stops.insert(key, (why, grace))),
        }
    }

    fn forget(&self, key: AttemptKey) {
        self.forget_all(&[key]);
    }

    fn forget_all(&self, keys: &[AttemptKey]) {
        let mut table = lock(&self.table);
        for key in keys {
            table.early_stops.remove(key);
        }
        drop(table);
        // The results are in the database, so the exit records are no longer needed.
        let forget = |key: &AttemptKey| SpawnerRequest::Forget { key: *key };
        let _ = self.send_all(&keys.iter().map(forget).collect::<Vec<_>>());
        let mut work_dirs = lock(&self.work_dirs);
        keys.iter().for_each(|key| work_dirs.give_back(*key));
    }
}
