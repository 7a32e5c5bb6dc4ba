//! A cluster to play with.

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use cluster_kit::{Cluster, Flow, Party, Plan};
use nix::sys::signal::Signal;

const HELP: &str = "  status                 who is there, and who leads
  load                   jobs that fire every second
  kill N | term N        SIGKILL or SIGTERM a node
  freeze N | thaw N      SIGSTOP or SIGCONT a node
  start N                start a node again
  cut X Y                nothing goes between two; X and Y are nodes, or db, or redis
  hold X Y               nothing goes from X to Y; the other way is open
  slow X Y MS            what goes between two comes so much later
  heal                   every wire is as it was
  db stop|kill|start     the database server
  redis restart|flush    Redis forgets everything
  help | quit";

pub(crate) fn play(plan: Plan) -> ExitCode {
    eprintln!("starting servers and {} nodes", plan.nodes);
    let mut cluster = Cluster::start(plan);
    status(&cluster);
    println!("\nask any of them from another terminal, for example:");
    println!("  {} worker list --data {}", cluster.plan().binary.display(), home(&cluster, "a"));
    println!("\nand break things here:\n{HELP}");
    prompt();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        for (name, how) in cluster.ended() {
            println!("{name} has ended: {how}");
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if matches!(words[..], ["quit" | "exit"]) {
            break;
        }
        if let Err(why) = act(&mut cluster, &words) {
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

fn home(cluster: &Cluster, name: &str) -> String {
    cluster.folder().join(name).display().to_string()
}

fn status(cluster: &Cluster) {
    let leader = cluster.leader();
    for (node, name) in cluster.names().enumerate() {
        let process = cluster.process(node).map_or("-".to_owned(), |id| id.to_string());
        let role = match leader {
            Some((leads, epoch)) if leads == node => format!("leads, term {epoch}"),
            _ if cluster.worker(node).is_some() => "works".to_owned(),
            _ => "is not in service".to_owned(),
        };
        let api = std::fs::read_to_string(cluster.folder().join(&name).join("api.json"));
        let api = api.unwrap_or_default();
        let url = api.split('"').find(|word| word.starts_with("http")).unwrap_or("-");
        println!("  {name}  process {process:<8} {url:<28} {role}");
    }
}

/// Does what was typed, or says why not.
fn act(cluster: &mut Cluster, words: &[&str]) -> Result<(), String> {
    match *words {
        [] => {}
        ["help"] => println!("{HELP}"),
        ["status"] => status(cluster),
        ["load"] => {
            if cluster.is_loaded() {
                return Err("they fire already".to_owned());
            }
            cluster.leader().ok_or("nobody leads: who should plan them?")?;
            cluster.load();
        }
        ["heal"] => cluster.net.heal(),
        ["cut", one, other] => {
            let (one, other) = ends(cluster, one, other)?;
            cluster.net.cut(one, other);
        }
        ["hold", from, to] => {
            let (from, to) = ends(cluster, from, to)?;
            cluster.net.set(from, to, Flow::Held);
        }
        ["slow", one, other, late] => {
            let (one, other) = ends(cluster, one, other)?;
            let late = late.parse().map_err(|_| format!("{late} is no number"))?;
            let flow = Flow::Slow(Duration::from_millis(late));
            cluster.net.set(one, other, flow);
            cluster.net.set(other, one, flow);
        }
        ["db", what] => match (what, cluster.has_database()) {
            ("stop", true) => cluster.stop_database(),
            ("kill", true) => cluster.kill_database(),
            ("start", false) => cluster.start_database(),
            ("stop" | "kill", false) => return Err("the database does not run".to_owned()),
            ("start", true) => return Err("the database runs".to_owned()),
            _ => return Err(unknown()),
        },
        ["redis", what] => match (what, cluster.has_redis()) {
            ("restart", true) => cluster.restart_redis(),
            ("flush", true) => cluster.flush_redis(),
            ("restart" | "flush", false) => return Err("there is no Redis that runs".to_owned()),
            _ => return Err(unknown()),
        },
        [what @ ("kill" | "term" | "freeze" | "thaw" | "start"), name] => {
            let node = node(cluster, name)?;
            match (what, cluster.is_up(node)) {
                ("start", false) => cluster.spawn(node),
                ("start", true) => return Err(format!("{name} runs")),
                (_, false) => return Err(format!("{name} does not run")),
                ("kill", true) => cluster.kill(node),
                // It may take its time, or stand still; that it has ended is told when it has.
                ("term", true) => cluster.stop(node),
                ("freeze", true) => cluster.signal(node, Signal::SIGSTOP),
                (_, true) => cluster.signal(node, Signal::SIGCONT),
            }
        }
        _ => return Err(unknown()),
    }
    Ok(())
}

fn unknown() -> String {
    format!("that is not known here:\n{HELP}")
}

fn node(cluster: &Cluster, name: &str) -> Result<usize, String> {
    let found = cluster.names().position(|known| known == name);
    found.ok_or_else(|| format!("there is no node {name}"))
}

/// Two that have a wire between them.
fn ends(cluster: &Cluster, one: &str, other: &str) -> Result<(Party, Party), String> {
    let party = |name: &str| match name {
        "db" => Ok(Party::Database),
        "redis" => Ok(Party::Redis),
        name => node(cluster, name).map(Party::Node),
    };
    let (from, to) = (party(one)?, party(other)?);
    let joined = cluster.net.joins(from, to).then_some((from, to));
    joined.ok_or_else(|| format!("there is no wire between {one} and {other}"))
}
