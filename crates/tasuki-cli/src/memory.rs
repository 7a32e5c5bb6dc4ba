//! What starting needed, and idling does not, is given back: pages of the program that were run once (they come back by
//! themselves should they be run again), and room that the allocator keeps for more of the same.

use std::convert::Infallible;
use std::fs;
use std::time::Duration;

/// How long after the start nothing of it is needed any more.
const SETTLED: Duration = Duration::from_secs(10);
/// How often later: what comes once an hour, or on request, leaves as much behind.
const AGAIN: Duration = Duration::from_secs(600);

/// Gives back what is not needed, from time to time, for ever.
pub(crate) async fn give_back_now_and_then() -> Infallible {
    tokio::time::sleep(SETTLED).await;
    loop {
        // It is only ever a help: where it fails, the node is a little larger.
        let _ = tokio::task::spawn_blocking(give_back).await;
        tokio::time::sleep(AGAIN).await;
    }
}

fn give_back() {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    forget(&pristine(&maps));
    trim();
}

/// A stretch of addresses: its first, and how many.
type Stretch = (usize, usize);

/// The stretches that are as they are in their files: read only, and no page of them was ever written by us (as those
/// are that the loader has filled in).
fn pristine(smaps: &str) -> Vec<Stretch> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        match line.split_once(':') {
            Some(("Anonymous", size)) => {
                let untouched = size.split_whitespace().next() == Some("0");
                found.extend(current.take().filter(|_| untouched));
            }
            Some((name, _)) if !name.contains(' ') => {}
            _ => current = of_file(line),
        }
    }
    found
}

/// `from-to permissions offset device inode path`: the stretch, if it is read from a file and for us alone.
fn of_file(line: &str) -> Option<Stretch> {
    let mut words = line.split_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let is_read_only = matches!(words.next()?, "r-xp" | "r--p");
    let is_file = words.nth(3)?.starts_with('/');
    let [from, to] = [from, to].map(|end| usize::from_str_radix(end, 16));
    let (from, to) = (from.ok()?, to.ok()?);
    (is_read_only && is_file).then_some((from, to.checked_sub(from)?))
}

#[allow(unsafe_code, reason = "addresses are given to the kernel")]
fn forget(stretches: &[Stretch]) {
    use rustix::mm::{Advice, madvise};
    for &(from, length) in stretches {
        let from = std::ptr::with_exposed_provenance_mut(from);
        // SAFETY: it is mapped from a file, private, read only and never written: whoever reads it next finds the same
        // bytes, read from the file again.
        let _ = unsafe { madvise(from, length, Advice::LinuxDontNeed) };
    }
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "the allocator is asked in its own language")]
fn trim() {
    // SAFETY: it may be called at any time, by any thread.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55e0-55f0 r-xp 00001000 fe:00 326279                     /usr/bin/a program
Size:                 64 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
55f0-5600 r--p 00011000 fe:00 326279                     /usr/bin/a program
Anonymous:             8 kB
VmFlags: rd mr mw me ac
5600-5610 rw-p 00021000 fe:00 326279                     /usr/bin/a program
Anonymous:             0 kB
5610-5620 r--p 00000000 00:00 0
Anonymous:             0 kB
5620-5630 r--s 00000000 fe:00 326280                     /var/shared
Anonymous:             0 kB
7ff0-7ff1 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
7ff1-7ff3 r--p 00000000 fe:00 326281                     /usr/lib/c:d.so (deleted)
Anonymous:             0 kB
";

    #[test]
    fn only_what_is_as_it_is_in_its_file_is_given_back() {
        assert_eq!(pristine(SMAPS), [(0x55e0, 0x10), (0x7ff1, 2)]);
    }

    #[test]
    fn what_was_given_back_is_there_again() {
        let said = [1, 2, 3].map(|number: u32| format!("{number:?} {:?}", "x".to_uppercase()));
        assert!(!pristine(&fs::read_to_string("/proc/self/smaps").unwrap()).is_empty());
        give_back();
        assert_eq!(
            said,
            [1, 2, 3].map(|number: u32| format!("{number:?} {:?}", "x".to_uppercase()))
        );
    }
}
