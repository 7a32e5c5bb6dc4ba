//! Finds the primary that has our keys. It is looked up again for every connection, because it changes; no result is cached.
//! All our keys have the same hash tag, so also in a Redis Cluster they are on one server.

use std::io;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, RedisError, RedisResult, Value};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::config::{Host, RedisConfig, Topology};

/// Timeout of one server that is queried for the primary. Together with the connection itself it fits into the timeout of
/// connecting.
const QUERY_TIMEOUT: Duration = Duration::from_millis(250);

/// Connects to the primary. The caller sets a timeout.
pub(super) async fn connect(config: &RedisConfig) -> RedisResult<MultiplexedConnection> {
    let mut connection = open_connection(&primary_client(config).await?).await?;
    if matches!(config.topology, Topology::Sentinel(_)) {
        // Right after a failover, the sentinels may still name the old primary, which is a replica by then.
        let role = ::redis::cmd("ROLE").query_async::<Vec<Value>>(&mut connection).await;
        return match role.map(|role| role.first() == Some(&Value::BulkString(b"master".to_vec()))) {
            Ok(true) => Ok(connection),
            Ok(false) => {
                Err(discovery_error("the server that the sentinels named is not a primary"))
            }
            // A user without permission for ROLE notices a replica with its first write.
            Err(error) if error.code() == Some("NOPERM") => Ok(connection),
            Err(error) => Err(error),
        };
    }
    // A server that is loading its data, or hangs, accepts connections all the same.
    ::redis::cmd("PING").exec_async(&mut connection).await?;
    Ok(connection)
}

/// Finds the primary and returns a client for it.
pub(super) async fn primary_client(config: &RedisConfig) -> RedisResult<Client> {
    let host = match &config.topology {
        Topology::Standalone => config.hosts[0].clone(),
        Topology::Sentinel(name) => {
            find_by_majority(&config.hosts, |host| query_sentinel(config, host, name)).await?
        }
        Topology::Cluster => {
            find_by_majority(&config.hosts, |host| query_cluster_node(config, host)).await?
        }
    };
    config.client(&host)
}

async fn open_connection(client: &Client) -> RedisResult<MultiplexedConnection> {
    // Our own timeouts cover a whole call; those of the library cover only parts of it.
    let config = AsyncConnectionConfig::new();
    let config = config.set_connection_timeout(None).set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// Queries a sentinel for the address of the primary.
async fn query_sentinel(config: &RedisConfig, host: Host, name: &str) -> RedisResult<Host> {
    let mut connection = open_connection(&config.sentinel_client(&host)?).await?;
    let command = ::redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).to_owned();
    let address: Option<(String, u16)> = command.query_async(&mut connection).await?;
    let (name, port) = address
        .ok_or_else(|| discovery_error("the sentinels do not know the configured primary name"))?;
    Ok(Host { name, port })
}

/// Queries a cluster node for the node that has our keys: itself, or the one that it redirects to.
async fn query_cluster_node(config: &RedisConfig, host: Host) -> RedisResult<Host> {
    let mut connection = open_connection(&config.client(&host)?).await?;
    let command = ::redis::cmd("EXISTS").arg(format!("{{{}}}", config.prefix)).to_owned();
    match command.exec_async(&mut connection).await {
        Ok(()) => Ok(host),
        Err(error) if error.code() == Some("MOVED") => {
            let (address, _) = error
                .redirect_node()
                .ok_or_else(|| discovery_error("a redirection has no address"))?;
            let (name, port) = address.rsplit_once(':').unwrap_or((address, ""));
            // A node that does not know its own name leaves it out; then the name is that of the queried node.
            let name = if name.is_empty() { &host.name } else { name };
            let port = port.parse().map_err(|_| discovery_error("a redirection has no port"))?;
            Ok(Host { name: name.to_owned(), port })
        }
        Err(error) => Err(error),
    }
}

/// Queries all hosts concurrently, so that one that hangs does not delay the result. Returns the address that most of them
/// name, because a host that was cut off from the others may respond first, with a wrong address.
async fn find_by_majority<F>(hosts: &[Host], query: impl Fn(Host) -> F) -> RedisResult<Host>
where
    F: Future<Output = RedisResult<Host>>,
{
    let queries = hosts.iter().map(|host| timeout(QUERY_TIMEOUT, query(host.clone())));
    let mut responses: FuturesUnordered<_> = queries.collect();
    let mut candidates: Vec<(Host, usize)> = Vec::new();
    let mut last_error = discovery_error("no server named the primary in time");
    while let Some(response) = responses.next().await {
        let host = match response {
            Ok(Ok(host)) => host,
            Ok(Err(error)) => {
                last_error = error;
                continue;
            }
            Err(_) => continue,
        };
        let votes = match candidates.iter_mut().find(|(known, _)| *known == host) {
            Some((_, votes)) => {
                *votes += 1;
                *votes
            }
            None => {
                candidates.push((host.clone(), 1));
                1
            }
        };
        if votes * 2 > hosts.len() {
            return Ok(host);
        }
    }
    let most_named = candidates.into_iter().max_by_key(|(_, votes)| *votes);
    most_named.map(|(host, _)| host).ok_or(last_error)
}

fn discovery_error(message: &'static str) -> RedisError {
    RedisError::from(io::Error::other(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(port: u16) -> Host {
        Host { name: "there".to_owned(), port }
    }

    async fn find_port(named: &[Option<u16>]) -> Option<u16> {
        let hosts: Vec<Host> = (0..named.len() as u16).map(host).collect();
        let query = |queried: Host| async move {
            named[queried.port as usize].map(host).ok_or_else(|| discovery_error("unavailable"))
        };
        find_by_majority(&hosts, query).await.ok().map(|host| host.port)
    }

    #[tokio::test]
    async fn the_address_that_most_servers_name_is_used() {
        for (named, expected) in [
            (&[Some(7), Some(7), Some(7)][..], Some(7)),
            (&[Some(8), Some(7), Some(7)], Some(7)),
            (&[Some(8), None, Some(7), Some(7), None], Some(7)),
            (&[None, None, Some(7)], Some(7)),
            (&[None, None, None], None),
        ] {
            assert_eq!(find_port(named).await, expected, "{named:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_does_not_delay_the_result() {
        let hosts: Vec<Host> = (0..3).map(host).collect();
        let query = |queried: Host| async move {
            if queried.port == 0 {
                std::future::pending::<()>().await;
            }
            Ok(host(7))
        };
        assert_eq!(find_by_majority(&hosts, query).await.unwrap(), host(7));
    }
}
