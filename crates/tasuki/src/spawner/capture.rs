//! What a command prints, as long as nobody else reads it: it stays in its pipes until the command has ended, and
//! is then told with the end. What does not end soon, or says much, is left to be read by the worker.

use std::os::fd::OwnedFd;

use rustix::io::ioctl_fionread;
use rustix::pipe::{PipeFlags, pipe_with};

use super::{Printed, Text};

/// No more than this of a stream, in bytes, is told with an end.
const LITTLE: u64 = 4 << 10;
/// How long nobody reads what a command prints, in microseconds: most are over by then.
const YOUNG: u64 = 20_000;
/// So much longer for each that runs beside it, since then they all take longer, and so long at most. Only what has said
/// little so far has this time.
const YOUNG_BESIDE: u64 = 1_000;
const LONGEST_YOUNG: u64 = 200_000;

/// The ends that are read: of its output and its errors.
pub(super) struct Pipes {
    output: OwnedFd,
    errors: OwnedFd,
}

/// Pipes that nobody reads yet.
pub(super) struct Held {
    pipes: Pipes,
    since: u64,
    until: u64,
}

impl Held {
    pub(super) fn new(pipes: Pipes, now: u64) -> Self {
        Self { pipes, since: now, until: now + YOUNG }
    }

    /// When it is to be asked next whether they are to be read.
    pub(super) fn until(&self) -> u64 {
        self.until
    }

    /// Not before then.
    pub(super) fn put_off(&mut self, until: u64) {
        self.until = self.until.max(until);
    }

    /// Whether somebody is to read them now, where so many run.
    pub(super) fn is_over(&mut self, now: u64, running: usize) -> bool {
        if now < self.until {
            return false;
        }
        let beside = running as u64 * YOUNG_BESIDE;
        let last = self.since + (YOUNG + beside).min(LONGEST_YOUNG);
        if now < last && holds_little(&self.pipes) {
            self.until = last.min(now + YOUNG);
        }
        now >= self.until
    }

    pub(super) fn pipes(self) -> Pipes {
        self.pipes
    }
}

/// Pipes for a command, and their other ends. `None`: too many files are open.
pub(super) fn pipes() -> Option<(Pipes, [OwnedFd; 2])> {
    let (output, output_end) = pipe_with(PipeFlags::CLOEXEC).ok()?;
    let (errors, errors_end) = pipe_with(PipeFlags::CLOEXEC).ok()?;
    Some((Pipes { output, errors }, [output_end, errors_end]))
}

/// All that is in them, once nobody writes there any more; or the pipes themselves where that is much.
pub(super) fn read(pipes: Pipes) -> Result<Printed, Pipes> {
    match (little(&pipes.output), little(&pipes.errors)) {
        (Some(output), Some(errors)) => {
            Ok(Printed { output: all(&pipes.output, output), errors: all(&pipes.errors, errors) })
        }
        _ => Err(pipes),
    }
}

fn holds_little(pipes: &Pipes) -> bool {
    little(&pipes.output).is_some() && little(&pipes.errors).is_some()
}

fn little(pipe: &OwnedFd) -> Option<usize> {
    ioctl_fionread(pipe).ok().filter(|bytes| *bytes <= LITTLE).map(|bytes| bytes as usize)
}

/// So much is there, and nobody else takes it: no read waits.
fn all(pipe: &OwnedFd, bytes: usize) -> Text {
    let (mut read, mut text) = (0, vec![0; bytes]);
    while read < bytes {
        match rustix::io::read(pipe, &mut text[read..]) {
            Ok(0) => break,
            Ok(some) => read += some,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    text.truncate(read);
    text.into()
}

impl From<Pipes> for Vec<OwnedFd> {
    fn from(pipes: Pipes) -> Self {
        vec![pipes.output, pipes.errors]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_said_little_is_given_longer_where_many_run() {
        let (pipes, _ends) = pipes().unwrap();
        let mut held = Held::new(pipes, 0);
        assert!(!held.is_over(YOUNG - 1, 1));
        assert!(!held.is_over(YOUNG, 100), "a hundred run");
        assert!(!held.is_over(YOUNG + 99 * YOUNG_BESIDE, 100));
        assert!(held.is_over(YOUNG + 100 * YOUNG_BESIDE, 100));
        assert!(Held::new(held.pipes(), 0).is_over(LONGEST_YOUNG, 10_000));
    }

    #[test]
    fn who_says_much_is_read_all_the_same() {
        let (pipes, [output, _errors]) = pipes().unwrap();
        rustix::io::write(&output, &vec![b'x'; LITTLE as usize + 1]).unwrap();
        let mut held = Held::new(pipes, 0);
        assert!(!held.is_over(YOUNG - 1, 100));
        assert!(held.is_over(YOUNG, 100));
    }
}
