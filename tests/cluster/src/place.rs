//! Where things are, and waiting for what is to come.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};
use std::{fs, thread};

use tokio::runtime::Runtime;

/// How long something that must come may take, on a machine that has much else to do.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// More ports than any cluster needs.
const OURS_AT_ONCE: usize = 256;
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

/// What the folders are called that are made here.
const FOLDERS: &str = "tasuki_kit";
/// In every folder: the process that it belongs to.
const OWNER: &str = "owner";

/// A folder of its own that others may look into, because servers run as other users.
pub(crate) fn new_folder(what: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (count, owner) = (COUNT.fetch_add(1, Ordering::Relaxed), std::process::id());
    let folder = std::env::temp_dir().join(format!("{FOLDERS}_{what}_{owner}_{count}"));
    // A test that was killed may have left one, and its process number may come again.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o711)).unwrap();
    fs::write(folder.join(OWNER), owner.to_string()).unwrap();
    folder
}

/// A folder is left to whoever wants to look into it.
pub(crate) fn keep(folder: &Path) {
    let _ = fs::remove_file(folder.join(OWNER));
}

/// Removes the folders that were left by whoever was ended before it could: by Ctrl-C, say.
pub fn sweep() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let folder = entry.path();
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(FOLDERS));
        let owner = fs::read_to_string(folder.join(OWNER)).ok().filter(|_| ours);
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// A port below the range from which the kernel hands out ports by itself. It is this process's until that ends, or has
/// asked for many more: others that run at once see a socket by its name, which needs no file and goes with its process.
/// Each begins to look somewhere else.
pub fn free_port() -> u16 {
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    static OURS: Mutex<VecDeque<UnixListener>> = Mutex::new(VecDeque::new());
    loop {
        let given = GIVEN.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + ((u64::from(std::process::id()) * 40 + given) % 12_000) as u16;
        let name = SocketAddr::from_abstract_name(format!("tasuki test port {port}")).unwrap();
        let Ok(ours) = UnixListener::bind_addr(&name) else { continue };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            let mut all = OURS.lock().unwrap();
            all.push_back(ours);
            if all.len() > OURS_AT_ONCE {
                all.pop_front();
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_somebodys_is_not_given_to_another() {
        let port = free_port();
        let name = SocketAddr::from_abstract_name(format!("tasuki test port {port}")).unwrap();
        assert!(UnixListener::bind_addr(&name).is_err(), "another process would find it taken");
        assert_ne!(free_port(), port);
    }

    #[test]
    fn what_nobody_owns_any_more_is_swept_and_what_is_kept_is_not() {
        let [live, dead, kept] = ["live", "dead", "kept"].map(new_folder);
        // No process has this number.
        fs::write(dead.join(OWNER), u32::MAX.to_string()).unwrap();
        keep(&kept);
        sweep();
        assert_eq!([&live, &dead, &kept].map(|folder| folder.exists()), [true, false, true]);
        fs::remove_dir(kept).unwrap();
        fs::remove_dir_all(live).unwrap();
    }
}
