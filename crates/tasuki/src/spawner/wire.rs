//! Framing of messages on a Unix socket: a length (4 bytes, little endian), then JSON. Open files are sent beside a
//! message (`SCM_RIGHTS`).

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

/// Maximum size of a message in bytes. Arguments and environment of a command cannot be larger either.
const MAX_MESSAGE_BYTES: usize = 8 << 20;
/// Maximum number of open files that are sent with one message.
const MAX_FILES_PER_MESSAGE: usize = 2;

/// Encodes a message.
pub(super) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message)?;
    if body.len() > MAX_MESSAGE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a request is too long"));
    }
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(body);
    Ok(bytes)
}

/// Sends encoded messages and waits until the socket has accepted all bytes. The files are sent with the first message.
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
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES_PER_MESSAGE))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(rustix::io::Errno::TOOMANYREFS);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)
}

/// Received bytes and files that are not read yet.
#[derive(Default)]
pub(super) struct ReceiveBuffer {
    bytes: Vec<u8>,
    /// Number of those bytes that are read.
    read: usize,
    files: VecDeque<Vec<OwnedFd>>,
}

impl ReceiveBuffer {
    /// Receives what is there, and waits if there is nothing. `false`: the other side has closed the socket.
    pub(super) fn fill(&mut self, socket: &UnixStream) -> io::Result<bool> {
        let mut buffer = [0; 64 << 10];
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES_PER_MESSAGE))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            match rustix::net::recvmsg(
                socket.as_fd(),
                &mut [IoSliceMut::new(&mut buffer)],
                &mut ancillary,
                flags,
            ) {
                Err(rustix::io::Errno::INTR) => {}
                received => break received?,
            }
        };
        // These are the files of at most one message: the kernel does not merge the files of two messages.
        let mut received_files = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                received_files.extend(files);
            }
        }
        // If this process has too many open files, the kernel drops the files but reports that there were some.
        if !received_files.is_empty() || received.flags.contains(ReturnFlags::CTRUNC) {
            self.files.push_back(received_files);
        }
        self.bytes.drain(..std::mem::take(&mut self.read));
        self.bytes.extend_from_slice(&buffer[..received.bytes]);
        Ok(received.bytes > 0)
    }

    /// Returns the next complete message.
    pub(super) fn next_message<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let unread = &self.bytes[self.read..];
        let Some((length, rest)) = unread.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_MESSAGE_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let message = serde_json::from_slice(body)?;
        self.read += 4 + length;
        Ok(Some(message))
    }

    /// Takes the open files of the next message that had some. Files that the kernel dropped are missing.
    pub(super) fn take_files(&mut self) -> Vec<OwnedFd> {
        self.files.pop_front().unwrap_or_default()
    }
}

/// Messages that wait to be sent. The spawner enforces deadlines, so it must not block on a worker that does not read.
#[derive(Default)]
pub(super) struct SendQueue {
    queue: VecDeque<QueuedBytes>,
    /// Number of bytes of the first entry that are sent.
    sent: usize,
}

/// Encoded messages, and the open files that are sent with the first of them.
#[derive(Default)]
struct QueuedBytes {
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl SendQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn push(&mut self, message: &impl Serialize) -> io::Result<()> {
        let bytes = encode(message)?;
        match self.queue.back_mut() {
            Some(last) => last.bytes.extend(bytes),
            None => self.queue.push_back(QueuedBytes { bytes, files: Vec::new() }),
        }
        Ok(())
    }

    pub(super) fn push_with_files(
        &mut self,
        message: &impl Serialize,
        files: Vec<OwnedFd>,
    ) -> io::Result<()> {
        self.queue.push_back(QueuedBytes { bytes: encode(message)?, files });
        Ok(())
    }

    /// Sends as much as possible without waiting.
    pub(super) fn flush(&mut self, socket: &UnixStream) -> io::Result<()> {
        while let Some(part) = self.queue.front() {
            // The files are sent with the first byte, and only once.
            let files = if self.sent == 0 { &part.files[..] } else { &[] };
            let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
            match send_some(socket, &part.bytes[self.sent..], &files, SendFlags::DONTWAIT) {
                Ok(sent) if self.sent + sent < part.bytes.len() => self.sent += sent,
                Ok(_) => {
                    self.queue.pop_front();
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
