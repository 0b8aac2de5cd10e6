//! The hostile end of a socket: writes of any size, with descriptors of several kinds.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nicety_trials::random::Random;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv,
    sendmsg, socketpair, sockopt,
};

/// Size of a memory file in bytes.
pub const FILE: u64 = 1 << 20;

/// The hostile end of a connected pair of stream sockets, with its descriptors.
pub struct Peer {
    socket: OwnedFd,
    /// The guest's memory.
    pub file: OwnedFd,
}

impl Peer {
    /// This end and the other end.
    pub fn connected() -> Option<(Peer, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        // Both ends are used by one thread, so neither may block for the other.
        sockopt::set_socket_send_buffer_size(&near, 1 << 20).ok()?;
        sockopt::set_socket_send_buffer_size(&far, 1 << 20).ok()?;
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).ok()?;
        ftruncate(&file, FILE).ok()?;
        Some((Peer { socket: near, file }, far))
    }

    /// Descriptors to send with a message: mostly those that it should have.
    pub fn descriptors(&self, random: &mut Random, wanted: usize, bell: bool) -> Vec<OwnedFd> {
        let count = if random.one_in(8) { random.below(4) as usize } else { wanted };
        let mut out = Vec::new();
        for _ in 0..count {
            let other = random.one_in(8);
            let fd = if bell != other {
                eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()
            } else {
                self.file.try_clone().ok()
            };
            out.extend(fd);
        }
        out
    }

    /// Sends bytes in pieces. The descriptors go with the first piece. A full socket drops the rest.
    pub fn send(&self, random: &mut Random, bytes: &[u8], fds: &[OwnedFd]) {
        let cut = if random.one_in(4) { random.below(bytes.len() as u64 + 1) as usize } else { bytes.len() };
        let (first, second) = bytes.split_at(cut);
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let _ = sendmsg(&self.socket, &[IoSlice::new(first)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        if !second.is_empty() {
            let _ = rustix::net::send(&self.socket, second, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Reads and drops the answers.
    pub fn drain(&self) {
        let mut bytes = [0; 4096];
        while recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len > 0) {}
    }

    /// Writes to the guest's memory, or truncates its file while others use it.
    pub fn memory(&self, random: &mut Random) {
        if random.one_in(32) {
            let _ = ftruncate(&self.file, random.below(FILE));
            return;
        }
        let mut bytes = [0; 64];
        random.fill(&mut bytes);
        bytes[..8].copy_from_slice(&random.nasty(FILE).to_le_bytes());
        let _ = rustix::io::pwrite(&self.file, &bytes, random.below(FILE) & !0xf);
    }

    /// Ends the stream of messages.
    pub fn close(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }
}
