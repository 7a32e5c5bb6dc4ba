//! Values made from files that are replaced while the process runs, such as certificates and keys.
//!
//! The files are read every few seconds and compared with the content in use. Notifications of the file system are not used:
//! Kubernetes replaces a mounted secret by renaming links, which such notifications miss. New content is used only if it is
//! valid as a whole. Otherwise it is refused, one warning is logged, and the value in use stays.

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

/// Default interval at which certificate and key files are read again.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum size of a file: more than any certificate or key, so that a wrong path does not fill the memory.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A value made from the content of files.
pub(crate) trait FromFileContents: Sized + Send + Sync + 'static {
    /// Everything else that is needed to make the value.
    type Source: Send + Sync + 'static;

    /// Paths of the files. Their number and order never change.
    fn paths(source: &Self::Source) -> Vec<PathBuf>;

    /// Makes the value from the contents of the files, in the order of [`FromFileContents::paths`].
    fn from_contents(source: &Self::Source, contents: &[Vec<u8>]) -> Result<Self, Error>;

    /// Logs a warning if the value in use needs attention, such as a certificate that expires soon.
    fn log_warnings(&self, _source: &Self::Source) {}
}

/// A value made from files, together with the task that reads the files again.
pub(crate) struct ReloadingValue<T> {
    shared: Arc<Shared<T>>,
    task: JoinHandle<()>,
}

struct Shared<T> {
    current: ArcSwap<T>,
    generation: AtomicU64,
    refused: AtomicU64,
}

impl<T: FromFileContents> ReloadingValue<T> {
    /// Reads the files now, and from then on at every interval. Must be called within a Tokio runtime.
    pub(crate) fn open(source: T::Source, interval: Duration) -> Result<Self, Error> {
        let contents = read_files(&T::paths(&source))?;
        let first = T::from_contents(&source, &contents)?;
        first.log_warnings(&source);
        let shared = Arc::new(Shared {
            current: ArcSwap::from_pointee(first),
            generation: AtomicU64::new(1),
            refused: AtomicU64::new(0),
        });
        let in_use = fingerprint(&contents);
        let reloader = Reloader { source, in_use, last_error: None, shared: shared.clone() };
        let task = tokio::spawn(reloader.reload_forever(interval));
        Ok(Self { shared, task })
    }

    /// The value in use.
    pub(crate) fn current(&self) -> Arc<T> {
        self.shared.current.load_full()
    }

    /// Number of values that have been in use, including the current one.
    pub(crate) fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Number of times that new content was refused.
    pub(crate) fn refused_reloads(&self) -> u64 {
        self.shared.refused.load(Ordering::Acquire)
    }
}

impl<T> Drop for ReloadingValue<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// State of the task that reads the files again.
struct Reloader<T: FromFileContents> {
    source: T::Source,
    /// Fingerprint of the content in use.
    in_use: Fingerprint,
    /// Error of the last attempt, so that the same error is logged only once.
    last_error: Option<String>,
    shared: Arc<Shared<T>>,
}

impl<T: FromFileContents> Reloader<T> {
    async fn reload_forever(mut self, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            // Reading may block for long, for example on a network file system.
            let reloaded = tokio::task::spawn_blocking(move || {
                self.reload();
                self
            });
            match reloaded.await {
                Ok(reloader) => self = reloader,
                Err(error) => {
                    return tracing::error!(%error, "certificate and key files are no longer read again");
                }
            }
        }
    }

    fn reload(&mut self) {
        match self.read_if_changed() {
            Ok(None) => self.last_error = None,
            Ok(Some((fingerprint, value))) => {
                self.shared.current.store(Arc::new(value));
                self.shared.generation.fetch_add(1, Ordering::Release);
                (self.in_use, self.last_error) = (fingerprint, None);
                tracing::info!("new certificate or key files are in use");
            }
            // Tried again at the next interval, because content that is not valid yet may become valid.
            Err(error) => {
                let message = error.to_string();
                if self.last_error.as_ref() != Some(&message) {
                    tracing::warn!(%error, "new certificate or key files were refused; the previous ones stay in use");
                    self.shared.refused.fetch_add(1, Ordering::Release);
                }
                self.last_error = Some(message);
            }
        }
        self.shared.current.load().log_warnings(&self.source);
    }

    fn read_if_changed(&self) -> Result<Option<(Fingerprint, T)>, Error> {
        let contents = read_files(&T::paths(&self.source))?;
        let fingerprint = fingerprint(&contents);
        if fingerprint == self.in_use {
            return Ok(None);
        }
        Ok(Some((fingerprint, T::from_contents(&self.source, &contents)?)))
    }
}

fn read_files(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, Error> {
    paths.iter().map(|path| read_file(path)).collect()
}

fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let mut content = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 > MAX_FILE_BYTES {
        return Err(Error::invalid(
            path,
            format!("the file is larger than {MAX_FILE_BYTES} bytes"),
        ));
    }
    Ok(content)
}

/// Hash of the contents, to detect changes without a second copy of a private key in memory.
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
