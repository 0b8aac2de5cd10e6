//! Sends messages. They are appended to a buffer, and each send takes as many as the socket accepts. Descriptors go with the
//! first byte of their message.
//!
//! QEMU ends the session when it reads less than a whole header ("short read of header"). The kernel may split a large send
//! anywhere, so each send holds at most one kernel buffer of small messages.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nicety_peer::{Table, Tally};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::{Deserialize, Serialize};

use crate::codec::{HEADER_SIZE, Header, MAX_MESSAGE_FDS};
use crate::counters::Counters;
use crate::error::SessionError;

/// Pending bytes from which no further request is handled (backpressure). One more reply may still be added.
const HIGH_WATER: usize = 128 * 1024;
/// Most bytes of several messages sent together: Linux does not split such a send.
const TOGETHER: usize = 16 * 1024;

/// Descriptors to send with a message.
type Fds = Vec<Arc<OwnedFd>>;

/// Bytes that are not sent, and the descriptors to send with them by index in a [`Table`]. Offsets count from the first unsent byte.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedOutbound {
    unsent: Vec<u8>,
    /// The end of each message.
    ends: Vec<u64>,
    /// The start of each message with descriptors, and these.
    fds: Vec<(u64, Vec<u32>)>,
}

/// The sending half.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    buffer: Vec<u8>,
    sent: usize,
    /// The end of each message that is not completely sent.
    ends: VecDeque<usize>,
    /// The start of each message with descriptors.
    fds: VecDeque<(usize, Fds)>,
    /// The start of the last message.
    last_begin: usize,
}

impl Outbound {
    /// The messages that are not completely sent.
    pub fn save(&self, table: &mut Table) -> Result<SavedOutbound, Errno> {
        let from_sent = |at: usize| at.saturating_sub(self.sent) as u64;
        let fds = |(at, fds): &(usize, Fds)| {
            let indexes = fds.iter().map(|fd| table.put(fd)).collect::<Result<Vec<u32>, Errno>>();
            Ok((from_sent(*at), indexes?))
        };
        let fds = self.fds.iter().map(fds).collect::<Result<_, Errno>>()?;
        let unsent = self.buffer.get(self.sent..).unwrap_or_default().to_vec();
        Ok(SavedOutbound { unsent, ends: self.ends.iter().map(|end| from_sent(*end)).collect(), fds })
    }

    /// Goes on where another process stopped. `None` if the state is impossible.
    pub fn restore(saved: SavedOutbound, table: &mut Table) -> Option<Outbound> {
        let SavedOutbound { unsent, ends, fds } = saved;
        let within = |at: u64| usize::try_from(at).ok().filter(|at| *at <= unsent.len());
        let ends = ends.into_iter().map(within).collect::<Option<VecDeque<usize>>>()?;
        let one = |(at, fds): (u64, Vec<u32>)| {
            let fds: Option<Fds> =
                fds.into_iter().map(|index| Some(Arc::new(table.get(index)?.try_clone_to_owned().ok()?))).collect();
            Some((within(at)?, fds?))
        };
        let fds = fds.into_iter().map(one).collect::<Option<_>>()?;
        let is_whole = ends.iter().is_sorted() && ends.back().copied().unwrap_or(0) == unsent.len();
        is_whole.then_some(Outbound { buffer: unsent, sent: 0, ends, fds, last_begin: 0 })
    }

    /// Whether bytes are pending.
    pub fn is_pending(&self) -> bool {
        self.sent < self.buffer.len()
    }

    /// Whether no further message should be added.
    pub fn is_full(&self) -> bool {
        self.buffer.len() - self.sent >= HIGH_WATER
    }

    /// Appends a message whose payload `write` appends. If `write` fails, nothing is added. Fills in the header's size.
    pub fn push<T, E>(&mut self, mut header: Header, write: impl FnOnce(&mut Vec<u8>) -> Result<T, E>) -> Result<T, E> {
        let at = self.buffer.len();
        header.size = 0;
        header.encode(&mut self.buffer);
        match write(&mut self.buffer) {
            Ok(value) => {
                let end = self.buffer.len();
                let size = ((end - at) as u32).to_ne_bytes();
                if let Some(place) = self.buffer.get_mut(at + 4..at + 8) {
                    place.copy_from_slice(&size);
                }
                self.ends.push_back(end);
                self.last_begin = at;
                Ok(value)
            }
            Err(error) => {
                self.buffer.truncate(at);
                Err(error)
            }
        }
    }

    /// Appends a message whose payload cannot fail.
    pub fn put(&mut self, header: Header, write: impl FnOnce(&mut Vec<u8>)) {
        let written: Result<(), Infallible> = self.push(header, |out| {
            write(out);
            Ok(())
        });
        match written {
            Ok(()) => {}
        }
    }

    /// Sends `fds` with the last message. Call it before anything is sent. Sends at most [`MAX_MESSAGE_FDS`].
    pub fn attach(&mut self, mut fds: Fds) {
        fds.truncate(MAX_MESSAGE_FDS);
        self.fds.push_back((self.last_begin, fds));
    }

    /// The bytes that are not sent, and whether no descriptors go with them.
    pub fn unsent(&self) -> (&[u8], bool) {
        (self.buffer.get(self.sent..).unwrap_or_default(), self.fds.is_empty())
    }

    /// Cuts whole answers that are not sent down to their headers, if `cuts` says so of a header. The rest of a message whose first
    /// bytes were sent stays.
    pub fn cut(&mut self, mut cuts: impl FnMut(&Header) -> bool) {
        let (buffer, mut kept) = (std::mem::take(&mut self.buffer), Vec::new());
        kept.extend_from_slice(buffer.get(..self.sent).unwrap_or_default());
        let mut at = self.sent;
        for end in &mut self.ends {
            let part = buffer.get(at..*end).unwrap_or_default();
            let Some(messages) = whole_messages(part) else {
                // The rest of a message.
                at = *end;
                kept.extend_from_slice(part);
                *end = kept.len();
                continue;
            };
            for (header, bytes) in messages {
                let new_at = kept.len();
                if header.is_reply() && bytes.len() > HEADER_SIZE && cuts(&header) {
                    self.fds.retain(|(of, _)| *of != at);
                    Header { size: HEADER_SIZE as u32, ..header }.encode(&mut kept);
                } else {
                    self.fds.iter_mut().filter(|(of, _)| *of == at).for_each(|(of, _)| *of = new_at);
                    kept.extend_from_slice(bytes);
                }
                at += bytes.len();
            }
            *end = kept.len();
        }
        self.buffer = kept;
    }

    /// Appends what another process has not sent of its messages.
    pub fn put_rest(&mut self, rest: &[u8]) {
        if !rest.is_empty() {
            self.buffer.extend_from_slice(rest);
            self.ends.push_back(self.buffer.len());
        }
    }

    /// Sends as much as the socket accepts, and counts it.
    pub fn flush(
        &mut self,
        socket: impl AsFd,
        tally: Option<&Tally>,
        counters: &mut Counters,
    ) -> Result<(), SessionError> {
        while self.sent < self.buffer.len() {
            let until = self.next_cut();
            let fds: &[Arc<OwnedFd>] = match self.fds.front() {
                Some((at, fds)) if *at == self.sent => fds,
                _ => &[],
            };
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
            let bytes = self.buffer.get(self.sent..until).unwrap_or(&[]);
            counters.send_calls += 1;
            let sent = match tally {
                Some(tally) => tally.send(&socket, bytes, &borrowed),
                None => send(&socket, bytes, &borrowed),
            };
            match sent {
                Ok(count) => {
                    counters.bytes_sent += count as u64;
                    counters.fds_sent += borrowed.len() as u64;
                    if count > 0 && !borrowed.is_empty() {
                        self.fds.pop_front();
                    }
                    self.sent += count;
                    while self.ends.pop_front_if(|end| *end <= self.sent).is_some() {}
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(SessionError::Closed),
                Err(error) => return Err(SessionError::Send(error)),
            }
        }
        self.tidy();
        Ok(())
    }

    /// The end of the next send: whole messages, up to the next one with descriptors.
    fn next_cut(&self) -> usize {
        let fds_at = self.fds.iter().map(|(at, _)| *at).find(|&at| at > self.sent).unwrap_or(usize::MAX);
        let mut until = self.ends.front().copied().unwrap_or(self.buffer.len());
        for &end in self.ends.iter().skip(1) {
            if end - self.sent > TOGETHER || until >= fds_at {
                break;
            }
            until = end;
        }
        until
    }

    fn tidy(&mut self) {
        if self.sent == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(HIGH_WATER);
            self.sent = 0;
        } else if self.sent > HIGH_WATER {
            let gone = self.sent;
            self.buffer.drain(..gone);
            self.ends.iter_mut().for_each(|end| *end -= gone);
            self.fds.iter_mut().for_each(|(at, _)| *at -= gone);
            self.sent = 0;
        }
    }
}

fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// The messages that these bytes are. `None` if a part of one is among them.
fn whole_messages(mut bytes: &[u8]) -> Option<Vec<(Header, &[u8])>> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let header = Header::decode(bytes.first_chunk()?);
        let (message, rest) = bytes.split_at_checked(header.check().ok()?)?;
        messages.push((header, message));
        bytes = rest;
    }
    Some(messages)
}

/// The header of the reply to `request`.
pub(crate) fn reply_header(request: &Header) -> Header {
    Header {
        id: request.id,
        command: request.command,
        size: HEADER_SIZE as u32,
        flags: crate::codec::FLAG_REPLY,
        error: 0,
    }
}
