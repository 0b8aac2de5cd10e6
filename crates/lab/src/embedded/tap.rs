//! A tap of the kernel's as a guest's link: each frame is one system call, as it is for a VMM without vhost.
//! Format: Linux's `Documentation/networking/tuntap.rst`; a virtio header of 12 bytes before each frame.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nicety_adapter::{HandOver, Offload, Uplink};
use nicety_drivers::{Received, Sink};
use nicety_frame::Mac;
use nicety_uplink::Tap;
use rustix::event::PollFlags;
use rustix::io::{Errno, readv, writev};

use super::link::{GuestError, Link};

/// Bytes of the header: `struct virtio_net_hdr_mrg_rxbuf`, all zero for a whole frame with its checksum.
const HEADER: usize = 12;
/// Bytes of the longest frame: no offload is asked for.
const FRAME: usize = 1514;

/// A tap (see the module's page).
pub struct TapLink {
    fd: OwnedFd,
    mac: Mac,
    packet: Vec<u8>,
}

impl TapLink {
    /// Attaches to the tap of this name. `mac` is the station's address behind it.
    pub fn open(name: &str, mac: Mac) -> Result<TapLink, GuestError> {
        let failed = |why: String| GuestError::Peer(format!("tap {name}: {why}"));
        let tap = Tap::open(name).map_err(|error| failed(error.to_string()))?;
        match tap.hand_over() {
            HandOver::Parts { descriptors, .. } if let [fd] = descriptors[..] => {
                let fd = fd.try_clone_to_owned().map_err(|error| failed(error.to_string()))?;
                Ok(TapLink::over(fd, mac))
            }
            _ => Err(failed("it has gone".to_owned())),
        }
    }

    fn over(fd: OwnedFd, mac: Mac) -> TapLink {
        TapLink { fd, mac, packet: Vec::with_capacity(FRAME) }
    }
}

impl Link for TapLink {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn offloads(&self) -> (bool, u32) {
        (false, 0)
    }

    fn up(&self) -> bool {
        true
    }

    fn watch(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        vec![(self.fd.as_fd(), PollFlags::IN)]
    }

    fn woken(&mut self, _which: usize) -> Result<bool, GuestError> {
        Ok(true)
    }

    fn receive(&mut self, budget: usize, sink: &mut Sink<'_>) -> Result<usize, GuestError> {
        for taken in 0..budget {
            let mut header = [0; HEADER];
            self.packet.resize(FRAME, 0);
            let mut pieces = [IoSliceMut::new(&mut header), IoSliceMut::new(&mut self.packet)];
            match readv(&self.fd, &mut pieces) {
                Ok(len) => self.packet.truncate(len.saturating_sub(HEADER)),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(taken),
                Err(errno) => return Err(GuestError::System("reading from a tap", errno)),
            }
            sink(&mut self.packet, Received { checksum_good: false, frames: 1 });
        }
        Ok(budget)
    }

    fn transmit(&mut self, packet: &[u8], _offload: &Offload) -> Result<bool, GuestError> {
        match writev(&self.fd, &[IoSlice::new(&[0; HEADER]), IoSlice::new(packet)]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(false),
            Err(errno) => Err(GuestError::System("writing to a tap", errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn a_frame_is_one_write_behind_an_empty_virtio_header_and_one_read_without_it() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, kernels) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut link = TapLink::over(ours, Mac([2, 0, 0, 0, 0, 1]));
        assert!(link.transmit(&[7; 60], &Offload::default()).unwrap());
        let mut written = [1; 100];
        assert_eq!(rustix::io::read(&kernels, &mut written).unwrap(), 72);
        assert_eq!((&written[..12], &written[12..72]), (&[0; 12][..], &[7; 60][..]));
        rustix::io::write(&kernels, &[&[0; 12][..], &[9; 64]].concat()).unwrap();
        let mut came = Vec::new();
        assert_eq!(link.receive(8, &mut |packet, _| came.push(packet.clone())).unwrap(), 1);
        assert_eq!(came, [vec![9; 64]]);
    }
}
