//! What has ended: what it printed goes to the log, what it wrote is read, and then it is told. Those that end
//! together travel together.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tasuki_core::{LeaseToken, RunId};
use tasuki_store::{FirstLines, LogLine, Stream};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::attempt::{End, Happened, Mail, Signs};
use super::keeper::Keeper;
use super::logs::Log;
use super::results;
use crate::node::world::Clock;
use crate::output::Lines;
use crate::spawner::{Exit, JobKey, Printed, Refusal};

/// How long an end waits for others to travel with, where others may come; and where many do.
const COMPANY: Duration = Duration::from_millis(5);
const MUCH_COMPANY: Duration = Duration::from_millis(20);
/// So many are many.
const MANY: usize = 8;
/// So many are company enough.
const ENOUGH: usize = 64;
/// How long those that come after wait for those before, to travel together.
const PATIENCE: Duration = Duration::from_millis(50);

/// A command that has ended, or was refused.
pub(crate) struct Ended {
    pub(crate) key: JobKey,
    pub(crate) token: LeaseToken,
    pub(crate) how: Result<Exit, Refusal>,
    /// What it printed, where that was not read as it came.
    pub(crate) printed: Printed,
    /// Where its result is, if it wrote one.
    pub(crate) result: PathBuf,
}

/// What becomes of what commands print and write.
pub(crate) struct Ends {
    keeper: Keeper,
    clock: Arc<dyn Clock>,
    cap: i64,
    mail: Mail,
}

impl Ends {
    pub(crate) fn new(keeper: Keeper, clock: Arc<dyn Clock>, cap: i64, mail: Mail) -> Self {
        Self { keeper, clock, cap, mail }
    }

    /// Reads what a command prints until it has ended, and tells that.
    pub(crate) async fn read(
        self: Arc<Self>,
        key: JobKey,
        signs: Signs,
        from: Vec<OwnedFd>,
        told: oneshot::Receiver<Ended>,
    ) {
        let log = self.log(key);
        let (tell_end, end) = watch::channel(false);
        let mut readers = JoinSet::new();
        let streams = [Stream::Out, Stream::Err];
        if from.len() < streams.len() {
            log.line(Stream::Err, "[what it prints is not read: too many files are open]".into());
            log.ring();
        }
        for (from, stream) in from.into_iter().zip(streams) {
            match Receiver::from_owned_fd(from) {
                Ok(from) => {
                    let read = Arc::clone(&log).read(from, stream, signs.clone(), end.clone());
                    readers.spawn(read);
                }
                Err(error) => tracing::warn!(run_id = key.run, %error, "an output is not read"),
            }
        }
        let Ok(ended) = told.await else { return };
        let _ = tell_end.send(true);
        log.finish(async { while readers.join_next().await.is_some() {} }).await;
        self.tell(vec![ended]).await;
    }

    /// Tells of all that comes, together of what comes together: nobody waits for company where none can come, and who
    /// comes while others are told of travels with the next.
    pub(crate) async fn tell_all(
        self: Arc<Self>,
        mut over: mpsc::UnboundedReceiver<Vec<Ended>>,
        may_come: impl Fn() -> bool,
    ) {
        let mut company = COMPANY;
        while let Some(mut ended) = over.recv().await {
            let until = Instant::now() + company;
            while ended.len() < ENOUGH && (!over.is_empty() || may_come()) {
                match timeout_at(until, over.recv()).await {
                    Ok(Some(more)) => ended.extend(more),
                    Ok(None) | Err(_) => break,
                }
            }
            company = next_company(company, ended.len());
            let told = tokio::spawn(Arc::clone(&self).tell(ended));
            // Whatever keeps these keeps no others for long.
            let _ = timeout(PATIENCE, told).await;
        }
    }

    /// Reads what these wrote, and tells how they ended, with what they printed. Where that is much it is kept before.
    pub(crate) async fn tell(self: Arc<Self>, ended: Vec<Ended>) {
        let exited = ended.iter().filter(|one| one.how.is_ok());
        let results = results::read_all(exited.map(|one| one.result.clone()).collect()).await;
        let mut results = results.into_iter();
        let mut happened = Vec::with_capacity(ended.len());
        for Ended { key, token, how, printed, .. } in ended {
            let lines = lines(&printed, self.clock.wall());
            let first = FirstLines { run: RunId(key.run), attempt_no: key.attempt, lines };
            let (little, much) = match how.is_ok() && first.are_few(self.cap) {
                true => (Some(first), Vec::new()),
                false => (None, first.lines),
            };
            let end = match how {
                Ok(exit) => {
                    let told = results.next().unwrap_or_default();
                    End::Exited { exit, told, printed: little }
                }
                Err(why) => End::Refused(why),
            };
            let one = Happened { key, token, end };
            match much.is_empty() {
                true => happened.push(one),
                false => drop(tokio::spawn(Arc::clone(&self).keep(much, one))),
            }
        }
        self.mail.send_all(happened);
    }

    /// Keeps what one has printed, and tells then how it ended.
    async fn keep(self: Arc<Self>, lines: Vec<LogLine>, happened: Happened) {
        let log = self.log(happened.key);
        lines.into_iter().for_each(|line| log.line(line.stream, line.text));
        log.ring();
        log.finish(std::future::ready(())).await;
        self.mail.send(happened);
    }

    fn log(&self, key: JobKey) -> Arc<Log> {
        Log::new(self.keeper.clone(), Arc::clone(&self.clock), key, self.cap)
    }
}

/// What was printed, as lines of a log.
pub(in crate::node) fn lines(printed: &Printed, at: Timestamp) -> Vec<LogLine> {
    let mut all = Vec::new();
    for (stream, text) in [(Stream::Out, &printed.output), (Stream::Err, &printed.errors)] {
        let mut lines = Lines::default();
        let mut line = |text| all.push(LogLine { stream, at, text });
        lines.take_in(text.as_bytes(), &mut line);
        lines.end().into_iter().for_each(line);
    }
    all
}

/// How long the next wait for company, where so many came: what it costs to tell is the same for few and for many, and where
/// few come nobody waits for long in vain.
fn next_company(company: Duration, came: usize) -> Duration {
    match came >= MANY {
        true => (company * 2).min(MUCH_COMPANY),
        false => COMPANY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_come_the_longer_others_are_waited_for() {
        assert_eq!(next_company(COMPANY, MANY), COMPANY * 2);
        assert_eq!(next_company(COMPANY * 2, ENOUGH), MUCH_COMPANY);
        assert_eq!(next_company(MUCH_COMPANY, MANY), MUCH_COMPANY);
        assert_eq!(next_company(MUCH_COMPANY, MANY - 1), COMPANY);
    }
}
