//! Hearing news, on a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::{PubSubSink, PubSubStream};
use async_trait::async_trait;
use futures_util::StreamExt;
use tasuki::node::coordination::coordinate::{Hearing, Unreachable};
use tasuki_store::News;
use tokio::time::{Instant, timeout, timeout_at};

use super::find;
use super::line::{ANSWER_LIMIT, CONNECT_LIMIT, Line};

/// How long it may be quiet before it is asked whether anybody is there: a server that vanished without a word is
/// as quiet as one that has no news.
const QUIET: Duration = Duration::from_secs(2);

/// An open ear on a channel.
pub(super) struct Ear {
    line: Arc<Line>,
    asks: PubSubSink,
    hears: PubSubStream,
    /// When it has been quiet for too long. Kept here, because whoever listens may stop in the middle and go on.
    quiet_until: Instant,
}

impl Ear {
    /// Begins to listen. What is told after this returns is heard.
    pub(super) async fn open(line: Arc<Line>, channel: &str) -> Result<Self, Unreachable> {
        let opened = timeout(CONNECT_LIMIT, async {
            let client = find::primary(line.config()).await?;
            let mut connection = client.get_async_pubsub().await?;
            connection.subscribe(channel).await?;
            Ok(connection.split())
        });
        let (asks, hears) = match opened.await {
            Ok(opened) => opened.map_err(|error| line.told(&error))?,
            Err(_) => return Err(lost()),
        };
        Ok(Self { line, asks, hears, quiet_until: Instant::now() + QUIET })
    }

    async fn is_anybody_there(&mut self) -> Result<(), Unreachable> {
        match timeout(ANSWER_LIMIT, self.asks.ping::<::redis::Value>()).await {
            Ok(answer) => answer.map(drop).map_err(|error| self.line.told(&error)),
            Err(_) => Err(lost()),
        }
    }
}

#[async_trait]
impl Hearing for Ear {
    async fn heard(&mut self) -> Result<News, Unreachable> {
        loop {
            match timeout_at(self.quiet_until, self.hears.next()).await {
                Ok(Some(message)) => {
                    self.quiet_until = Instant::now() + QUIET;
                    return Ok(News::read(&String::from_utf8_lossy(message.get_payload_bytes())));
                }
                Ok(None) => return Err(lost()),
                Err(_) => {
                    self.is_anybody_there().await?;
                    self.quiet_until = Instant::now() + QUIET;
                }
            }
        }
    }
}

fn lost() -> Unreachable {
    Unreachable("redis: nobody is there to hear from".to_owned())
}
