//! `tasuki cert dev`

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};
use tasuki_cluster::tls::dev::{Error, Made, OBSERVER, Plan, make};

use crate::output::Failure;

/// Make an authority and certificates to try things with: one for each node, and one for an observer,
/// who may look and not order. An authority that is there signs further nodes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki cert dev --dir tls
  tasuki cert dev --dir tls --node one --node two --node three
  tasuki cert dev --dir tls-staging --cluster staging --days 30 --json

Each folder has tls.crt, tls.key and ca.crt: what a node looks for in /etc/tasuki/tls. Nodes of one
cluster may also share one. New files are used without a restart.

The authority's key lies in the folder too, so whoever can read it can be any node. In production
let something else sign: the name in a certificate is the URI tasuki://CLUSTER/node/NAME.")]
pub(crate) struct Dev {
    /// The folder to make them in
    #[arg(long)]
    dir: PathBuf,

    /// A node to make one for; may be repeated
    #[arg(long = "node", value_name = "NAME", default_values_t = ["node".to_owned()])]
    nodes: Vec<String>,

    /// The cluster they are of
    #[arg(long, default_value = "tasuki")]
    cluster: String,

    /// For how many days they are good
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,

    /// Replace what is there, the authority too
    #[arg(long)]
    force: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Dev {
    pub(crate) fn run(self, now: Timestamp) -> Result<String, Failure> {
        let Self { dir: folder, mut nodes, cluster, days, force: replace, json } = self;
        nodes.sort();
        nodes.dedup();
        let made = make(&Plan { folder, cluster, nodes, days, replace }, now)
            .map_err(|error| failure(&error))?;
        Ok(if json { as_json(&made) } else { in_words(&made) })
    }
}

fn failure(error: &Error) -> Failure {
    match error {
        Error::Name(_) => Failure::bad_usage(error.to_string()),
        Error::Exists(_) => {
            let hint = "--force replaces all of it; another --node is added to what is there";
            Failure::refused(error.to_string()).hint(hint)
        }
        _ => Failure::refused(error.to_string()),
    }
}

fn in_words(made: &Made) -> String {
    let word = if made.authority_was_there { "used" } else { "made" };
    let mut text = format!("{word} the authority {}\n", made.authority.display());
    let mut look = None;
    for (identity, folder) in &made.certificates {
        writeln!(text, "made {identity} in {}", folder.display()).expect("a string takes all");
        look = look.or((identity.name() == OBSERVER).then_some(folder));
    }
    writeln!(
        text,
        "good until {}",
        made.expires_at.round(jiff::Unit::Second).unwrap_or(made.expires_at)
    )
    .expect("a string takes all");
    text.push_str(
        "\na node shows what is in /etc/tasuki/tls: put the three files of its folder there\n",
    );
    if let Some(folder) = look {
        let folder = folder.display();
        let shown = format!("-cert {folder}/tls.crt -key {folder}/tls.key");
        let look = format!("grpcurl -cacert {folder}/ca.crt {shown} localhost:PORT list");
        writeln!(text, "to look at a node: {look}").expect("a string takes all");
    }
    text
}

fn as_json(made: &Made) -> String {
    let certificates: Vec<Value> = made
        .certificates
        .iter()
        .map(|(identity, folder)| {
            json!({
                "identity": identity.to_string(),
                "role": identity.role().as_str(),
                "name": identity.name(),
                "dir": folder,
            })
        })
        .collect();
    let answer = json!({
        "authority": made.authority,
        "authority_was_there": made.authority_was_there,
        "certificates": certificates,
        "expires_at": made.expires_at.to_string(),
    });
    format!("{answer:#}\n")
}
