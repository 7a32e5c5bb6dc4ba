//! Support for tests: waiting for a condition, temporary folders, free ports, and a shared tokio runtime.

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

/// Maximum time to wait for a condition that must become true; long, for busy machines.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum number of ports that this process reserves at a time: more than any cluster needs.
const MAX_RESERVED_PORTS: usize = 256;
/// Polling interval of [`wait_until`].
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Polls until `poll` returns a value, and returns it. Panics after [`WAIT_TIMEOUT`]; `what` completes "waiting until".
#[track_caller]
pub fn wait_until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        thread::sleep(POLL_INTERVAL);
    }
}

/// Prefix of the names of all folders that this module creates.
const FOLDER_PREFIX: &str = "tasuki_kit";
/// File in each folder with the process id of its owner.
const OWNER_FILE: &str = "owner";

/// Creates a temporary folder that other users may enter, because the servers run as other users.
pub(crate) fn new_folder(what: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (count, owner) = (COUNT.fetch_add(1, Ordering::Relaxed), std::process::id());
    let folder = std::env::temp_dir().join(format!("{FOLDER_PREFIX}_{what}_{owner}_{count}"));
    // A killed test may have left a folder behind, and its process id may be reused.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o711)).unwrap();
    fs::write(folder.join(OWNER_FILE), owner.to_string()).unwrap();
    folder
}

/// Prevents [`remove_stale_folders`] from removing a folder: it no longer has an owner.
pub(crate) fn keep_folder(folder: &Path) {
    let _ = fs::remove_file(folder.join(OWNER_FILE));
}

/// Removes the folders of processes that ended without removing them, for example after Ctrl-C.
pub fn remove_stale_folders() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let folder = entry.path();
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(FOLDER_PREFIX));
        let owner = fs::read_to_string(folder.join(OWNER_FILE)).ok().filter(|_| ours);
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Finds a free port below the kernel's range of ephemeral ports and reserves it for this process, until the process
/// ends or has reserved `MAX_RESERVED_PORTS` more. The reservation is an abstract Unix socket with the port in its
/// name: concurrent test processes see it, and it disappears with the process. Each process starts its search at
/// another port.
pub fn free_port() -> u16 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static RESERVED: Mutex<VecDeque<UnixListener>> = Mutex::new(VecDeque::new());
    loop {
        let count = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + ((u64::from(std::process::id()) * 40 + count) % 12_000) as u16;
        let name = SocketAddr::from_abstract_name(format!("tasuki test port {port}")).unwrap();
        let Ok(ours) = UnixListener::bind_addr(&name) else { continue };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            let mut all = RESERVED.lock().unwrap();
            all.push_back(ours);
            if all.len() > MAX_RESERVED_PORTS {
                all.pop_front();
            }
            return port;
        }
    }
}

/// The last lines of a log file, for error messages.
pub(crate) fn last_lines(file: &Path, lines: usize) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// The tokio runtime that serves the proxies and runs store queries.
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
    fn a_reserved_port_is_not_returned_again() {
        let port = free_port();
        let name = SocketAddr::from_abstract_name(format!("tasuki test port {port}")).unwrap();
        assert!(
            UnixListener::bind_addr(&name).is_err(),
            "another process must see that the port is reserved"
        );
        assert_ne!(free_port(), port);
    }

    #[test]
    fn folders_without_a_living_owner_are_removed_but_kept_ones_stay() {
        let [live, dead, kept] = ["live", "dead", "kept"].map(new_folder);
        // No process has this number.
        fs::write(dead.join(OWNER_FILE), u32::MAX.to_string()).unwrap();
        keep_folder(&kept);
        remove_stale_folders();
        assert_eq!([&live, &dead, &kept].map(|folder| folder.exists()), [true, false, true]);
        fs::remove_dir(kept).unwrap();
        fs::remove_dir_all(live).unwrap();
    }
}
