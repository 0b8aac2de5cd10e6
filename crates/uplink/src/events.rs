//! Changes of interfaces, from rtnetlink (rtnetlink(7), RTMGRP_LINK). A tap tells its reader when it comes up, and not when it is taken
//! down: `tun_net_close` in Linux's `drivers/net/tun.c` wakes nobody.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use crate::system;

/// Messages taken in one call. The rest is taken in the next one.
const MESSAGES_MAX: usize = 64;
/// `struct nlmsghdr` and `struct ifinfomsg`.
const BYTES: usize = 32;
const RTM_NEWLINK: u16 = 16;

/// See the module's page.
#[derive(Debug)]
pub(crate) struct LinkEvents(OwnedFd);

impl LinkEvents {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        system::hear_of_links(socket.as_fd())?;
        Ok(Self(socket))
    }

    /// Takes what has been said. Whether the interface of this number has all of these flags (netdevice(7)), if it was among it.
    pub(crate) fn take(&self, index: u32, flags: i32) -> Option<bool> {
        let mut last = None;
        for _ in 0..MESSAGES_MAX {
            let mut message = [0; BYTES];
            match rustix::net::recv(&self.0, &mut message[..], RecvFlags::DONTWAIT) {
                Ok(_) => last = state(&message, index, flags as u32).or(last),
                // Some were lost. Others follow when the interface changes again.
                Err(Errno::NOBUFS | Errno::INTR) => {}
                Err(_) => break,
            }
        }
        last
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether the interface of this number has all of these flags, if the message says so.
fn state(message: &[u8; BYTES], index: u32, wanted: u32) -> Option<bool> {
    let word = |at: usize| message.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes);
    let kind = u16::from_ne_bytes([message[4], message[5]]);
    (kind == RTM_NEWLINK && word(20) == Some(index)).then(|| word(24).is_some_and(|flags| flags & wanted == wanted))
}
