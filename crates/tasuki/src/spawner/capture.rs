//! What a command prints, as long as nobody else reads it: it stays in its pipes until the command has ended, and
//! is then told with the end. What does not end soon, or says much, is left to be read by the worker.

use std::os::fd::OwnedFd;

use rustix::io::ioctl_fionread;
use rustix::pipe::{PipeFlags, pipe_with};

use super::{Printed, Text};

/// No more than this of a stream, in bytes, is told with an end.
const LITTLE: u64 = 4 << 10;

/// The ends that are read: of its output and its errors.
pub(super) struct Pipes {
    output: OwnedFd,
    errors: OwnedFd,
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
