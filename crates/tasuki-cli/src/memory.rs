//! What starting needed, and idling does not, is given back: pages of the program that were run once (they come back by
//! themselves should they be run again), and room that the allocator keeps for more of the same.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

/// How long after the start nothing of it is needed any more.
const SETTLED: Duration = Duration::from_secs(10);
/// How often later: what comes once an hour, or on request, leaves as much behind.
const AGAIN: Duration = Duration::from_secs(600);

/// The program and the libraries it was started with: where they are in memory. Nothing of them is ever moved.
pub(crate) struct Program(Vec<Stretch>);

impl Program {
    /// As it is now, before anybody loads more.
    pub(crate) fn started() -> Self {
        Self(now().into_iter().map(|(stretch, _)| stretch).collect())
    }

    /// Gives back what is not needed, from time to time, for ever.
    pub(crate) async fn give_back_now_and_then(self) -> Infallible {
        tokio::time::sleep(SETTLED).await;
        let program = Arc::new(self);
        loop {
            // It is only ever a help: where it fails, the node is a little larger.
            let program = Arc::clone(&program);
            let _ = tokio::task::spawn_blocking(move || program.give_back()).await;
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn give_back(&self) {
        let untouched = |found: &&(Stretch, bool)| found.1 && self.0.contains(&found.0);
        for (stretch, _) in now().iter().filter(untouched) {
            forget(*stretch);
        }
        trim();
    }
}

/// A stretch of addresses: its first, and how many.
type Stretch = (usize, usize);

fn now() -> Vec<(Stretch, bool)> {
    read(&fs::read_to_string("/proc/self/smaps").unwrap_or_default())
}

/// The stretches that are read from files, are read only and always were; and whether some of each is in memory, all of
/// it as in its file. What the loader fills in was once for writing; what a debugger has changed is not as in its file.
fn read(smaps: &str) -> Vec<(Stretch, bool)> {
    let mut found = Vec::new();
    let mut current = None;
    let mut sizes = BTreeMap::new();
    for line in smaps.lines() {
        match line.split_once(':') {
            Some(("VmFlags", flags)) => {
                let size = |name: &str| sizes.get(name).copied();
                let written =
                    flags.split_whitespace().any(|flag| matches!(flag, "ac" | "wr" | "ht"));
                let as_in_file = size("Anonymous") == Some(0) && size("Swap") == Some(0);
                let untouched = as_in_file && size("Rss") > Some(0);
                found.extend(current.take().filter(|_| !written).map(|one| (one, untouched)));
            }
            Some((name, size)) if !name.contains(' ') => {
                let size = size.split_whitespace().next().and_then(|size| size.parse::<u64>().ok());
                sizes.extend(size.map(|size| (name, size)));
            }
            _ => {
                current = of_file(line);
                sizes.clear();
            }
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
fn forget((from, length): Stretch) {
    use rustix::mm::{Advice, madvise};
    let from = std::ptr::with_exposed_provenance_mut(from);
    // SAFETY: it belongs to the program or to a library that it was started with, so nobody ever unmaps it; and it is
    // private, read only, and never was anything else: whoever reads it next finds the same bytes, read from the file again.
    let _ = unsafe { madvise(from, length, Advice::LinuxDontNeed) };
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

    /// Program, what the loader filled in (in memory, and swapped out), one that a debugger changed, data, nobody's,
    /// shared, the kernel's, a library that was replaced on disk, and an emulator that knows nothing of it.
    const SMAPS: &str = "\
55e0-55f0 r-xp 00001000 fe:00 326279                     /usr/bin/a program
Rss:                  64 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
55f0-5600 r--p 00011000 fe:00 326279                     /usr/bin/a program
Rss:                   8 kB
Anonymous:             8 kB
Swap:                  0 kB
VmFlags: rd mr mw me ac
5600-5610 r--p 00011000 fe:00 326279                     /usr/bin/a program
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  8 kB
VmFlags: rd mr mw me ac
5610-5620 r-xp 00001000 fe:00 326279                     /usr/bin/a program
Rss:                  64 kB
Anonymous:             4 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
5620-5630 rw-p 00021000 fe:00 326279                     /usr/bin/a program
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd wr mr mw me ac
5630-5640 r--p 00000000 00:00 0
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me
5640-5650 r--s 00000000 fe:00 326280                     /var/shared
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me
7ff0-7ff1 r-xp 00000000 00:00 0                          [vdso]
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me de
7ff1-7ff3 r--p 00000000 fe:00 326281                     /usr/lib/c:d.so (deleted)
Rss:                   8 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me
7ff3-7ff4 r--p 00000000 fe:00 326281                     /usr/lib/emulated.so
Rss:                   0 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me
7ff4-7ff5 r--p 00000000 fe:00 326281                     /usr/lib/without_flags.so
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  0 kB
";

    #[test]
    fn only_what_is_as_it_is_in_its_file_is_given_back() {
        let told = [
            ((0x55e0, 0x10), true),
            ((0x5610, 0x10), false),
            ((0x7ff1, 2), true),
            ((0x7ff3, 1), false),
        ];
        assert_eq!(read(SMAPS), told);
    }

    #[test]
    fn what_was_given_back_is_there_again() {
        let said = || [1, 2, 3].map(|number: u32| format!("{number:?} {:?}", "x".to_uppercase()));
        let before = said();
        let program = Program::started();
        assert!(!program.0.is_empty(), "nothing is known of this program");
        program.give_back();
        assert_eq!(said(), before);
    }
}
