//! Secrets that live in files and are replaced there while we run.
//!
//! The files are read every few seconds and compared with what is in use: a mounted secret is swapped
//! by renaming links, which watchers of files miss. New content is used if it makes sense as a whole;
//! else it is refused, said once, and what was in use stays so.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::digest;
use tokio::task::JoinHandle;

use crate::security::Error;

/// How often files are looked at unless something else is said.
pub const LOOK_EVERY: Duration = Duration::from_secs(5);

/// More than any certificate or key: a file given by mistake does not fill the memory.
const FILE_BYTES: u64 = 1 << 20;

/// Something that is made of the content of files.
pub(crate) trait Secret: Sized + Send + Sync + 'static {
    /// What else is needed to make it.
    type Recipe: Send + Sync + 'static;

    /// Its files, always as many and in the same order.
    fn paths(recipe: &Self::Recipe) -> Vec<PathBuf>;

    /// Makes it, or says what is wrong with it.
    fn make(recipe: &Self::Recipe, contents: &[Vec<u8>]) -> Result<Self, Error>;

    /// Looks whether something is to be said about the one in use.
    fn look(&self, _recipe: &Self::Recipe) {}
}

/// A secret that follows its files.
pub(crate) struct Followed<S> {
    shared: Arc<Shared<S>>,
    task: JoinHandle<()>,
}

struct Shared<S> {
    current: ArcSwap<S>,
    generation: AtomicU64,
    refused: AtomicU64,
}

impl<S: Secret> Followed<S> {
    /// Reads the files, and from now on looks at them again and again. Needs a runtime.
    pub(crate) fn open(recipe: S::Recipe, every: Duration) -> Result<Self, Error> {
        let contents = read(&S::paths(&recipe))?;
        let first = S::make(&recipe, &contents)?;
        first.look(&recipe);
        let shared = Arc::new(Shared {
            current: ArcSwap::from_pointee(first),
            generation: AtomicU64::new(1),
            refused: AtomicU64::new(0),
        });
        let used = fingerprint(&contents);
        let follower = Follower { recipe, used, complaint: None, shared: shared.clone() };
        let task = tokio::spawn(follower.follow(every));
        Ok(Self { shared, task })
    }

    /// The one in use.
    pub(crate) fn current(&self) -> Arc<S> {
        self.shared.current.load_full()
    }

    /// How many there have been.
    pub(crate) fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// How many were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Acquire)
    }
}

impl<S> Drop for Followed<S> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Looks at the files and remembers what it saw.
struct Follower<S: Secret> {
    recipe: S::Recipe,
    used: Fingerprint,
    complaint: Option<String>,
    shared: Arc<Shared<S>>,
}

impl<S: Secret> Follower<S> {
    async fn follow(mut self, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            // A file may be on something slow.
            let looked = tokio::task::spawn_blocking(move || {
                self.turn();
                self
            });
            match looked.await {
                Ok(follower) => self = follower,
                Err(error) => return tracing::error!(%error, "files are no longer looked at"),
            }
        }
    }

    fn turn(&mut self) {
        match self.found() {
            Ok(None) => self.complaint = None,
            Ok(Some((fingerprint, secret))) => {
                self.shared.current.store(Arc::new(secret));
                self.shared.generation.fetch_add(1, Ordering::Release);
                (self.used, self.complaint) = (fingerprint, None);
                tracing::info!("new files are in use");
            }
            // Looked at again the next time: what is not valid yet may become so.
            Err(error) => {
                let complaint = error.to_string();
                if self.complaint.as_ref() != Some(&complaint) {
                    tracing::warn!(%error, "new files were refused; those read before stay in use");
                    self.shared.refused.fetch_add(1, Ordering::Release);
                }
                self.complaint = Some(complaint);
            }
        }
        self.shared.current.load().look(&self.recipe);
    }

    fn found(&self) -> Result<Option<(Fingerprint, S)>, Error> {
        let contents = read(&S::paths(&self.recipe))?;
        let fingerprint = fingerprint(&contents);
        if fingerprint == self.used {
            return Ok(None);
        }
        Ok(Some((fingerprint, S::make(&self.recipe, &contents)?)))
    }
}

fn read(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, Error> {
    paths.iter().map(|path| read_one(path)).collect()
}

fn read_one(path: &Path) -> Result<Vec<u8>, Error> {
    let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let mut content = Vec::new();
    file.take(FILE_BYTES + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 > FILE_BYTES {
        return Err(Error::invalid(path, "it is too large"));
    }
    Ok(content)
}

/// What was read is told apart without keeping a second copy of a private key.
type Fingerprint = [u8; 32];

fn fingerprint(contents: &[Vec<u8>]) -> Fingerprint {
    let mut hash = digest::Context::new(&digest::SHA256);
    for content in contents {
        hash.update(&(content.len() as u64).to_be_bytes());
        hash.update(content);
    }
    let mut fingerprint = Fingerprint::default();
    fingerprint.copy_from_slice(hash.finish().as_ref());
    fingerprint
}
