//! Messages over a socket: a length, then JSON. Open files travel beside them.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message: arguments and environment of a command cannot be longer either.
const LONGEST: usize = 8 << 20;
/// The most open files that travel with one message.
const MOST_FILES: usize = 2;

/// A message as it is sent.
pub(super) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message)?;
    if body.len() > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "an order is too long"));
    }
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(body);
    Ok(bytes)
}

/// Sends encoded messages; waits until they are on their way. The files go with the first.
pub(super) fn send(
    socket: &UnixStream,
    messages: &[u8],
    mut files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut rest = messages;
    while !rest.is_empty() {
        match send_some(socket, rest, files, SendFlags::empty()) {
            Ok(sent) => {
                rest = &rest[sent..];
                files = &[];
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn send_some(
    socket: &UnixStream,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(rustix::io::Errno::TOOMANYREFS);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut beside, flags)
}

/// What has come and was not read yet.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// How much of that was read.
    read: usize,
    files: VecDeque<Vec<OwnedFd>>,
}

impl Inbox {
    /// Takes in what is there; waits if nothing is. `false`: the other side is gone.
    pub(super) fn fill(&mut self, socket: &UnixStream) -> io::Result<bool> {
        let mut buffer = [0; 64 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = loop {
            match rustix::net::recvmsg(
                socket.as_fd(),
                &mut [IoSliceMut::new(&mut buffer)],
                &mut beside,
                flags,
            ) {
                Err(rustix::io::Errno::INTR) => {}
                got => break got?,
            }
        };
        // The files of one message at most: the socket does not mix them.
        let mut came = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                came.extend(files);
            }
        }
        // Where this process has too many open, they are lost on the way, but not that there were some.
        if !came.is_empty() || got.flags.contains(ReturnFlags::CTRUNC) {
            self.files.push_back(came);
        }
        self.bytes.drain(..std::mem::take(&mut self.read));
        self.bytes.extend_from_slice(&buffer[..got.bytes]);
        Ok(got.bytes > 0)
    }

    /// The next whole message.
    pub(super) fn next<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let unread = &self.bytes[self.read..];
        let Some((length, rest)) = unread.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let message = serde_json::from_slice(body)?;
        self.read += 4 + length;
        Ok(Some(message))
    }

    /// The open files that came with the next message that had some; those that were lost are missing.
    pub(super) fn files(&mut self) -> Vec<OwnedFd> {
        self.files.pop_front().unwrap_or_default()
    }
}

/// Messages that wait to be sent. Whoever keeps deadlines must not wait for a reader that has stopped.
#[derive(Default)]
pub(super) struct Outbox {
    parts: VecDeque<Part>,
    /// How much of the first is sent.
    sent: usize,
}

/// Messages in a row, and the open files that travel with the first of them.
#[derive(Default)]
struct Part {
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(super) fn push(&mut self, message: &impl Serialize) -> io::Result<()> {
        let bytes = encode(message)?;
        match self.parts.back_mut() {
            Some(last) => last.bytes.extend(bytes),
            None => self.parts.push_back(Part { bytes, files: Vec::new() }),
        }
        Ok(())
    }

    pub(super) fn push_with(
        &mut self,
        message: &impl Serialize,
        files: Vec<OwnedFd>,
    ) -> io::Result<()> {
        self.parts.push_back(Part { bytes: encode(message)?, files });
        Ok(())
    }

    /// Sends what can be sent without waiting.
    pub(super) fn flush(&mut self, socket: &UnixStream) -> io::Result<()> {
        while let Some(part) = self.parts.front() {
            // They go with the first byte, once.
            let files = if self.sent == 0 { &part.files[..] } else { &[] };
            let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
            match send_some(socket, &part.bytes[self.sent..], &files, SendFlags::DONTWAIT) {
                Ok(sent) if self.sent + sent < part.bytes.len() => self.sent += sent,
                Ok(_) => {
                    self.parts.pop_front();
                    self.sent = 0;
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
