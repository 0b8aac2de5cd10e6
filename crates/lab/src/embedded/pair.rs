//! The far end of a pair uplink, written from its protocol's description (`message.rs` of the uplinks): `SOCK_SEQPACKET`, one
//! message a packet, each with a header of 16 bytes.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nicety_adapter::{Checksum, Offload, PACKET_BYTES, SegmentKind};
use nicety_drivers::{Received, Sink};
use nicety_frame::Mac;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    sendmsg, socket_with, sockopt,
};

use super::link::{GuestError, Link};

const HEADER: usize = 16;
const HELLO: [u8; HEADER] =
    [0, b'n', b'i', b'c', b'e', b't', b'y', 0, 1, 0, HEADER as u8, 0, LONGEST[0], LONGEST[1], LONGEST[2], LONGEST[3]];
const LONGEST: [u8; 4] = PACKET_BYTES.to_le_bytes();
const PACKET: u8 = 1;
/// Bytes of the largest packet sent without segmentation.
const SEGMENT_BYTES: u32 = 65_535;
const SOCKET_BYTES: usize = 1 << 20;

/// The far end of a pair uplink (see the module's page).
pub struct PairLink {
    socket: OwnedFd,
    mac: Mac,
    greeted: bool,
    blocked: bool,
    buffer: Vec<u8>,
}

impl PairLink {
    /// Connects to the end that listens at `path`.
    pub fn connect(path: &Path, mac: Mac) -> Result<PairLink, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        PairLink::over(socket, mac)
    }

    /// A link over a connected socket.
    fn over(socket: OwnedFd, mac: Mac) -> Result<PairLink, Errno> {
        // The default size works too.
        let _resized = sockopt::set_socket_send_buffer_size(&socket, SOCKET_BYTES);
        rustix::net::send(&socket, &HELLO, SendFlags::NOSIGNAL)?;
        let buffer = vec![0; HEADER + PACKET_BYTES as usize];
        Ok(PairLink { socket, mac, greeted: false, blocked: false, buffer })
    }
}

impl Link for PairLink {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn offloads(&self) -> (bool, u32) {
        (true, SEGMENT_BYTES)
    }

    fn up(&self) -> bool {
        self.greeted
    }

    fn watch(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let out = if self.blocked { PollFlags::OUT } else { PollFlags::empty() };
        vec![(self.socket.as_fd(), PollFlags::IN | out)]
    }

    fn woken(&mut self, _which: usize) -> Result<bool, GuestError> {
        self.blocked = false;
        Ok(true)
    }

    fn receive(&mut self, budget: usize, sink: &mut Sink<'_>) -> Result<usize, GuestError> {
        let mut packet = Vec::new();
        for taken in 0..budget {
            let len = match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(GuestError::Peer("the switch has gone".to_owned())),
                Ok((len, _)) => len,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(taken),
                Err(errno) => return Err(GuestError::System("receiving from the pair", errno)),
            };
            let Some((header, bytes)) = self.buffer.get(..len).and_then(|message| message.split_at_checked(HEADER))
            else {
                continue;
            };
            match header {
                [0, ..] => self.greeted = true,
                [PACKET, checksum, segment, ..] => {
                    let mss = usize::from(u16::from_le_bytes([header[8], header[9]]));
                    let headers = usize::from(u16::from_le_bytes([header[10], header[11]]));
                    let cut = *segment != 0 && mss > 0;
                    let frames = if cut { bytes.len().saturating_sub(headers).div_ceil(mss).max(1) } else { 1 };
                    packet.extend_from_slice(bytes);
                    sink(&mut packet, Received { checksum_good: *checksum != 0, frames: frames as u32 });
                    packet.clear();
                }
                _ => {}
            }
        }
        Ok(budget)
    }

    fn transmit(&mut self, packet: &[u8], offload: &Offload) -> Result<bool, GuestError> {
        let mut header = [0; HEADER];
        header[0] = PACKET;
        if let Checksum::Partial { start, field } = offload.checksum {
            header[1] = 2;
            header[4..6].copy_from_slice(&start.to_le_bytes());
            header[6..8].copy_from_slice(&field.to_le_bytes());
        }
        if let Some(segment) = offload.segment {
            header[2] = if segment.kind == SegmentKind::Tcp { 1 } else { 2 };
            header[8..10].copy_from_slice(&segment.mss.to_le_bytes());
            header[10..12].copy_from_slice(&segment.headers.to_le_bytes());
        }
        header[12..].copy_from_slice(&(packet.len() as u32).to_le_bytes());
        let pieces = [IoSlice::new(&header), IoSlice::new(packet)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&self.socket, &pieces, &mut SendAncillaryBuffer::default(), flags) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {
                self.blocked = true;
                Ok(false)
            }
            Err(errno) => Err(GuestError::System("sending to the pair", errno)),
        }
    }
}

#[cfg(test)]
pub(super) fn joined(macs: [Mac; 2]) -> [PairLink; 2] {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    [PairLink::over(one, macs[0]).unwrap(), PairLink::over(other, macs[1]).unwrap()]
}
