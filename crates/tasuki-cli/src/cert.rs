//! `tasuki cert dev`: creates a certificate authority and certificates for development.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};
use tasuki_cluster::tls::dev::{DevCertOptions, DevCerts, Error, OBSERVER, create_dev_certs};

use crate::failure::Failure;

/// Create a certificate authority and certificates for development: one certificate for each node, and one for an
/// observer, which may read but not send orders. An existing authority is used to sign further nodes
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki cert dev --dir tls
  tasuki cert dev --dir tls --node one --node two --node three
  tasuki cert dev --dir tls-staging --cluster staging --days 30 --json

Each node gets a directory DIR/NAME with tls.crt, tls.key and ca.crt. A node reads these files from
/etc/tasuki/tls, or from --tls-dir, and loads new ones without a restart. All nodes of one cluster
can also use the same certificate. The name in a certificate is the URI tasuki://CLUSTER/node/NAME.

The key of the authority, DIR/ca.key, is stored beside the certificates: anyone who can read it can
impersonate any node. In production, sign certificates with your own authority.")]
pub(crate) struct CertDevCommand {
    /// Output directory
    #[arg(long)]
    dir: PathBuf,

    /// Name of a node (repeatable)
    #[arg(long = "node", value_name = "NAME", default_values_t = ["node".to_owned()])]
    nodes: Vec<String>,

    /// Name of the cluster
    #[arg(long, default_value = "tasuki")]
    cluster: String,

    /// Validity of the certificates in days, at most 3650
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,

    /// Overwrite existing files, including the authority
    #[arg(long)]
    force: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CertDevCommand {
    pub(crate) fn run(self, now: Timestamp) -> Result<String, Failure> {
        let Self { dir: folder, mut nodes, cluster, days, force: replace, json } = self;
        nodes.sort();
        nodes.dedup();
        let made = create_dev_certs(&DevCertOptions { folder, cluster, nodes, days, replace }, now)
            .map_err(|error| failure(&error))?;
        Ok(if json { as_json(&made) } else { as_text(&made) })
    }
}

fn failure(error: &Error) -> Failure {
    match error {
        Error::Name(_) => Failure::bad_usage(error.to_string()),
        Error::Exists(_) => {
            let hint = "--force replaces all files, including the authority; --node with a new name adds a node";
            Failure::new(error.to_string()).hint(hint)
        }
        _ => Failure::new(error.to_string()),
    }
}

fn as_text(made: &DevCerts) -> String {
    let verb = if made.authority_existed { "used existing" } else { "created" };
    let mut text = format!("{verb} authority {}\n", made.authority.display());
    let mut observer = None;
    for (identity, folder) in &made.certificates {
        writeln!(text, "created {identity} in {}", folder.display())
            .expect("writing to a string does not fail");
        observer = observer.or((identity.name() == OBSERVER).then_some(folder));
    }
    writeln!(
        text,
        "valid until {}",
        made.expires_at.round(jiff::Unit::Second).unwrap_or(made.expires_at)
    )
    .expect("writing to a string does not fail");
    text.push_str(
        "\ncopy the three files of each node's directory to /etc/tasuki/tls on that node\n",
    );
    if let Some(folder) = observer {
        let folder = folder.display();
        let shown = format!("-cert {folder}/tls.crt -key {folder}/tls.key");
        let command = format!("grpcurl -cacert {folder}/ca.crt {shown} localhost:PORT list");
        writeln!(text, "to inspect a node: {command}").expect("writing to a string does not fail");
    }
    text
}

fn as_json(made: &DevCerts) -> String {
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
        "authority_was_there": made.authority_existed,
        "certificates": certificates,
        "expires_at": made.expires_at.to_string(),
    });
    format!("{answer:#}\n")
}
