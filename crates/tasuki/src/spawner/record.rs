//! How things ended, on disk before it is told. By a thread of its own: whoever keeps deadlines must not
//! wait for a disk.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use serde_json::json;

use super::{Exit, JobKey, Report};

/// An end to be written down.
pub(super) struct Ended {
    pub(super) path: PathBuf,
    pub(super) token: String,
    pub(super) job: JobKey,
    pub(super) exit: Exit,
}

pub(super) struct Recorder {
    ends: Option<Sender<Ended>>,
    written: Receiver<Report>,
    /// Becomes readable when there is something to be told.
    bell: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    pub(super) fn start() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ring = bell.try_clone()?;
        let (ends, given) = channel();
        let (tell, written) = channel();
        let work = move || keep(&given, &tell, &ring);
        let thread = std::thread::Builder::new().name("records".to_owned()).spawn(work)?;
        Ok(Self { ends: Some(ends), written, bell, thread: Some(thread) })
    }

    pub(super) fn write(&self, ended: Ended) {
        // The thread ends only after us.
        let _ = self.ends.as_ref().map(|ends| ends.send(ended));
    }

    pub(super) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// What was written since this was last asked.
    pub(super) fn written(&self) -> impl Iterator<Item = Report> {
        // How often it rang does not matter, nor whether it did.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.written.try_iter()
    }
}

impl Drop for Recorder {
    /// Waits until all is written.
    fn drop(&mut self) {
        self.ends.take();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn keep(given: &Receiver<Ended>, tell: &Sender<Report>, bell: &OwnedFd) {
    while let Ok(first) = given.recv() {
        let ends: Vec<Ended> = std::iter::once(first).chain(given.try_iter()).collect();
        let mut folders = BTreeSet::new();
        for ended in &ends {
            match write(ended) {
                Ok(()) => folders.extend(ended.path.parent()),
                // It is told all the same; only a worker that dies before it has reported would miss it.
                Err(error) => complain(&ended.path, &error),
            }
        }
        for folder in folders {
            if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
                complain(folder, &error);
            }
        }
        for Ended { job, exit, .. } in ends {
            let _ = tell.send(Report::Ended { job, exit });
        }
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    }
}

/// To whoever reads what we say; nobody may.
fn complain(path: &Path, error: &io::Error) {
    let _ = writeln!(io::stderr(), "tasuki spawner: {}: {error}", path.display());
}

/// Whole or not at all. What it is in has to be kept too.
fn write(ended: &Ended) -> io::Result<()> {
    let fresh: &Path = &ended.path.with_extension("part");
    let mut file = File::create(fresh)?;
    let told = json!({ "job": ended.job, "token": ended.token, "exit": ended.exit });
    file.write_all(told.to_string().as_bytes())?;
    file.sync_all()?;
    fs::rename(fresh, &ended.path)
}
