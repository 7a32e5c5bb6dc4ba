//! What has ended: what it printed goes to the log, what it wrote is read, and then it is told. Those that end
//! together travel together.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

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
use super::world::Clock;
use crate::output::Lines;
use crate::spawner::{Exit, JobKey, Printed, Refusal};

/// How long an end waits for others to travel with, where others may come.
const COMPANY: Duration = Duration::from_millis(5);
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
        while let Some(mut ended) = over.recv().await {
            let until = Instant::now() + COMPANY;
            while ended.len() < ENOUGH && (!over.is_empty() || may_come()) {
                match timeout_at(until, over.recv()).await {
                    Ok(Some(more)) => ended.extend(more),
                    Ok(None) | Err(_) => break,
                }
            }
            let told = tokio::spawn(Arc::clone(&self).tell(ended));
            // Whatever keeps these keeps no others for long.
            let _ = timeout(PATIENCE, told).await;
        }
    }

    /// Keeps what these printed, reads what they wrote, and tells how they ended.
    pub(crate) async fn tell(self: Arc<Self>, ended: Vec<Ended>) {
        let mut logs = Vec::new();
        for one in &ended {
            let lines = self.lines(&one.printed);
            if !lines.is_empty() {
                let (run, attempt_no) = (RunId(one.key.run), one.key.attempt);
                logs.push((one.key, FirstLines { run, attempt_no, lines }));
            }
        }
        let exited = ended.iter().filter(|one| one.how.is_ok());
        let results = results::read_all(exited.map(|one| one.result.clone()).collect());
        let (results, slow) = tokio::join!(results, self.keep(logs));
        let mut results = results.into_iter();
        let mut happened = Vec::with_capacity(ended.len());
        for Ended { key, token, how, .. } in ended {
            let end = match how {
                Ok(exit) => End::Exited { exit, told: results.next().unwrap_or_default() },
                Err(why) => End::Refused(why),
            };
            let one = Happened { key, token, end };
            match slow.iter().position(|(slow, _)| *slow == key) {
                None => happened.push(one),
                Some(index) => {
                    let (log, mail) = (Arc::clone(&slow[index].1), self.mail.clone());
                    tokio::spawn(async move {
                        log.finish(std::future::ready(())).await;
                        mail.send(one);
                    });
                }
            }
        }
        self.mail.send_all(happened);
    }

    /// Keeps these logs in one write. Returns those that need more: they are many lines, or there is a log
    /// already, or the database does not answer.
    async fn keep(&self, logs: Vec<(JobKey, FirstLines)>) -> Vec<(JobKey, Arc<Log>)> {
        let (few, many): (Vec<_>, Vec<_>) =
            logs.into_iter().partition(|(_, lines)| lines.are_few(self.cap));
        let mut left = many;
        if !few.is_empty() {
            let firsts = few.iter().map(|(_, lines)| lines.clone()).collect();
            let kept = self.keeper.open_all(firsts).await.unwrap_or_default();
            let kept = kept.into_iter().chain(std::iter::repeat(false));
            left.extend(few.into_iter().zip(kept).filter(|(_, kept)| !kept).map(|(one, _)| one));
        }
        let slow = left.into_iter().map(|(key, first)| {
            let log = self.log(key);
            for line in first.lines {
                log.line(line.stream, line.text);
            }
            log.ring();
            (key, log)
        });
        slow.collect()
    }

    fn log(&self, key: JobKey) -> Arc<Log> {
        Log::new(self.keeper.clone(), Arc::clone(&self.clock), key, self.cap)
    }

    fn lines(&self, printed: &Printed) -> Vec<LogLine> {
        let at = self.clock.wall();
        let mut all = Vec::new();
        for (stream, text) in [(Stream::Out, &printed.output), (Stream::Err, &printed.errors)] {
            let mut lines = Lines::default();
            let mut line = |text| all.push(LogLine { stream, at, text });
            lines.take_in(text.as_bytes(), &mut line);
            lines.end().into_iter().for_each(line);
        }
        all
    }
}
