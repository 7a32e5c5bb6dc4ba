//! `tasuki node`: starts one node of a cluster whose nodes share a database.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use tasuki_core::{NodeName, duration};

use crate::config_layers::{ConfigFlags, MergedConfig};
use crate::database_access;
use crate::failure::Failure;
use crate::node_config_from_options::NodeExecutionOptions;
use crate::node_rpc_and_coordinator::ClusterOptions;
use crate::run_node_until_stopped::{NodeProcess, host_name, print_stderr};

/// Start one node of a cluster whose nodes share a database; one of the nodes is the leader
#[derive(Args)]
#[command(
    after_help = "Each value comes from its flag, else the environment variable, else the configuration file, else the
default. `tasuki config show` shows the source of each value.

Examples:
  tasuki node --config /etc/tasuki/tasuki.toml
  tasuki node --database-url postgres://tasuki@db/tasuki --rpc-listen 10.0.0.5:7712
  tasuki node --redis-url redis://cache:6379 --label gpu

After SIGTERM or Ctrl-C, the node starts no new runs, waits at most --drain for the running ones,
stops the rest, and exits. A second signal stops the node immediately; the leader recovers the
interrupted runs."
)]
pub(crate) struct NodeCommand {
    #[command(flatten)]
    flags: ConfigFlags,
}

impl NodeCommand {
    pub(crate) fn run(self) -> Result<String, Failure> {
        let layers = MergedConfig::read_and_merge(&self.flags, |name| std::env::var_os(name))?;
        let Some(database_url) = layers.text("database_url").map(str::to_owned) else {
            return Err(Failure::bad_usage("the URL of the database that all nodes share is missing")
                .hint("set --database-url, TASUKI_DATABASE_URL or database_url in the file; `tasuki up` works without one"));
        };
        let address = |name| {
            layers.parse_value_of_key(name, |input| {
                input.parse::<SocketAddr>().map_err(|error| error.to_string())
            })
        };
        let name = layers.parse_value_of_key("node", |input| {
            input.parse::<NodeName>().map_err(|error| error.to_string())
        })?;
        let slots = layers.parse_value_of_key("slots", |input| match input.parse::<u32>() {
            Ok(slots @ 1..=10_000) => Ok(slots),
            Ok(_) | Err(_) => Err("expected a number from 1 to 10000".to_owned()),
        })?;
        let drain = layers.parse_value_of_key("drain", |input| {
            duration::parse_duration_field("drain", input).map_err(|error| error.to_string())
        })?;
        let project = layers.path_value("django_project");
        let limits = NodeExecutionOptions {
            node: name.unwrap_or_else(host_name),
            labels: layers.find_list_values("label").unwrap_or_default(),
            slots,
            programs: layers.find_list_values("allow_program"),
            environment: layers.find_list_values("pass_env").unwrap_or_default(),
            django_project: project.as_deref(),
            django_python: layers.text("django_python").unwrap_or("python3"),
            django_settings: layers.text("django_settings"),
            drain: drain.unwrap_or(Duration::from_secs(30)),
        };
        let config = limits.into_node_config()?;
        let cluster = ClusterOptions::read(&layers, config.node.clone())?;
        let greeting = format!("tasuki node {} is up", config.node);
        let process = NodeProcess {
            data: layers.path_value("data").unwrap_or_default(),
            listen: address("listen")?.expect("listen has a default"),
            database_url,
            config,
            demo: false,
            cluster: Some(cluster),
        };
        let redacted_url = database_access::redact_url(&process.database_url);
        process.run(|url, address| {
            let address = address.unwrap_or_default();
            let is_loopback = address.starts_with("127.") || address.starts_with("[::1]");
            let note = if is_loopback { " (reachable from this host only)" } else { "" };
            print_stderr(&format!(
                "{greeting}\n  api        {url}\n  rpc        {address}{note}\n  database   {redacted_url}"
            ));
        })
    }
}
