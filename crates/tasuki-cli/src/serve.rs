//! A node and its API, from the start to an orderly end: what `tasuki up` and `tasuki node` have in common.

use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tasuki::node::{Config, HomeError, HomeLock, Node, NodeError};
use tasuki::operator::{Actor, Role, new_secret};
use tasuki::{Operator, Wake};
use tasuki_core::NodeName;
use tasuki_store::{Error, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cluster::Cluster;
use crate::database::Database;
use crate::demo;
use crate::memory::Program;
use crate::output::Failure;

/// How many connections a node has to a database server.
const CONNECTIONS: u32 = 8;

/// A node to be.
pub(crate) struct Service {
    /// Where everything is kept.
    pub(crate) data: PathBuf,
    /// Where the API is served.
    pub(crate) listen: SocketAddr,
    pub(crate) database_url: String,
    pub(crate) config: Config,
    /// Whether to add a handful of sample jobs.
    pub(crate) demo: bool,
    /// The cluster it belongs to, if it does.
    pub(crate) cluster: Option<Cluster>,
}

impl Service {
    /// Runs until somebody stops it, or it cannot go on. `greet` is told where the API is, and where other nodes
    /// call, once it is there.
    pub(crate) fn run(self, greet: impl FnOnce(&str, Option<&str>)) -> Result<String, Failure> {
        tell_what_happens();
        let program = Program::started();
        let runtime = Database::at(self.database_url.clone()).runtime()?;
        let ended = runtime.block_on(self.serve(program, greet));
        // Tasks that still read from somewhere are not waited for.
        runtime.shutdown_timeout(Duration::from_millis(100));
        ended
    }

    async fn serve(
        mut self,
        program: Program,
        greet: impl FnOnce(&str, Option<&str>),
    ) -> Result<String, Failure> {
        // What is made here holds tokens and what jobs are given: it is for its owner alone.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let mut signals = Signals::new()?;
        let home = HomeLock::take(&self.data).map_err(|error| homeless(&error))?;
        let listener = TcpListener::bind(self.listen).await.map_err(|error| {
            Failure::refused(format!("cannot serve on {}: {error}", self.listen))
                .hint("another program uses the port, or it is not ours to use; --listen 127.0.0.1:0 takes a free one")
        })?;
        let bound = listener.local_addr().map_err(|error| Failure::refused(error.to_string()))?;
        let url = format!("http://{}", as_seen_from_here(bound));
        if !bound.ip().to_canonical().is_loopback() {
            tell(&exposed(bound));
        }
        let member = match self.cluster.take() {
            Some(cluster) => Some(cluster.join(&mut self.config).await?),
            None => None,
        };
        let database = Database::at(self.database_url.clone());
        let store = database.open_for_serving(CONNECTIONS).await?;
        store.migrate().await.map_err(|error| database.failed(&error))?;
        let wake = Wake::default();
        let operator = Operator::new(store.clone(), wake.clone());
        let token = self.token(&operator).await?;
        if self.demo {
            demo::add(&operator).await.map_err(|error| Failure::refused(error.to_string()))?;
        }
        let spawner = spawner(&home)?;
        let mut node = Node::builder(self.config.clone(), store.clone()).wake(wake);
        if let Some(member) = &member {
            node = member.introduce(node);
        }
        let starting = node.commands(home, spawner).start();
        let started = tokio::select! {
            started = told_if_long(starting) => started,
            () = signals.next() => {
                return Err(Failure::refused("stopped before it had started"));
            }
        };
        let node = started.map_err(|error| match error {
            NodeError::Home(error) => homeless(&error),
            NodeError::Store(error) => database.failed(&error),
            error @ (NodeError::Spawner(_) | NodeError::Declared(_) | NodeError::Queue(_)) => {
                Failure::refused(error.to_string())
            }
        })?;
        let calls = match member {
            Some(member) => Some(member.answer(node.called()).await?),
            None => None,
        };
        // Where the command line finds this node.
        self.keep("api.json", &format!("{}\n", json!({ "url": url, "token": token })))?;
        greet(&url, self.config.address.as_deref());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving =
            tokio::spawn(tasuki_web::serve(listener, tasuki_web::router(operator), async {
                let _ = stopped.await;
            }));
        let why = tokio::select! {
            () = signals.next() => None,
            why = node.ended() => Some(why),
            never = program.give_back_now_and_then() => match never {},
        };
        if let Some(why) = why {
            return Err(Failure::refused(format!("cannot go on: {why}"))
                .hint("start it again: what was running is recovered"));
        }
        tell("stopping: what runs may finish; once more stops at once");
        let orderly = async {
            node.stop().await;
            if let Some(calls) = calls {
                calls.stop().await;
            }
            let _ = stop.send(());
            let _ = serving.await;
            store.close().await;
        };
        tokio::select! {
            () = orderly => {}
            () = signals.next() => {
                return Err(Failure::refused("stopped at once")
                    .hint("what was running is recovered at the next start"));
            }
        }
        let _ = fs::remove_file(self.data.join("api.json"));
        Ok(String::new())
    }

    /// The token that the command line uses here: the one from before if it is still good. A new one is
    /// in its file before it counts: whatever happens in between, no token is left that nobody has.
    async fn token(&self, operator: &Operator) -> Result<String, Failure> {
        let failed = |error: tasuki::operator::Error| Failure::refused(error.to_string());
        let kept = fs::read_to_string(self.data.join("token")).unwrap_or_default();
        let kept = kept.trim();
        if !kept.is_empty() && operator.bearer(kept).await.map_err(failed)?.is_some() {
            return Ok(kept.to_owned());
        }
        let secret = new_secret().map_err(failed)?;
        self.keep("token", &secret)?;
        // Who lists tokens sees whose it is.
        let name = match &self.config.address {
            None => "tasuki up".to_owned(),
            Some(_) => format!("tasuki node {}", self.config.node),
        };
        let by = Actor { name: name.clone(), address: None, role: Role::Admin };
        let accepted = operator.accept_token(&by, &name, Role::Admin, None, &secret).await;
        accepted.map_err(failed)?;
        Ok(secret)
    }

    /// Keeps something in the data directory, for nobody else's eyes.
    fn keep(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.data.join(name);
        write_private(&path, text)
            .map_err(|error| Failure::refused(format!("{}: {error}", path.display())))
    }
}

fn homeless(error: &HomeError) -> Failure {
    let failure = Failure::refused(error.to_string());
    match error {
        HomeError::Taken(_) => failure.hint("stop it first, or use another directory: --data DIR"),
        HomeError::Unusable { .. } => {
            failure.hint("the data directory must be writable; choose another with --data DIR")
        }
    }
}

/// Says something to whoever reads it. Nobody may any more, and that is no reason to end.
pub(crate) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Where this machine itself finds what listens there.
fn as_seen_from_here(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

fn exposed(bound: SocketAddr) -> String {
    format!(
        "warning: the API on {bound} can be reached from other machines, and nothing on the way is encrypted:
  whoever listens there reads tokens and what jobs are given. --listen 127.0.0.1:{} keeps it to this
  machine; a proxy with TLS in front of that opens it to others",
        bound.port()
    )
}

/// A start that takes its time says what it waits for.
async fn told_if_long<T>(starting: impl Future<Output = T>) -> T {
    let mut starting = std::pin::pin!(starting);
    let long = tokio::time::sleep(Duration::from_secs(2));
    tokio::select! {
        started = &mut starting => return started,
        () = long => tell("waiting for the processes of the node before to end"),
    }
    starting.await
}

/// What happens is told on stderr: warnings, unless TASUKI_LOG asks for more (`info`, `tasuki=debug`).
fn tell_what_happens() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TASUKI_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // What cannot be told is lost: to complain about that would end whoever tried to tell it.
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .try_init();
}

/// The process that runs commands: this program again.
pub(crate) fn spawner(home: &HomeLock) -> Result<Command, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::refused(format!("cannot find this program itself: {error}")))?;
    let mut command = Command::new(program);
    command.arg("spawner").arg("--lock").arg(home.spawner_lock()).arg("--home").arg(home.id());
    Ok(command)
}

pub(crate) fn host_name() -> NodeName {
    let read = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    read.trim().parse().unwrap_or_else(|_| "localhost".parse().expect("a name"))
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let fresh = path.with_extension("part");
    let _ = fs::remove_file(&fresh);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(fresh, path)
}

/// Ctrl-C, or whoever stops services.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::refused(error.to_string()));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Runs commands for the worker that started it (for tasuki itself)
#[derive(Args)]
pub(crate) struct Spawner {
    #[arg(long)]
    lock: PathBuf,
    #[arg(long)]
    home: String,
}

impl Spawner {
    pub(crate) fn run(self) -> Result<String, Failure> {
        use std::os::fd::AsFd as _;
        let unable = |error: std::io::Error| Failure::refused(format!("spawner: {error}"));
        let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(unable)?;
        let socket = std::os::unix::net::UnixStream::from(socket);
        tasuki::spawner::serve(&socket, &self.lock, &self.home).map_err(unable)?;
        Ok(String::new())
    }
}

impl Database {
    /// Opens it for a process that serves. What is wrong is told at once.
    async fn open_for_serving(&self, connections: u32) -> Result<Store, Failure> {
        match Store::reach(self.url()).await {
            Err(Error::NoFile { .. }) => {}
            answer => answer.map_err(|error| self.unopened(&error))?,
        }
        Store::open(self.url(), connections).await.map_err(|error| self.unopened(&error))
    }
}
