//! Splits the bytes of the socket into messages, each with its descriptors.
//!
//! One `recvmsg` may return the bytes of several messages, and the descriptors of one of them. Linux delivers descriptors with
//! the first byte of the send that carried them, and ends the call after that send. So the descriptors belong to the message in
//! which the call's bytes end, if the peer sends each message by one call (QEMU does). If a peer sends several messages by one
//! call, the descriptors go to the last of them that takes descriptors.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;

use nicety_peer::{Account, PeerFd, Table, peek_from};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recv, recvmsg};
use serde::{Deserialize, Serialize};

use crate::codec::request::Request;
use crate::codec::{HEADER_SIZE, Header, HeaderError, MAX_MESSAGE_FDS, MAX_MESSAGE_SIZE};
use crate::counters::Counters;
use crate::error::SessionError;

/// Bytes to read at a time, and to keep between messages.
const BUFFER_SIZE: usize = 64 * 1024;
/// Most descriptors that Linux passes in one call (`SCM_MAX_FD`).
const SCM_MAX_FD: usize = 253;
/// Bytes to consume at a time where the buffer has no room.
const SPARE: usize = 1024;

/// The result of one read of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Bytes.
    Bytes,
    /// Nothing for now.
    Empty,
    /// The peer closed its end.
    Closed,
}

/// A whole message.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub header: Header,
    pub payload: &'a [u8],
    pub fds: Vec<PeerFd>,
}

/// Descriptors whose message is incomplete.
#[derive(Debug)]
struct Group {
    /// Position in the stream of the first byte of the message that owns the descriptors.
    owner: u64,
    fds: Vec<PeerFd>,
}

/// Received bytes that are not consumed, and the descriptors of their messages by index in a [`Table`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedInbound {
    received: Vec<u8>,
    /// Position in the stream of the first of them.
    position: u64,
    /// The position of the message that owns descriptors, and these.
    groups: Vec<(u64, Vec<u32>)>,
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct Inbound {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Position in the stream of `buffer[start]`.
    position: u64,
    groups: VecDeque<Group>,
    /// Set if messages stay in the socket until they are [consumed](Inbound::consume).
    peek: Option<Peek>,
    /// Closes the client's descriptors.
    pub account: Option<Arc<Account>>,
}

/// Messages that were taken and are still in the socket. The waiting bytes are there, too, behind them.
#[derive(Debug, Default)]
struct Peek {
    /// The header of the first one.
    first: [u8; HEADER_SIZE],
    /// Bytes of all of them.
    taken: usize,
}

impl Inbound {
    pub fn new() -> Inbound {
        let buffer = vec![0; BUFFER_SIZE];
        Inbound { buffer, start: 0, end: 0, position: 0, groups: VecDeque::new(), peek: None, account: None }
    }

    /// Messages stay in the socket until they are [consumed](Inbound::consume). False if some were read already.
    pub fn keep(&mut self) -> bool {
        if self.peek.is_none() && self.has_partial() {
            return false;
        }
        self.peek.get_or_insert_default();
        true
    }

    /// The waiting bytes are still in the socket, behind messages that were taken: the header of the first one, and the bytes of all.
    pub fn leave(&mut self, taken: Option<([u8; HEADER_SIZE], usize)>) {
        let (first, taken) = taken.unwrap_or_default();
        self.peek = Some(Peek { first, taken });
    }

    /// Whether messages stay in the socket.
    pub fn is_kept(&self) -> bool {
        self.peek.is_some()
    }

    /// The header of the first message that was taken and is still in the socket, and the bytes of all of them.
    pub fn taken(&self) -> Option<([u8; HEADER_SIZE], usize)> {
        self.peek.as_ref().filter(|peek| peek.taken > 0).map(|peek| (peek.first, peek.taken))
    }

    /// Whether a message with descriptors waits whole. The kernel gives a send's descriptors up with its first byte that is read, and what
    /// was taken may be of the same send.
    pub fn has_descriptors(&self) -> bool {
        let waiting = self.waiting();
        self.groups.iter().any(|group| {
            let at = usize::try_from(group.owner.wrapping_sub(self.position)).unwrap_or(usize::MAX);
            let size = header_at(waiting, at).and_then(|header| header.check().ok());
            size.is_some_and(|size| size <= waiting.len().saturating_sub(at))
        })
    }

    /// Removes the messages that were taken from the socket.
    pub fn consume(&mut self, socket: impl AsFd, counters: &mut Counters) -> Result<(), SessionError> {
        // What was taken lay before what waits.
        let free = if self.has_partial() { self.start } else { self.buffer.len() };
        let Some(peek) = &mut self.peek else { return Ok(()) };
        let mut left = std::mem::take(&mut peek.taken);
        let mut spare = [0; SPARE];
        while left > 0 {
            let room = if free > 0 { self.buffer.get_mut(..free.min(left)) } else { spare.get_mut(..left.min(SPARE)) };
            let Some(room) = room else { break };
            counters.receive_calls += 1;
            // A call ends behind a message with descriptors. The kernel closes them: ours are duplicates.
            match recv(&socket, &mut *room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(SessionError::Closed),
                Ok((count, _)) => left = left.saturating_sub(count),
                Err(Errno::INTR) => {}
                Err(error) => return Err(SessionError::Receive(error)),
            }
        }
        Ok(())
    }

    /// Position in the stream of the next message.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Position in the stream behind all bytes that the peer has sent so far.
    pub fn end_of_stream(&self, socket: impl AsFd) -> u64 {
        let in_socket = ioctl_fionread(socket).unwrap_or(0);
        let unread = match &self.peek {
            // The waiting bytes are in the socket as well, behind those that were taken.
            Some(peek) => in_socket.saturating_sub(peek.taken as u64),
            None => in_socket + self.waiting().len() as u64,
        };
        self.position.saturating_add(unread)
    }

    /// Whether only a part of a message has come.
    pub fn is_cut(&self) -> bool {
        self.has_partial() && !self.has_whole()
    }

    /// The received bytes that are not consumed yet.
    pub fn waiting(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or(&[])
    }

    /// Whether part of a message has arrived.
    pub fn has_partial(&self) -> bool {
        self.start != self.end
    }

    /// Whether [`Inbound::next`] would return a message or an error.
    pub fn has_whole(&self) -> bool {
        match header_at(self.waiting(), 0).map(|h| h.check()) {
            None => false,
            Some(Err(_)) => true,
            Some(Ok(size)) => self.waiting().len() >= size,
        }
    }

    /// Takes the next whole message out of the buffer.
    pub fn next(&mut self) -> Result<Option<Message<'_>>, HeaderError> {
        let waiting = self.end - self.start;
        let Some(header) = header_at(self.waiting(), 0) else { return Ok(None) };
        let size = header.check()?;
        if waiting < size {
            return Ok(None);
        }
        let at = self.start;
        let mut fds = Vec::new();
        while let Some(group) = self.groups.pop_front_if(|g| g.owner <= self.position) {
            fds.extend(group.fds);
        }
        if let Some(peek) = &mut self.peek {
            if peek.taken == 0
                && let Some(first) = self.buffer.get(self.start..).and_then(|bytes| bytes.first_chunk())
            {
                peek.first = *first;
            }
            peek.taken += size;
        }
        self.position = self.position.wrapping_add(size as u64);
        self.start += size;
        let end = self.start;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
        let payload = self.buffer.get(at + HEADER_SIZE..end).unwrap_or(&[]);
        Ok(Some(Message { header, payload, fds }))
    }

    /// The unfinished part of the stream.
    pub fn save(&self, table: &mut Table) -> Result<SavedInbound, Errno> {
        let group = |group: &Group| {
            let fds = group.fds.iter().map(|fd| table.put(fd)).collect::<Result<Vec<u32>, Errno>>();
            Ok((group.owner, fds?))
        };
        let groups = self.groups.iter().map(group).collect::<Result<_, Errno>>()?;
        Ok(SavedInbound { received: self.waiting().to_vec(), position: self.position, groups })
    }

    /// The state of a stream whose unfinished part is in the socket.
    pub fn save_kept(&self) -> SavedInbound {
        SavedInbound { received: Vec::new(), position: self.position, groups: Vec::new() }
    }

    /// Goes on where another process stopped. `None` if the state is impossible.
    pub fn restore(saved: SavedInbound, table: &mut Table) -> Option<Inbound> {
        let SavedInbound { received, position, groups } = saved;
        if received.len() > MAX_MESSAGE_SIZE + BUFFER_SIZE {
            return None;
        }
        let group = |(owner, fds): (u64, Vec<u32>)| {
            let fds = fds.into_iter().map(|index| table.take(index)).collect::<Option<_>>()?;
            Some(Group { owner, fds })
        };
        let groups = groups.into_iter().map(group).collect::<Option<_>>()?;
        let end = received.len();
        // Its pages come from the kernel as zeros, when they are used.
        let mut buffer = vec![0; end.max(BUFFER_SIZE)];
        buffer[..end].copy_from_slice(&received);
        Some(Inbound { buffer, start: 0, end, position, groups, peek: None, account: None })
    }

    /// Reads the socket once, up to the free room.
    pub fn fill(&mut self, socket: impl AsFd, counters: &mut Counters) -> Result<Fill, SessionError> {
        self.make_room();
        let peeked = self.peek.as_ref().map(|peek| peek.taken + self.waiting().len()).filter(|peeked| *peeked > 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let Some(room) = self.buffer.get_mut(self.end..) else { return Ok(Fill::Empty) };
        let mut flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        flags.set(RecvFlags::PEEK, self.peek.is_some());
        counters.receive_calls += 1;
        if peeked.is_some() {
            peek_from(&socket, peeked).map_err(SessionError::Receive)?;
        }
        let received = recvmsg(&socket, &mut [IoSliceMut::new(room)], &mut control, flags);
        if peeked.is_some() {
            peek_from(&socket, None).map_err(SessionError::Receive)?;
        }
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Fill::Empty),
            Err(Errno::CONNRESET) => return Ok(Fill::Closed),
            Err(error) => return Err(SessionError::Receive(error)),
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights.map(|fd| PeerFd::from(fd).charged_to(self.account.as_ref())));
            }
        }
        counters.fds_received += fds.len() as u64;
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(SessionError::DescriptorsLost);
        }
        if received.bytes == 0 {
            return Ok(Fill::Closed);
        }
        if !fds.is_empty() && self.account.as_ref().is_some_and(|account| account.is_exceeded()) {
            return Err(SessionError::DescriptorsStayOpen);
        }
        counters.bytes_received += received.bytes as u64;
        let new_from = self.end;
        self.end += received.bytes;
        if !fds.is_empty() {
            let owner = self.owner_of(new_from - self.start);
            self.groups.push_back(Group { owner, fds });
            // All other groups belong to messages that are handled now; only those of the incomplete message stay.
            let held: usize = self.groups.iter().filter(|g| g.owner == owner).map(|g| g.fds.len()).sum();
            if held > MAX_MESSAGE_FDS {
                counters.fds_refused += held as u64;
                return Err(SessionError::TooManyDescriptors(held));
            }
        }
        Ok(Fill::Bytes)
    }

    /// Makes room for at least the rest of the first message and some more.
    fn make_room(&mut self) {
        let waiting = self.end - self.start;
        let needed = match header_at(self.waiting(), 0).map(|h| h.check()) {
            Some(Ok(size)) => size.max(BUFFER_SIZE),
            _ => BUFFER_SIZE,
        };
        if self.start > 0 && (self.start + needed > self.buffer.len()) {
            self.buffer.copy_within(self.start..self.end, 0);
            self.start = 0;
            self.end = waiting;
        }
        if self.buffer.len() < needed {
            self.buffer.resize(needed, 0);
        } else if waiting == 0 && self.buffer.len() > needed {
            self.buffer.truncate(needed);
            self.buffer.shrink_to_fit();
        }
    }

    /// Position of the message that owns the descriptors received with the bytes from `new_from` to the end. `new_from` counts
    /// from the first waiting byte.
    fn owner_of(&self, new_from: usize) -> u64 {
        let waiting = self.waiting();
        let mut at = 0;
        let mut last_taker = None;
        let position = |at: usize| self.position.wrapping_add(at as u64);
        loop {
            let Some(header) = header_at(waiting, at) else { return position(at) };
            let Ok(size) = header.check() else { return position(at) };
            let end = at + size;
            let payload = waiting.get(at + HEADER_SIZE..end.min(waiting.len())).unwrap_or(&[]);
            let takes = !header.is_reply() && Request::takes_fds(header.command, payload) || header.is_reply();
            if takes && end > new_from {
                last_taker = Some(at);
            }
            if end >= waiting.len() {
                return position(last_taker.unwrap_or(at));
            }
            at = end;
        }
    }
}

fn header_at(bytes: &[u8], at: usize) -> Option<Header> {
    bytes.get(at..)?.first_chunk::<HEADER_SIZE>().map(Header::decode)
}

#[cfg(test)]
#[path = "inbound_test.rs"]
mod tests;
