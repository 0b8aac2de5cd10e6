//! A descriptor of `/dev/net/tun` that is attached to a tap.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::TapError;
use crate::system;
use crate::virtio_header::HEADER_BYTES;

/// What is asked of the kernel, best first: it answers EINVAL to what it does not know (UDP came with Linux 6.2).
const OFFLOADS: [u32; 3] = [
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN | libc::TUN_F_USO4 | libc::TUN_F_USO6,
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN,
    0,
];

/// See the module's page.
#[derive(Debug)]
pub(super) struct Attached {
    /// The interface's name.
    pub(super) name: String,
    pub(super) fd: OwnedFd,
    /// `TUN_F_*` that the kernel took.
    pub(super) offloads: u32,
}

impl Attached {
    /// Attaches to the tap of this name, or makes it.
    pub(super) fn new(name: &str) -> Result<Self, TapError> {
        let os = |doing| move |source: io::Error| TapError::Os { doing, source };
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(TapError::opening)?;
        let actual = system::set_interface(fd.as_fd(), name)
            .map_err(|error| TapError::attaching(name, is_there(name), error))?;
        system::set_header(fd.as_fd(), HEADER_BYTES).map_err(os("setting a tap's header (TUNSETVNETHDRSZ)"))?;
        let offloads = OFFLOADS.into_iter().find(|&flags| system::set_offload(fd.as_fd(), flags).is_ok()).unwrap_or(0);
        Ok(Self { name: actual, fd, offloads })
    }
}

/// Whether an interface has this name.
pub(super) fn is_there(name: &str) -> bool {
    any_socket().and_then(|socket| name_to_index(socket, name)).is_ok()
}

/// A socket to ask for an interface through: netdevice(7).
pub(super) fn any_socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}
