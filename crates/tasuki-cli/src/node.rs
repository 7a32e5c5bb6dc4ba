//! `tasuki node`: one of many that share a database.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use tasuki_core::{NodeName, duration};

use crate::cluster::Cluster;
use crate::database;
use crate::layers::{Layers, Typed};
use crate::output::Failure;
use crate::serve::{Service, host_name, tell};
use crate::willing::Willing;

/// Start one node of a cluster: many that share a database, one of which leads
#[derive(Args)]
#[command(
    after_help = "A value comes from a flag, or the environment, or the file, or a default: the first that is there.
`tasuki config show` says which.

Examples:
  tasuki node --config /etc/tasuki/tasuki.toml
  tasuki node --database-url postgres://tasuki@db/tasuki --rpc-listen 10.0.0.5:7712
  tasuki node --redis-url redis://cache:6379 --label gpu

SIGTERM and Ctrl-C let what runs finish, and stop at once the second time."
)]
pub(crate) struct Node {
    #[command(flatten)]
    typed: Typed,
}

impl Node {
    pub(crate) fn run(self) -> Result<String, Failure> {
        let layers = Layers::read(&self.typed, |name| std::env::var_os(name))?;
        let Some(database_url) = layers.text("database_url").map(str::to_owned) else {
            return Err(Failure::bad_usage("a node needs the database that all nodes share")
                .hint("--database-url, TASUKI_DATABASE_URL or database_url in the file; `tasuki up` needs none"));
        };
        let address = |name| {
            layers.parsed(name, |typed| {
                typed.parse::<SocketAddr>().map_err(|error| error.to_string())
            })
        };
        let name = layers
            .parsed("node", |typed| typed.parse::<NodeName>().map_err(|error| error.to_string()))?;
        let slots = layers.parsed("slots", |typed| match typed.parse::<u32>() {
            Ok(slots @ 1..=10_000) => Ok(slots),
            Ok(_) | Err(_) => Err("it is to be a number from 1 to 10000".to_owned()),
        })?;
        let drain = layers.parsed("drain", |typed| {
            duration::read("drain", typed).map_err(|error| error.to_string())
        })?;
        let project = layers.path("django_project");
        let willing = Willing {
            node: name.unwrap_or_else(host_name),
            labels: layers.list("label").unwrap_or_default(),
            slots,
            programs: layers.list("allow_program"),
            environment: layers.list("pass_env").unwrap_or_default(),
            django_project: project.as_deref(),
            django_python: layers.text("django_python").unwrap_or("python3"),
            django_settings: layers.text("django_settings"),
            drain: drain.unwrap_or(Duration::from_secs(30)),
        };
        let config = willing.config()?;
        let cluster = Cluster::read(&layers, config.node.clone())?;
        let greeting = format!("tasuki node {} is up", config.node);
        let service = Service {
            data: layers.path("data").unwrap_or_default(),
            listen: address("listen")?.expect("it has a default"),
            database_url,
            config,
            demo: false,
            cluster: Some(cluster),
        };
        let shown = database::shown(&service.database_url);
        service.run(|url, address| {
            let address = address.unwrap_or_default();
            let here = address.starts_with("127.") || address.starts_with("[::1]");
            let only = if here { " (by nodes on this host only)" } else { "" };
            tell(&format!(
                "{greeting}\n  api        {url}\n  called at  {address}{only}\n  database   {shown}"
            ));
        })
    }
}
