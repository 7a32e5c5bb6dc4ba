//! A cluster to play with.

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use cluster_kit::{Cluster, Flow, Party, Plan};
use nix::sys::signal::Signal;

const HELP: &str = "\
  status                 who is there, and who leads
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
    let lines = std::io::stdin().lock().lines();
    prompt();
    for line in lines.map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if matches!(words[..], ["quit" | "exit"]) {
            break;
        }
        if !words.is_empty() && act(&mut cluster, &words).is_none() {
            println!("that cannot be done:\n{HELP}");
        }
        prompt();
    }
    println!();
    for node in 0..cluster.plan().nodes {
        if cluster.is_up(node) {
            cluster.signal(node, Signal::SIGCONT);
        }
    }
    cluster.net.heal();
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

/// Does what was typed. `None`: it makes no sense, or not just now.
fn act(cluster: &mut Cluster, words: &[&str]) -> Option<()> {
    let node = |name: &str| cluster.names().position(|known| known == name);
    let party = |name: &str| match name {
        "db" => Some(Party::Database),
        "redis" => Some(Party::Redis),
        name => node(name).map(Party::Node),
    };
    match *words {
        ["help"] => println!("{HELP}"),
        ["status"] => status(cluster),
        ["load"] => cluster.load(),
        ["heal"] => cluster.net.heal(),
        ["cut", one, other] => cluster.net.cut(party(one)?, party(other)?),
        ["hold", from, to] => cluster.net.set(party(from)?, party(to)?, Flow::Held),
        ["slow", one, other, late] => {
            let (one, other) = (party(one)?, party(other)?);
            let flow = Flow::Slow(Duration::from_millis(late.parse().ok()?));
            cluster.net.set(one, other, flow);
            cluster.net.set(other, one, flow);
        }
        ["db", "stop"] => cluster.stop_database(),
        ["db", "kill"] => cluster.kill_database(),
        ["db", "start"] => cluster.start_database(),
        ["redis", "restart"] => cluster.restart_redis(),
        ["redis", "flush"] => cluster.flush_redis(),
        ["start", name] => {
            let node = node(name).filter(|node| !cluster.is_up(*node))?;
            cluster.spawn(node);
        }
        [what, name] => {
            let node = node(name).filter(|node| cluster.is_up(*node))?;
            match what {
                "kill" => cluster.kill(node),
                "term" => {
                    cluster.stop(node);
                    cluster.stopped(node);
                }
                "freeze" => cluster.signal(node, Signal::SIGSTOP),
                "thaw" => cluster.signal(node, Signal::SIGCONT),
                _ => return None,
            }
        }
        _ => return None,
    }
    Some(())
}
