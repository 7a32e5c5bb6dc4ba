//! Where the primary is, which keeps our keys. Asked anew for every connection, because it changes: no answer is
//! kept. All our keys share one hash tag, so also in a cluster it is one server.

use std::io;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, RedisError, RedisResult, Value};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::config::{Host, RedisConfig, Topology};

/// How long one server has to say where the primary is. With what follows it fits into what a connection may take.
const ASK_LIMIT: Duration = Duration::from_millis(250);

/// Connects to the primary. The caller limits how long that may take.
pub(super) async fn connect(config: &RedisConfig) -> RedisResult<MultiplexedConnection> {
    let mut connection = open(&primary(config).await?).await?;
    if matches!(config.topology, Topology::Sentinel(_)) {
        // Right after a failover the sentinels may still name the old one, which is a replica by now.
        let role = ::redis::cmd("ROLE").query_async::<Vec<Value>>(&mut connection).await;
        return match role.map(|role| role.first() == Some(&Value::BulkString(b"master".to_vec()))) {
            Ok(true) => Ok(connection),
            Ok(false) => Err(failure("the sentinels name a server that is no primary")),
            // Whoever may not ask finds out with the first write.
            Err(error) if error.code() == Some("NOPERM") => Ok(connection),
            Err(error) => Err(error),
        };
    }
    // A server that loads its data or hangs takes connections all the same.
    ::redis::cmd("PING").exec_async(&mut connection).await?;
    Ok(connection)
}

/// Somebody who can connect to the primary.
pub(super) async fn primary(config: &RedisConfig) -> RedisResult<Client> {
    let host = match &config.topology {
        Topology::Standalone => config.hosts[0].clone(),
        Topology::Sentinel(name) => {
            most_named(&config.hosts, |host| ask_sentinel(config, host, name)).await?
        }
        Topology::Cluster => most_named(&config.hosts, |host| ask_node(config, host)).await?,
    };
    config.client(&host)
}

async fn open(client: &Client) -> RedisResult<MultiplexedConnection> {
    // The limits are ours, over all that belongs to a call; the library's are over parts of it.
    let config = AsyncConnectionConfig::new();
    let config = config.set_connection_timeout(None).set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await
}

async fn ask_sentinel(config: &RedisConfig, host: Host, name: &str) -> RedisResult<Host> {
    let mut connection = open(&config.sentinel(&host)?).await?;
    let asked = ::redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).to_owned();
    let named: Option<(String, u16)> = asked.query_async(&mut connection).await?;
    let (name, port) = named.ok_or_else(|| failure("the sentinels do not know that name"))?;
    Ok(Host { name, port })
}

/// Whoever has a key of ours answers, and every other says who does.
async fn ask_node(config: &RedisConfig, host: Host) -> RedisResult<Host> {
    let mut connection = open(&config.client(&host)?).await?;
    let asked = ::redis::cmd("EXISTS").arg(format!("{{{}}}", config.prefix)).to_owned();
    match asked.exec_async(&mut connection).await {
        Ok(()) => Ok(host),
        Err(error) if error.code() == Some("MOVED") => {
            let (place, _) = error.redirect_node().ok_or_else(|| failure("it moved nowhere"))?;
            let (name, port) = place.rsplit_once(':').unwrap_or((place, ""));
            // A node that does not know its own name leaves it out: it is the one that was asked.
            let name = if name.is_empty() { &host.name } else { name };
            let port = port.parse().map_err(|_| failure("it moved to no port"))?;
            Ok(Host { name: name.to_owned(), port })
        }
        Err(error) => Err(error),
    }
}

/// Asks all at once, so that one that hangs holds nobody up, and believes what most of them say: one that was cut
/// off from the others may answer quicker, and wrong.
async fn most_named<F>(hosts: &[Host], ask: impl Fn(Host) -> F) -> RedisResult<Host>
where
    F: Future<Output = RedisResult<Host>>,
{
    let asked = hosts.iter().map(|host| timeout(ASK_LIMIT, ask(host.clone())));
    let mut answers: FuturesUnordered<_> = asked.collect();
    let mut named: Vec<(Host, usize)> = Vec::new();
    let mut refusal = failure("nobody said where the primary is in time");
    while let Some(answer) = answers.next().await {
        let host = match answer {
            Ok(Ok(host)) => host,
            Ok(Err(error)) => {
                refusal = error;
                continue;
            }
            Err(_) => continue,
        };
        let voices = match named.iter_mut().find(|(known, _)| *known == host) {
            Some((_, voices)) => {
                *voices += 1;
                *voices
            }
            None => {
                named.push((host.clone(), 1));
                1
            }
        };
        if voices * 2 > hosts.len() {
            return Ok(host);
        }
    }
    let most = named.into_iter().max_by_key(|(_, voices)| *voices);
    most.map(|(host, _)| host).ok_or(refusal)
}

fn failure(what: &'static str) -> RedisError {
    RedisError::from(io::Error::other(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(port: u16) -> Host {
        Host { name: "there".to_owned(), port }
    }

    async fn found(answers: &[Option<u16>]) -> Option<u16> {
        let hosts: Vec<Host> = (0..answers.len() as u16).map(host).collect();
        let ask = |asked: Host| async move {
            answers[asked.port as usize].map(host).ok_or_else(|| failure("away"))
        };
        most_named(&hosts, ask).await.ok().map(|host| host.port)
    }

    #[tokio::test]
    async fn the_one_most_name_is_believed() {
        for (answers, expected) in [
            (&[Some(7), Some(7), Some(7)][..], Some(7)),
            (&[Some(8), Some(7), Some(7)], Some(7)),
            (&[Some(8), None, Some(7), Some(7), None], Some(7)),
            (&[None, None, Some(7)], Some(7)),
            (&[None, None, None], None),
        ] {
            assert_eq!(found(answers).await, expected, "{answers:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_holds_nobody_up() {
        let hosts: Vec<Host> = (0..3).map(host).collect();
        let ask = |asked: Host| async move {
            if asked.port == 0 {
                std::future::pending::<()>().await;
            }
            Ok(host(7))
        };
        assert_eq!(most_named(&hosts, ask).await.unwrap(), host(7));
    }
}
