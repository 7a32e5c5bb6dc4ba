//! The process of a node and its API from start to orderly stop: the common part of `tasuki up` and `tasuki node`.

use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tasuki::node::{Config, DataDirError, DataDirLock, Node, NodeError};
use tasuki::operator::{AccessRole, Actor, generate_token};
use tasuki::{Operator, Wakeups};
use tasuki_core::NodeName;
use tasuki_store::{Error, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::database_access::DatabaseOptions;
use crate::demo_jobs;
use crate::failure::Failure;
use crate::node_rpc_and_coordinator::ClusterOptions;
use crate::release_unused_program_pages::ProgramMemoryTrimmer;

/// Maximum number of connections of a node to its database server.
const MAX_CONNECTIONS: u32 = 8;

/// The configuration of a node process.
pub(crate) struct NodeProcess {
    /// The data directory.
    pub(crate) data: PathBuf,
    /// Listen address of the API.
    pub(crate) listen: SocketAddr,
    pub(crate) database_url: String,
    pub(crate) config: Config,
    /// Whether to create sample jobs.
    pub(crate) demo: bool,
    /// Cluster configuration; `None` for `tasuki up`, which has no other nodes.
    pub(crate) cluster: Option<ClusterOptions>,
}

impl NodeProcess {
    /// Runs until a stop signal arrives or the node fails. Calls `print_greeting` once the node is ready, with the URL of
    /// the API and the address that other nodes call.
    pub(crate) fn run(
        self,
        print_greeting: impl FnOnce(&str, Option<&str>),
    ) -> Result<String, Failure> {
        init_logging();
        let mappings = ProgramMemoryTrimmer::read();
        let runtime = DatabaseOptions::with_url(self.database_url.clone()).build_runtime()?;
        let ended = runtime.block_on(self.serve(mappings, print_greeting));
        // Blocking tasks that still read from a file or pipe are abandoned.
        runtime.shutdown_timeout(Duration::from_millis(100));
        ended
    }

    async fn serve(
        mut self,
        mappings: ProgramMemoryTrimmer,
        print_greeting: impl FnOnce(&str, Option<&str>),
    ) -> Result<String, Failure> {
        // The files created here contain tokens and job arguments, so only their owner may read them.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let mut signals = StopSignals::new()?;
        let home = DataDirLock::acquire(&self.data).map_err(|error| data_dir_failure(&error))?;
        let listener = TcpListener::bind(self.listen).await.map_err(|error| {
            Failure::new(format!("cannot serve on {}: {error}", self.listen)).hint(
                "the port may be in use or not permitted; --listen 127.0.0.1:0 selects a free port",
            )
        })?;
        let bound = listener.local_addr().map_err(|error| Failure::new(error.to_string()))?;
        let url = format!("http://{}", loopback_if_unspecified(bound));
        if !bound.ip().to_canonical().is_loopback() {
            print_stderr(&exposure_warning(bound));
        }
        let member = match self.cluster.take() {
            Some(cluster) => Some(cluster.bind(&mut self.config).await?),
            None => None,
        };
        let database = DatabaseOptions::with_url(self.database_url.clone());
        let store = database.open_or_create(MAX_CONNECTIONS).await?;
        store.migrate().await.map_err(|error| database.operation_failure(&error))?;
        let wake = Wakeups::default();
        let operator = Operator::new(store.clone(), wake.clone());
        let token = self.ensure_token(&operator).await?;
        if self.demo {
            demo_jobs::create_demo_jobs(&operator)
                .await
                .map_err(|error| Failure::new(error.to_string()))?;
        }
        let spawner = spawner_command(&home)?;
        let mut node = Node::builder(self.config.clone(), store.clone()).wakeups(wake);
        if let Some(member) = &member {
            node = member.configure(node);
        }
        let starting = node.commands(home, spawner).start();
        let started = tokio::select! {
            started = with_slow_start_notice(starting) => started,
            () = signals.recv() => {
                return Err(Failure::new("stopped by a signal during start-up"));
            }
        };
        let node = started.map_err(|error| match error {
            NodeError::DataDir(error) => data_dir_failure(&error),
            NodeError::Store(error) => database.operation_failure(&error),
            error @ (NodeError::Spawner(_) | NodeError::DeclareJob(_) | NodeError::Queue(_)) => {
                Failure::new(error.to_string())
            }
        })?;
        let rpc_server = match member {
            Some(member) => Some(member.serve(node.rpc_service()).await?),
            None => None,
        };
        // The other tasuki commands find this node through this file.
        self.write_data_file("api.json", &format!("{}\n", json!({ "url": url, "token": token })))?;
        print_greeting(&url, self.config.address.as_deref());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving =
            tokio::spawn(tasuki_web::serve(listener, tasuki_web::router(operator), async {
                let _ = stopped.await;
            }));
        let end_reason = tokio::select! {
            () = signals.recv() => None,
            end_reason = node.wait_until_ended() => Some(end_reason),
            never = mappings.trim_periodically() => match never {},
        };
        if let Some(end_reason) = end_reason {
            return Err(Failure::new(format!("the node stopped: {end_reason}"))
                .hint("start it again; interrupted runs are recovered"));
        }
        print_stderr(
            "stopping: waiting for runs to end; send the signal again to stop immediately",
        );
        let orderly_stop = async {
            node.stop().await;
            if let Some(rpc_server) = rpc_server {
                rpc_server.stop().await;
            }
            let _ = stop.send(());
            let _ = serving.await;
            store.close().await;
        };
        tokio::select! {
            () = orderly_stop => {}
            () = signals.recv() => {
                return Err(Failure::new("stopped immediately by a second signal")
                    .hint("interrupted runs are recovered at the next start"));
            }
        }
        let _ = fs::remove_file(self.data.join("api.json"));
        Ok(String::new())
    }

    /// Returns the token that commands on this machine use: the stored one if it is still valid, else a new one. A new
    /// token is written to its file before it is registered, so that a crash in between leaves no valid token that
    /// exists nowhere but in the database.
    async fn ensure_token(&self, operator: &Operator) -> Result<String, Failure> {
        let failed = |error: tasuki::operator::Error| Failure::new(error.to_string());
        let stored = fs::read_to_string(self.data.join("token")).unwrap_or_default();
        let stored = stored.trim();
        if !stored.is_empty()
            && operator.authenticate_token_secret(stored).await.map_err(failed)?.is_some()
        {
            return Ok(stored.to_owned());
        }
        let secret = generate_token().map_err(failed)?;
        self.write_data_file("token", &secret)?;
        // The name shows in the token list which process the token belongs to.
        let name = match &self.config.address {
            None => "tasuki up".to_owned(),
            Some(_) => format!("tasuki node {}", self.config.node),
        };
        let actor = Actor { name: name.clone(), address: None, role: AccessRole::Admin };
        let accepted = operator
            .create_token_with_secret(&actor, &name, AccessRole::Admin, None, &secret)
            .await;
        accepted.map_err(failed)?;
        Ok(secret)
    }

    /// Writes a file in the data directory that only its owner can read.
    fn write_data_file(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.data.join(name);
        write_private(&path, text)
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))
    }
}

fn data_dir_failure(error: &DataDirError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        DataDirError::InUse(_) => {
            failure.hint("stop it first, or use another directory: --data DIR")
        }
        DataDirError::Unusable { .. } => {
            failure.hint("the data directory must be writable; choose another with --data DIR")
        }
    }
}

/// Prints a line on stderr. Errors are ignored: a node goes on when nothing reads its stderr any more.
pub(crate) fn print_stderr(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Replaces a wildcard address by loopback: the address at which this machine reaches a listener on `bound`.
fn loopback_if_unspecified(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

fn exposure_warning(bound: SocketAddr) -> String {
    format!(
        "warning: the API on {bound} can be reached from other machines without encryption: tokens and job
  arguments can be read on the network. Use --listen 127.0.0.1:{} to restrict it to this machine, and a
  proxy with TLS in front of it to allow access from other machines",
        bound.port()
    )
}

/// Awaits the start of the node, and prints a notice if that takes more than 2 s.
async fn with_slow_start_notice<T>(starting: impl Future<Output = T>) -> T {
    let mut starting = std::pin::pin!(starting);
    let long = tokio::time::sleep(Duration::from_secs(2));
    tokio::select! {
        started = &mut starting => return started,
        () = long => print_stderr("waiting until the processes of the previous start have ended"),
    }
    starting.await
}

/// Sets up logging on stderr. The default level is `warn`; `TASUKI_LOG` sets another (`info`, `tasuki=debug`).
fn init_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TASUKI_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A log line that cannot be written is lost. Reporting that on stderr would panic if stderr is closed.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .try_init();
}

/// The command that starts the spawner process: this program with the hidden subcommand `spawner`.
pub(crate) fn spawner_command(home: &DataDirLock) -> Result<Command, Failure> {
    let mappings = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find the path of this program: {error}")))?;
    let mut command = Command::new(mappings);
    command.arg("spawner").arg("--lock").arg(home.spawner_lock_path()).arg("--home").arg(home.id());
    Ok(command)
}

pub(crate) fn host_name() -> NodeName {
    let read = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    read.trim().parse().unwrap_or_else(|_| "localhost".parse().expect("a name"))
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let temporary = path.with_extension("part");
    let _ = fs::remove_file(&temporary);
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)
}

/// The signals that stop the process: SIGINT (Ctrl-C) and SIGTERM (service manager).
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::new(error.to_string()));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Run commands for the worker that started this process (internal)
#[derive(Args)]
pub(crate) struct SpawnerCommand {
    #[arg(long)]
    lock: PathBuf,
    #[arg(long)]
    home: String,
}

impl SpawnerCommand {
    pub(crate) fn run(self) -> Result<String, Failure> {
        use std::os::fd::AsFd as _;
        let spawner_failure =
            |error: std::io::Error| Failure::new(format!("the spawner failed: {error}"));
        let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(spawner_failure)?;
        let socket = std::os::unix::net::UnixStream::from(socket);
        tasuki::spawner::run_spawner_of_data_dir(&socket, &self.lock, &self.home)
            .map_err(spawner_failure)?;
        Ok(String::new())
    }
}

impl DatabaseOptions {
    /// Opens the database for a node and creates a missing SQLite file. An unreachable database fails immediately.
    async fn open_or_create(&self, connections: u32) -> Result<Store, Failure> {
        match Store::probe(self.url()).await {
            Err(Error::FileNotFound { .. }) => {}
            answer => answer.map_err(|error| self.open_failure(&error))?,
        }
        Store::open(self.url(), connections).await.map_err(|error| self.open_failure(&error))
    }
}
