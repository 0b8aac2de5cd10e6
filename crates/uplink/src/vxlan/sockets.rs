//! The UDP sockets of a tunnel: one that receives, and several that send.
//!
//! RFC 7348 section 5 wants the source port of a datagram from a hash of the frame in it, 49152 to 65535: routers and cards then spread
//! flows over links and queues. A socket has one port. So [`SOURCES`] sockets send, and the hash chooses one for each flow.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::error::VxlanError;
use crate::system;

/// Sockets that send. With a power of two, as Linux's cards have queues, each of these gets its part.
pub(super) const SOURCES: usize = 16;
/// The ports that RFC 7348 section 5 recommends.
const FIRST_PORT: u16 = 49_152;
/// Ports that are tried until [`SOURCES`] are free.
const TRIES: u16 = 1024;
/// Requested size of the buffers. The host's `net.core.rmem_max` and `wmem_max` may allow less.
const RECEIVE_BYTES: usize = 8 << 20;
const SEND_BYTES: usize = 1 << 20;
/// Nobody reads from the sockets that send.
const UNREAD_BYTES: usize = 0;

/// The sockets of a tunnel.
#[derive(Debug)]
pub(super) struct Sockets {
    pub receiving: OwnedFd,
    pub sending: Vec<OwnedFd>,
}

impl Sockets {
    /// Opens them at an address of this host. Which ports send follows from the seed.
    pub(super) fn open(address: SocketAddr, seed: u64) -> Result<Self, VxlanError> {
        let receiving = bound(address).map_err(|error| match error {
            Errno::ADDRINUSE => VxlanError::InUse(address),
            Errno::ADDRNOTAVAIL => VxlanError::NotHere(address.ip()),
            error => VxlanError::os("binding a UDP socket to", address, error),
        })?;
        let os = |doing| move |source: io::Error| VxlanError::Os { doing, address, source };
        let joined = system::set_option(receiving.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
        joined.map_err(os("receiving joined datagrams (UDP_GRO) at"))?;
        let _default_size_kept = sockopt::set_socket_recv_buffer_size(&receiving, RECEIVE_BYTES);
        let mut sending = Vec::new();
        for number in 0..TRIES {
            if sending.len() == SOURCES {
                break;
            }
            let offset = (seed as u16).wrapping_add(number.wrapping_mul(61)) % (u16::MAX - FIRST_PORT);
            match bound(SocketAddr::new(address.ip(), FIRST_PORT + offset)) {
                Ok(socket) => sending.push(sender(socket).map_err(os("preparing a UDP socket at"))?),
                Err(Errno::ADDRINUSE) => {}
                Err(error) => return Err(VxlanError::os("binding a UDP socket to", address, error)),
            }
        }
        if sending.is_empty() {
            return Err(VxlanError::os("finding a free UDP port at", address, Errno::ADDRINUSE));
        }
        Ok(Self { receiving, sending })
    }

    /// Goes on with another process's: the first one receives.
    pub(super) fn go_on(descriptors: Vec<OwnedFd>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        let (receiving, sending) = (descriptors.next()?, descriptors.collect::<Vec<_>>());
        (1..=SOURCES).contains(&sending.len()).then_some(Self { receiving, sending })
    }
}

/// The peer whose way carries the shortest packets, and how long these are (ip(7), `IP_MTU`), of those to which there is a way.
pub(super) fn narrowest(own: IpAddr, peers: impl Iterator<Item = IpAddr>) -> Option<(IpAddr, u32)> {
    let mtu = |peer: IpAddr| {
        let socket = bound(SocketAddr::new(own, 0)).ok()?;
        rustix::net::connect(&socket, &SocketAddr::new(peer, DISCARD)).ok()?;
        let mtu = if own.is_ipv4() { sockopt::ip_mtu(&socket) } else { sockopt::ipv6_mtu(&socket) };
        Some((peer, mtu.ok()?))
    };
    peers.filter_map(mtu).min_by_key(|(_, mtu)| *mtu)
}

/// A port, to ask the kernel for a route. Nothing is sent.
const DISCARD: u16 = 9;

fn bound(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// A socket that sends: no datagram of it is ever cut into fragments (RFC 7348 section 4.3).
fn sender(socket: OwnedFd) -> io::Result<OwnedFd> {
    let is_v4 = sockopt::socket_domain(&socket)? == AddressFamily::INET;
    if is_v4 {
        sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?;
    } else {
        sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?;
    }
    let _default_size_kept = sockopt::set_socket_send_buffer_size(&socket, SEND_BYTES);
    let _default_size_kept = sockopt::set_socket_recv_buffer_size(&socket, UNREAD_BYTES);
    Ok(socket)
}

/// Finds out whether [`Sockets::open`] would succeed, without keeping anything.
pub(super) fn check(address: SocketAddr) -> Result<(), VxlanError> {
    Sockets::open(address, 0).map(drop)
}

/// Whether an address can be a tunnel's end: it is one host's, and on any link.
pub fn is_tunnel_end(address: IpAddr) -> bool {
    let is_link_local =
        matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some());
    !(address.is_unspecified() || address.is_multicast() || is_link_local || address == IpAddr::from([255; 4]))
}
