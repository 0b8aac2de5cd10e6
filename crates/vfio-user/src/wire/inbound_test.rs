//! The owner of descriptors while earlier messages still wait in the buffer (unix(7), SCM_RIGHTS). Messages are those of
//! vfio-user.rst, "Header".

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};

use super::{Fill, Inbound};
use crate::Counters;

/// A command that may have descriptors, and one that may not.
const DMA_MAP: u16 = 2;
const REGION_READ: u16 = 9;

fn message(id: u16, command: u16) -> Vec<u8> {
    let payload = [0; 32];
    let size = 16 + payload.len() as u32;
    [&id.to_le_bytes()[..], &command.to_le_bytes(), &size.to_le_bytes(), &[0; 8], &payload].concat()
}

struct Reader {
    peer: OwnedFd,
    socket: OwnedFd,
    inbound: Inbound,
}

impl Reader {
    fn new() -> Reader {
        let (peer, socket) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        Reader { peer, socket, inbound: Inbound::new() }
    }

    /// Receives these bytes, with a descriptor if there is one.
    fn come(&mut self, bytes: &[u8], with: Option<&OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = with.iter().map(|fd| fd.as_fd()).collect();
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
        let sent = sendmsg(&self.peer, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(sent, bytes.len());
        assert_eq!(self.inbound.fill(&self.socket, &mut Counters::default()).unwrap(), Fill::Bytes);
    }

    /// All complete messages: their numbers, and the number of descriptors of each.
    fn take(&mut self) -> Vec<(u16, usize)> {
        let next = || self.inbound.next().unwrap().map(|message| (message.header.id, message.fds.len()));
        std::iter::from_fn(next).collect()
    }
}

#[test]
fn what_came_before_the_descriptors_does_not_get_them() {
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let mut reader = Reader::new();
    // The first message may have a descriptor and has none. The second has one that it may not have.
    reader.come(&message(1, DMA_MAP), None);
    reader.come(&message(2, REGION_READ), Some(&fd));
    reader.come(&message(3, DMA_MAP), Some(&fd));
    assert_eq!(reader.take(), [(1, 0), (2, 1), (3, 1)]);
    // Sent in one call, they belong to the last message that takes any.
    reader.come(&[message(4, DMA_MAP), message(5, REGION_READ)].concat(), Some(&fd));
    assert_eq!(reader.take(), [(4, 1), (5, 0)]);
}

#[test]
fn a_message_that_was_there_in_part_may_own_the_descriptors_of_its_rest() {
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let (first, second) = (message(1, DMA_MAP), message(2, REGION_READ));
    for cut in 1..first.len() {
        let mut reader = Reader::new();
        reader.come(&[&message(0, DMA_MAP), &first[..cut]].concat(), None);
        reader.come(&[&first[cut..], &second].concat(), Some(&fd));
        assert_eq!(reader.take(), [(0, 0), (1, 1), (2, 0)], "cut at {cut}");
    }
}
