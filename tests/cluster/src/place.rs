//! Where things are, and waiting for what is to come.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use tokio::runtime::Runtime;

/// How long something that must come may take, on a machine that has much else to do.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How long between two looks.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// Waits until something is so.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(LOOK);
    }
}

/// A folder of its own that others may look into, because servers run as other users.
pub(crate) fn new_folder(what: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tasuki_{what}_{}_{count}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    // A test that was killed may have left one, and its process number may come again.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o711)).unwrap();
    folder
}

/// A port below the range from which the kernel hands out ports by itself. Each process looks in a part of its own,
/// so that tests that run at once do not take each other's; none is given twice.
pub fn free_port() -> u16 {
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    loop {
        let given = GIVEN.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + ((u64::from(std::process::id()) * 40 + given) % 12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The last lines of a log, for whoever has to find out what went wrong.
pub(crate) fn tail(file: &Path, lines: usize) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Where wires are served and the database is asked.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    })
}
