//! Captures the output of commands. At first it stays in the pipes: if the command ends soon and prints little, its
//! output is sent together with its exit. The pipes of all other commands are handed to the worker, which reads them.

use std::os::fd::OwnedFd;

use rustix::io::ioctl_fionread;
use rustix::pipe::{PipeFlags, pipe_with};

use super::{OutputText, ProcessOutput};

/// Maximum number of bytes of one stream that are sent together with the exit.
const MAX_INLINE_BYTES: u64 = 4 << 10;
/// How long the spawner holds the pipes of a command, in microseconds: most commands have ended by then.
const HOLD_MICROS: u64 = 20_000;
/// Extra hold time, in microseconds, for each command that runs: with many commands, each one takes longer. Only
/// commands that have printed little so far get it.
const HOLD_PER_COMMAND_MICROS: u64 = 1_000;
/// Maximum hold time in microseconds.
const MAX_HOLD_MICROS: u64 = 200_000;

/// Reading ends of the pipes for stdout and stderr.
pub(super) struct OutputPipes {
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// Pipes that the spawner holds and that are not read yet.
pub(super) struct BufferedPipes {
    pipes: OutputPipes,
    created_at: u64,
    next_check_at: u64,
}

impl BufferedPipes {
    pub(super) fn new(pipes: OutputPipes, now: u64) -> Self {
        Self { pipes, created_at: now, next_check_at: now + HOLD_MICROS }
    }

    /// When [`Self::hold_has_ended`] has to be checked next.
    pub(super) fn next_check_at(&self) -> u64 {
        self.next_check_at
    }

    /// Postpones the next check.
    pub(super) fn postpone_check(&mut self, until: u64) {
        self.next_check_at = self.next_check_at.max(until);
    }

    /// Whether the worker has to read them from now on, while `running` commands run.
    pub(super) fn hold_has_ended(&mut self, now: u64, running: usize) -> bool {
        if now < self.next_check_at {
            return false;
        }
        let extra = running as u64 * HOLD_PER_COMMAND_MICROS;
        let last = self.created_at + (HOLD_MICROS + extra).min(MAX_HOLD_MICROS);
        if now < last && is_small(&self.pipes) {
            self.next_check_at = last.min(now + HOLD_MICROS);
        }
        now >= self.next_check_at
    }

    pub(super) fn into_pipes(self) -> OutputPipes {
        self.pipes
    }
}

/// Creates the pipes of a command. Returns the reading ends and the writing ends; `None`: too many files are open.
pub(super) fn create_pipes() -> Option<(OutputPipes, [OwnedFd; 2])> {
    let (stdout, stdout_writer) = pipe_with(PipeFlags::CLOEXEC).ok()?;
    let (stderr, stderr_writer) = pipe_with(PipeFlags::CLOEXEC).ok()?;
    Some((OutputPipes { stdout, stderr }, [stdout_writer, stderr_writer]))
}

/// Reads the whole content of the pipes of an ended command. If it is too much, it returns the pipes themselves.
pub(super) fn read_all_if_small(pipes: OutputPipes) -> Result<ProcessOutput, OutputPipes> {
    match (small_byte_count(&pipes.stdout), small_byte_count(&pipes.stderr)) {
        (Some(stdout), Some(stderr)) => Ok(ProcessOutput {
            stdout: read_bytes(&pipes.stdout, stdout),
            stderr: read_bytes(&pipes.stderr, stderr),
        }),
        _ => Err(pipes),
    }
}

fn is_small(pipes: &OutputPipes) -> bool {
    small_byte_count(&pipes.stdout).is_some() && small_byte_count(&pipes.stderr).is_some()
}

fn small_byte_count(pipe: &OwnedFd) -> Option<usize> {
    ioctl_fionread(pipe).ok().filter(|bytes| *bytes <= MAX_INLINE_BYTES).map(|bytes| bytes as usize)
}

/// Reads so many bytes, which are in the pipe. No read blocks, because only the spawner reads from it.
fn read_bytes(pipe: &OwnedFd, bytes: usize) -> OutputText {
    let (mut read, mut text) = (0, vec![0; bytes]);
    while read < bytes {
        match rustix::io::read(pipe, &mut text[read..]) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    text.truncate(read);
    text.into()
}

impl From<OutputPipes> for Vec<OwnedFd> {
    fn from(pipes: OutputPipes) -> Self {
        vec![pipes.stdout, pipes.stderr]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_commands_are_held_longer_while_many_run() {
        let (pipes, _ends) = create_pipes().unwrap();
        let mut held = BufferedPipes::new(pipes, 0);
        assert!(!held.hold_has_ended(HOLD_MICROS - 1, 1));
        assert!(!held.hold_has_ended(HOLD_MICROS, 100), "100 commands run");
        assert!(!held.hold_has_ended(HOLD_MICROS + 99 * HOLD_PER_COMMAND_MICROS, 100));
        assert!(held.hold_has_ended(HOLD_MICROS + 100 * HOLD_PER_COMMAND_MICROS, 100));
        assert!(BufferedPipes::new(held.into_pipes(), 0).hold_has_ended(MAX_HOLD_MICROS, 10_000));
    }

    #[test]
    fn commands_that_print_much_are_not_held_longer() {
        let (pipes, [output, _errors]) = create_pipes().unwrap();
        rustix::io::write(&output, &vec![b'x'; MAX_INLINE_BYTES as usize + 1]).unwrap();
        let mut held = BufferedPipes::new(pipes, 0);
        assert!(!held.hold_has_ended(HOLD_MICROS - 1, 100));
        assert!(held.hold_has_ended(HOLD_MICROS, 100));
    }
}
