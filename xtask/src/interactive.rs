//! `cargo xtask cluster`: a test cluster with an interactive prompt for faults.

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use cluster_kit::{Cluster, ClusterConfig, LinkState, NetworkEndpoint};
use nix::sys::signal::Signal;

const HELP: &str = "  status                 list the nodes and the leader
  load                   create jobs that fire every second
  kill N | term N        send SIGKILL or SIGTERM to node N
  freeze N | thaw N      send SIGSTOP or SIGCONT to node N
  start N                start node N again
  cut X Y                block all data between X and Y; each is a node, or db, or redis
  hold X Y               block data from X to Y; the other direction stays open
  slow X Y MS            delay data between X and Y by MS milliseconds
  heal                   open all connections again, without delay
  db stop|kill|start     stop, kill or start the database server
  redis restart|flush    restart Redis without data, or delete all its data
  help | quit            show this help, or stop the cluster";

pub(crate) fn run_prompt(config: ClusterConfig) -> ExitCode {
    eprintln!("starting servers and {} nodes", config.nodes);
    let mut cluster = Cluster::start(config);
    status(&cluster);
    println!("\nuse the nodes from another terminal, for example:");
    println!(
        "  {} worker list --data {}",
        cluster.config().binary.display(),
        data_folder(&cluster, "a")
    );
    println!("\ncommands:\n{HELP}");
    prompt();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        for (name, how) in cluster.take_ended_nodes() {
            println!("{name} has ended: {how}");
        }
        let arguments: Vec<&str> = line.split_whitespace().collect();
        if matches!(arguments[..], ["quit" | "exit"]) {
            break;
        }
        if let Err(why) = run_command(&mut cluster, &arguments) {
            println!("{why}");
        }
        prompt();
    }
    println!();
    ExitCode::SUCCESS
}

fn prompt() {
    print!("> ");
    let _ = std::io::stdout().flush();
}

fn data_folder(cluster: &Cluster, name: &str) -> String {
    cluster.folder().join(name).display().to_string()
}

fn status(cluster: &Cluster) {
    let leader = cluster.leader();
    for (node, name) in cluster.node_names().enumerate() {
        let process = cluster.process_id(node).map_or("-".to_owned(), |id| id.to_string());
        let role = match leader {
            Some((leads, epoch)) if leads == node => format!("leader, epoch {epoch}"),
            _ if cluster.active_worker(node).is_some() => "worker".to_owned(),
            _ => "not active".to_owned(),
        };
        let api = std::fs::read_to_string(cluster.folder().join(&name).join("api.json"));
        let api = api.unwrap_or_default();
        let url = api.split('"').find(|part| part.starts_with("http")).unwrap_or("-");
        println!("  {name}  process {process:<8} {url:<28} {role}");
    }
}

/// Runs one command of the prompt. `Err` contains the message for the user.
fn run_command(cluster: &mut Cluster, arguments: &[&str]) -> Result<(), String> {
    match *arguments {
        [] => {}
        ["help"] => println!("{HELP}"),
        ["status"] => status(cluster),
        ["load"] => {
            if cluster.has_load() {
                return Err("the load is already running".to_owned());
            }
            cluster
                .leader()
                .ok_or("there is no leader to config the jobs; wait for one or start a node")?;
            cluster.start_load();
        }
        ["heal"] => cluster.network.heal(),
        ["cut", one, other] => {
            let (one, other) = parse_endpoints(cluster, one, other)?;
            cluster.network.cut(one, other);
        }
        ["hold", from, to] => {
            let (from, to) = parse_endpoints(cluster, from, to)?;
            cluster.network.set_link(from, to, LinkState::Blocked);
        }
        ["slow", one, other, delay_ms] => {
            let (one, other) = parse_endpoints(cluster, one, other)?;
            let delay_ms = delay_ms.parse().map_err(|_| format!("{delay_ms} is not a number"))?;
            let state = LinkState::Delayed(Duration::from_millis(delay_ms));
            cluster.network.set_link(one, other, state);
            cluster.network.set_link(other, one, state);
        }
        ["db", what] => match (what, cluster.is_database_running()) {
            ("stop", true) => cluster.stop_database(),
            ("kill", true) => cluster.kill_database(),
            ("start", false) => cluster.start_database(),
            ("stop" | "kill", false) => return Err("the database is not running".to_owned()),
            ("start", true) => return Err("the database is already running".to_owned()),
            _ => return Err(unknown_command()),
        },
        ["redis", what] => match (what, cluster.is_redis_running()) {
            ("restart", true) => cluster.restart_redis(),
            ("flush", true) => cluster.flush_redis(),
            ("restart" | "flush", false) => return Err("Redis is not running".to_owned()),
            _ => return Err(unknown_command()),
        },
        [what @ ("kill" | "term" | "freeze" | "thaw" | "start"), name] => {
            let node = node(cluster, name)?;
            match (what, cluster.is_up(node)) {
                ("start", false) => cluster.start_node(node),
                ("start", true) => return Err(format!("node {name} is already running")),
                (_, false) => return Err(format!("node {name} is not running")),
                ("kill", true) => cluster.kill_node(node),
                // The end may take time, or wait for SIGCONT; the prompt reports it when the node has ended.
                ("term", true) => cluster.terminate_node(node),
                ("freeze", true) => cluster.signal_node(node, Signal::SIGSTOP),
                (_, true) => cluster.signal_node(node, Signal::SIGCONT),
            }
        }
        _ => return Err(unknown_command()),
    }
    Ok(())
}

fn unknown_command() -> String {
    format!("unknown_command command; the commands are:\n{HELP}")
}

fn node(cluster: &Cluster, name: &str) -> Result<usize, String> {
    let found = cluster.node_names().position(|known| known == name);
    found.ok_or_else(|| format!("there is no node {name}"))
}

/// Parses two endpoints. They must have a link between them.
fn parse_endpoints(
    cluster: &Cluster,
    one: &str,
    other: &str,
) -> Result<(NetworkEndpoint, NetworkEndpoint), String> {
    let endpoint = |name: &str| match name {
        "db" => Ok(NetworkEndpoint::Database),
        "redis" => Ok(NetworkEndpoint::Redis),
        name => node(cluster, name).map(NetworkEndpoint::Node),
    };
    let (from, to) = (endpoint(one)?, endpoint(other)?);
    let joined = cluster.network.has_link(from, to).then_some((from, to));
    joined.ok_or_else(|| format!("there is no link between {one} and {other}"))
}
