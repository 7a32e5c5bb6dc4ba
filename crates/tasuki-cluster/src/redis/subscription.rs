//! Subscription to notifications, on a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::{PubSubSink, PubSubStream};
use async_trait::async_trait;
use futures_util::StreamExt;
use tasuki::node::coordination::coordinator_trait::{CoordinatorUnreachable, Subscription};
use tasuki_store::Notification;
use tokio::time::{Instant, timeout, timeout_at};

use super::connection::{CONNECT_TIMEOUT, RESPONSE_TIMEOUT, RedisConnection};
use super::find_primary;

/// Time without a message after which the server is pinged. Without the ping, a server that disappeared would look like one
/// that has no messages.
const PING_AFTER_IDLE: Duration = Duration::from_secs(2);

/// Open subscription to a Redis channel.
pub(super) struct RedisSubscription {
    /// Shared connection, for its configuration and error messages.
    shared: Arc<RedisConnection>,
    sink: PubSubSink,
    messages: PubSubStream,
    /// Deadline of the next ping. A field, because a caller may cancel the wait for a message and start it again.
    ping_at: Instant,
}

impl RedisSubscription {
    /// Subscribes to a channel. All messages published after this returns are received.
    pub(super) async fn open(
        shared: Arc<RedisConnection>,
        channel: &str,
    ) -> Result<Self, CoordinatorUnreachable> {
        let opened = timeout(CONNECT_TIMEOUT, async {
            let client = find_primary::primary_client(shared.config()).await?;
            let mut connection = client.get_async_pubsub().await?;
            connection.subscribe(channel).await?;
            Ok(connection.split())
        });
        let (sink, messages) = match opened.await {
            Ok(opened) => opened.map_err(|error| shared.public_error(&error))?,
            Err(_) => return Err(connection_lost()),
        };
        Ok(Self { shared, sink, messages, ping_at: Instant::now() + PING_AFTER_IDLE })
    }

    async fn ping(&mut self) -> Result<(), CoordinatorUnreachable> {
        match timeout(RESPONSE_TIMEOUT, self.sink.ping::<::redis::Value>()).await {
            Ok(response) => response.map(drop).map_err(|error| self.shared.public_error(&error)),
            Err(_) => Err(connection_lost()),
        }
    }
}

#[async_trait]
impl Subscription for RedisSubscription {
    async fn next_notification(&mut self) -> Result<Notification, CoordinatorUnreachable> {
        loop {
            match timeout_at(self.ping_at, self.messages.next()).await {
                Ok(Some(message)) => {
                    self.ping_at = Instant::now() + PING_AFTER_IDLE;
                    return Ok(Notification::parse(&String::from_utf8_lossy(
                        message.get_payload_bytes(),
                    )));
                }
                Ok(None) => return Err(connection_lost()),
                Err(_) => {
                    self.ping().await?;
                    self.ping_at = Instant::now() + PING_AFTER_IDLE;
                }
            }
        }
    }
}

fn connection_lost() -> CoordinatorUnreachable {
    CoordinatorUnreachable("redis: the connection of the subscription was lost".to_owned())
}
