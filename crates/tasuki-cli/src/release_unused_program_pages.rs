//! Returns memory that only the start of the process needed to the kernel: unmodified pages of the program and its
//! libraries (the kernel reads them again from their file on the next access), and free memory of the allocator.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

/// Delay of the first trim: by then the code and memory of the start are no longer in use.
const FIRST_TRIM_DELAY: Duration = Duration::from_secs(10);
/// Interval of later trims: hourly work and requests leave unused pages behind too.
const TRIM_INTERVAL: Duration = Duration::from_secs(600);

/// The address ranges of the program and of the libraries that it was started with. They are never unmapped or moved.
pub(crate) struct ProgramMemoryTrimmer(Vec<AddressRange>);

impl ProgramMemoryTrimmer {
    /// Reads the mappings of this process. Call it at the start, before further libraries are loaded.
    pub(crate) fn read() -> Self {
        Self(read_mappings().into_iter().map(|(range, _)| range).collect())
    }

    /// Trims the memory after [`FIRST_TRIM_DELAY`] and then every [`TRIM_INTERVAL`], for ever.
    pub(crate) async fn trim_periodically(self) -> Infallible {
        tokio::time::sleep(FIRST_TRIM_DELAY).await;
        let program = Arc::new(self);
        loop {
            // Best effort: if it fails, the process only uses a little more memory.
            let program = Arc::clone(&program);
            let _ = tokio::task::spawn_blocking(move || program.trim()).await;
            tokio::time::sleep(TRIM_INTERVAL).await;
        }
    }

    fn trim(&self) {
        let untouched = |entry: &&(AddressRange, bool)| entry.1 && self.0.contains(&entry.0);
        for (range, _) in read_mappings().iter().filter(untouched) {
            drop_pages(*range);
        }
        trim_allocator();
    }
}

/// An address range: first address and length in bytes.
type AddressRange = (usize, usize);

fn read_mappings() -> Vec<(AddressRange, bool)> {
    parse_smaps(&fs::read_to_string("/proc/self/smaps").unwrap_or_default())
}

/// Parses `/proc/self/smaps`. Returns the ranges that are private file mappings, are read-only and never were writable,
/// each with a flag: some of its pages are in memory, and none of them was modified. Ranges that the loader filled in
/// were writable once, and pages that a debugger changed are modified: both must not be dropped.
fn parse_smaps(smaps: &str) -> Vec<(AddressRange, bool)> {
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
                current = parse_mapping(line);
                sizes.clear();
            }
        }
    }
    found
}

/// Parses a header line (`from-to permissions offset device inode path`). Returns the range of a private read-only file
/// mapping.
fn parse_mapping(line: &str) -> Option<AddressRange> {
    let mut columns = line.split_whitespace();
    let (from, to) = columns.next()?.split_once('-')?;
    let is_read_only = matches!(columns.next()?, "r-xp" | "r--p");
    let is_file = columns.nth(3)?.starts_with('/');
    let [from, to] = [from, to].map(|end| usize::from_str_radix(end, 16));
    let (from, to) = (from.ok()?, to.ok()?);
    (is_read_only && is_file).then_some((from, to.checked_sub(from)?))
}

#[allow(unsafe_code, reason = "madvise takes raw addresses")]
fn drop_pages((from, length): AddressRange) {
    use rustix::mm::{Advice, madvise};
    let from = std::ptr::with_exposed_provenance_mut(from);
    // SAFETY: the range belongs to the program or to a library that it was started with, so it is never unmapped. It is
    // private and read-only and never was writable, so the next access reads the same bytes from the file again.
    let _ = unsafe { madvise(from, length, Advice::LinuxDontNeed) };
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "malloc_trim is a C function")]
fn trim_allocator() {
    // SAFETY: malloc_trim may be called at any time, by any thread.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn trim_allocator() {}

#[cfg(test)]
mod tests {
    use super::*;

    /// In this order: program code; ranges that the loader filled in (in memory, and swapped out); code that a debugger
    /// changed; data; an anonymous range; a shared mapping; a kernel range; a library that was replaced on disk; a range
    /// under an emulator that reports no sizes; a range without flags.
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
    fn only_unmodified_file_pages_are_dropped() {
        let expected = [
            ((0x55e0, 0x10), true),
            ((0x5610, 0x10), false),
            ((0x7ff1, 2), true),
            ((0x7ff3, 1), false),
        ];
        assert_eq!(parse_smaps(SMAPS), expected);
    }

    #[test]
    fn dropped_pages_are_read_again() {
        let render = || [1, 2, 3].map(|number: u32| format!("{number:?} {:?}", "x".to_uppercase()));
        let before = render();
        let program = ProgramMemoryTrimmer::read();
        assert!(!program.0.is_empty(), "no mapping of this program was found");
        program.trim();
        assert_eq!(render(), before);
    }
}
