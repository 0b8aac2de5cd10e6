//! System calls without a safe wrapper: ioctls of Linux's tap driver (`Documentation/networking/tuntap.rst`,
//! `include/uapi/linux/if_tun.h`), and `send(2)`, `sendmmsg(2)` and `recvmmsg(2)` on private memory, also of datagrams with their addresses
//! (`ip(7)`, `ipv6(7)`, `udp(7)`), and errors that the kernel queues (`recvmsg(2)`).
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use arrayvec::ArrayVec;
use nicety_memory::{Map, Span};

/// Most messages in one call.
pub(crate) const MESSAGES: usize = 64;

/// `struct ifreq` as TUNSETIFF and the calls of netdevice(7) read and write it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

fn interface_name(name: &str) -> [u8; libc::IFNAMSIZ] {
    let mut field = [0; libc::IFNAMSIZ];
    for (to, from) in field.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from;
    }
    field
}

/// Hardware address of the interface with this name, through any socket (netdevice(7)); `None` if it is not Ethernet's.
pub(crate) fn hardware_address(socket: BorrowedFd<'_>, name: &str) -> io::Result<Option<[u8; 6]>> {
    let mut request = InterfaceRequest { name: interface_name(name), flags: 0, rest: [0; 22] };
    // SAFETY: SIOCGIFHWADDR reads and writes one `struct ifreq`, which `request` is, alive and ours for the call.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // A `struct sockaddr` takes the place of the flags: the family (the kind of hardware), then the address.
    let [a, b, c, d, e, f, ..] = request.rest;
    Ok((request.flags as u16 == libc::ARPHRD_ETHER).then_some([a, b, c, d, e, f]))
}

/// MTU of the interface with this name, in bytes, through any socket (netdevice(7)).
pub(crate) fn mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let mut request = InterfaceRequest { name: interface_name(name), flags: 0, rest: [0; 22] };
    // SAFETY: SIOCGIFMTU reads and writes one `struct ifreq`, which `request` is, alive and ours for the call.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // An int takes the place of the flags.
    let [low, high] = request.flags.to_ne_bytes();
    Ok(u32::from_ne_bytes([low, high, request.rest[0], request.rest[1]]))
}

/// `struct ethtool_channels` (linux/ethtool.h): the queues that the driver has now, of the kinds receive, transmit, other and combined.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    now: [u32; 4],
}

/// `struct ifreq` as SIOCETHTOOL reads it.
#[repr(C)]
struct EthtoolRequest {
    name: [u8; libc::IFNAMSIZ],
    channels: *mut Channels,
    rest: [u8; 16],
}

const _: () = assert!(size_of::<EthtoolRequest>() == size_of::<libc::ifreq>());

/// Number of queues of the interface with this name, through any socket: those that receive or those that transmit, whichever are more
/// (ETHTOOL_GCHANNELS of linux/ethtool.h). `None`: its driver does not say.
pub(crate) fn queues(socket: BorrowedFd<'_>, name: &str) -> Option<u32> {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    let mut request = EthtoolRequest { name: interface_name(name), channels: &raw mut channels, rest: [0; 16] };
    // SAFETY: SIOCETHTOOL reads one `struct ifreq`, which `request` is, and writes the `struct ethtool_channels` at which it points. Both
    // are alive and ours for the call.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) } < 0 {
        return None;
    }
    let [receive, transmit, _, combined] = channels.now;
    Some(receive.max(transmit).saturating_add(combined)).filter(|count| *count > 0)
}

/// Flags of the interface with this name (`IFF_*`), through any socket (netdevice(7)).
pub(crate) fn flags(socket: BorrowedFd<'_>, name: &str) -> io::Result<libc::c_int> {
    let mut request = InterfaceRequest { name: interface_name(name), flags: 0, rest: [0; 22] };
    // SAFETY: SIOCGIFFLAGS reads and writes one `struct ifreq`, which `request` is, alive and ours for the call.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(libc::c_int::from(request.flags as u16))
}

/// Has a netlink socket hear of the links of its network namespace (netlink(7), rtnetlink(7)). Without bind(2), which the sandbox may
/// refuse: the kernel gives a socket an address when it first sends.
pub(crate) fn hear_of_links(socket: BorrowedFd<'_>) -> io::Result<()> {
    let group: libc::c_uint = libc::RTNLGRP_LINK;
    let bytes = size_of_val(&group) as u32;
    let (level, option) = (libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP);
    // SAFETY: setsockopt(2) reads `bytes` of the number, which is alive for the call.
    if unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const group).cast(), bytes) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // `struct nlmsghdr` with NLMSG_NOOP, which nobody answers.
    let mut nothing = [0; 16];
    nothing[..4].copy_from_slice(&16u32.to_ne_bytes());
    nothing[4..6].copy_from_slice(&(libc::NLMSG_NOOP as u16).to_ne_bytes());
    rustix::net::send(socket, &nothing, rustix::net::SendFlags::empty())?;
    Ok(())
}

/// Attaches `fd` (an open `/dev/net/tun`) to the tap of this name, which is made if it does not exist; with `several`, as one of its
/// queues. Returns its name.
pub(crate) fn set_interface(fd: BorrowedFd<'_>, name: &str, several: bool) -> io::Result<String> {
    let queue = if several { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | queue;
    let mut request = InterfaceRequest { name: interface_name(name), flags: flags as libc::c_short, rest: [0; 22] };
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which `request` is, alive and ours for the call.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(name_in(&request))
}

/// Name of the interface to which `fd` (an open `/dev/net/tun`) is attached. An error if the interface was deleted.
pub(crate) fn attached_to(fd: BorrowedFd<'_>) -> io::Result<String> {
    let mut request = InterfaceRequest { name: [0; libc::IFNAMSIZ], flags: 0, rest: [0; 22] };
    // SAFETY: TUNGETIFF writes one `struct ifreq`, which `request` is, alive and ours for the call.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(name_in(&request))
}

fn name_in(request: &InterfaceRequest) -> String {
    let len = request.name.iter().position(|&byte| byte == 0).unwrap_or(libc::IFNAMSIZ);
    String::from_utf8_lossy(&request.name[..len]).into_owned()
}

/// Sets the length of the header before each frame, and its byte order: little endian.
pub(crate) fn set_header(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let (bytes, little) = (bytes as libc::c_int, 1 as libc::c_int);
    // SAFETY: both read one int, alive for the call.
    let failed = unsafe {
        libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const bytes) < 0
            || libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETLE, &raw const little) < 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets the packets that the kernel may hand over unfinished: `TUN_F_*`.
pub(crate) fn set_offload(fd: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument as a number, and reads no memory.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(flags)) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A received message. Its index is that of its span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) len: u32,
    /// The message was longer than its span.
    pub(crate) cut: bool,
}

type Vectors = ArrayVec<libc::iovec, MESSAGES>;
type Headers = ArrayVec<libc::mmsghdr, MESSAGES>;

fn vectors(map: &Map, spans: &[Span]) -> Vectors {
    let vector = |span: &Span| {
        let bytes = map.bytes(*span);
        libc::iovec { iov_base: bytes.ptr_guard_mut().as_ptr().cast(), iov_len: bytes.len() }
    };
    spans.iter().take(MESSAGES).map(vector).collect()
}

fn headers(vectors: &mut Vectors) -> Headers {
    let mut out = Headers::new();
    for vector in vectors {
        // SAFETY: `mmsghdr` is plain numbers and pointers, for which zeros are no name, no control data, no flags.
        let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        header.msg_hdr.msg_iov = vector;
        header.msg_hdr.msg_iovlen = 1;
        out.push(header);
    }
    out
}

/// Sends bytes over a stream, as many as fit. Returns how many were sent.
pub(crate) fn send_bytes(fd: BorrowedFd<'_>, map: &Map, span: Span) -> io::Result<u32> {
    let bytes = map.bytes(span);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the address and length are those of bytes of `map`, which is borrowed for the call; the kernel only reads
    // them, and no Rust reference to them exists.
    let sent = unsafe { libc::send(fd.as_raw_fd(), bytes.ptr_guard().as_ptr().cast(), bytes.len(), flags) };
    u32::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sends one message per span, as many as fit. Returns how many were sent; the error is the first one's.
pub(crate) fn send_many(fd: BorrowedFd<'_>, map: &Map, spans: &[Span]) -> io::Result<usize> {
    let mut vectors = vectors(map, spans);
    let mut headers = headers(&mut vectors);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: each header points at one live vector, and each vector at bytes of `map`, which is borrowed for the
    // call; the kernel only reads them, and no Rust reference to them exists.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), headers.len() as u32, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives one message into each span, up to as many as are waiting.
pub(crate) fn receive_many(
    fd: BorrowedFd<'_>,
    map: &Map,
    spans: &[Span],
    out: &mut ArrayVec<Received, MESSAGES>,
) -> io::Result<()> {
    out.clear();
    let mut vectors = vectors(map, spans);
    let mut headers = headers(&mut vectors);
    // SAFETY: each header points at one live vector, and each vector at bytes of `map`, which is borrowed for the
    // call and mapped for writing (it is private memory of an uplink); no Rust reference to them exists. Without room
    // for control data the kernel closes descriptors that a peer sends.
    let received = unsafe {
        let none = std::ptr::null_mut();
        libc::recvmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), headers.len() as u32, libc::MSG_DONTWAIT, none)
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    for header in headers.iter().take(received) {
        out.push(Received { len: header.msg_len, cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 });
    }
    Ok(())
}

/// The address of a datagram's other end: `struct sockaddr_in` or `struct sockaddr_in6`, by its family.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Address {
    family: u16,
    /// The port in network byte order, as all that follows.
    port: [u8; 2],
    /// IPv4: the address, and 8 zeros. IPv6: the flow label, the address, and the scope.
    rest: [[u8; 4]; 6],
}

const _: () = assert!(size_of::<Address>() == size_of::<libc::sockaddr_in6>());
const _: () = assert!(size_of::<libc::sockaddr_in>() == 16);

impl Address {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let (port, mut rest) = (address.port().to_be_bytes(), [[0; 4]; 6]);
        let family = match address.ip() {
            IpAddr::V4(ip) => {
                rest[0] = ip.octets();
                libc::AF_INET
            }
            IpAddr::V6(ip) => {
                rest[1..5].as_flattened_mut().copy_from_slice(&ip.octets());
                libc::AF_INET6
            }
        };
        Self { family: family as u16, port, rest }
    }

    /// The IP address. `None`: of another family.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        let [first, address @ .., _scope] = &self.rest;
        match i32::from(self.family) {
            libc::AF_INET => Some(IpAddr::V4(Ipv4Addr::from(*first))),
            libc::AF_INET6 => {
                <[u8; 16]>::try_from(address.as_flattened()).ok().map(|ip| IpAddr::V6(Ipv6Addr::from(ip)))
            }
            _ => None,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        u16::from_be_bytes(self.port)
    }

    /// Bytes that the kernel reads.
    fn len(&self) -> libc::socklen_t {
        if i32::from(self.family) == libc::AF_INET6 { size_of::<Self>() as u32 } else { 16 }
    }
}

/// Control data with one number: a header, and room for the number and its padding.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    number: [u8; 8],
}

impl Control {
    /// Control data with `UDP_SEGMENT`, a 16-bit number.
    fn segment(bytes: u16) -> Self {
        // SAFETY: `cmsghdr` is plain numbers, for which zeros are valid.
        let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
        header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<u16>()) as _;
        (header.cmsg_level, header.cmsg_type) = (libc::SOL_UDP, libc::UDP_SEGMENT);
        let [a, b] = bytes.to_ne_bytes();
        Self { header, number: [a, b, 0, 0, 0, 0, 0, 0] }
    }

    fn empty() -> Self {
        Self { number: [0; 8], ..Self::segment(0) }
    }

    /// The `UDP_GRO` in control data of this length: an int.
    fn joined(&self, len: usize) -> Option<u16> {
        let is_it = (self.header.cmsg_level, self.header.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO);
        let whole = len >= size_of::<libc::cmsghdr>() + size_of::<libc::c_int>();
        let [a, b, c, d, ..] = self.number;
        if is_it && whole { u16::try_from(i32::from_ne_bytes([a, b, c, d])).ok() } else { None }
    }
}

/// Datagrams to one address in one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departing {
    pub(crate) span: Span,
    pub(crate) to: Address,
    /// Bytes of each datagram but the last; 0: it is one.
    pub(crate) segment: u16,
}

/// Sends datagrams, as many as there is room for. Returns how many of these were sent; the error is the first one's.
pub(crate) fn send_datagrams(fd: BorrowedFd<'_>, map: &Map, departing: &[Departing]) -> io::Result<usize> {
    let spans: ArrayVec<Span, MESSAGES> = departing.iter().take(MESSAGES).map(|departing| departing.span).collect();
    let mut vectors = vectors(map, &spans);
    let mut headers = headers(&mut vectors);
    let mut controls: ArrayVec<Control, MESSAGES> =
        departing.iter().take(MESSAGES).map(|departing| Control::segment(departing.segment)).collect();
    for ((header, departing), control) in headers.iter_mut().zip(departing).zip(&mut controls) {
        header.msg_hdr.msg_name = (&raw const departing.to).cast_mut().cast();
        header.msg_hdr.msg_namelen = departing.to.len();
        if departing.segment != 0 {
            header.msg_hdr.msg_control = (&raw mut *control).cast();
            header.msg_hdr.msg_controllen = size_of::<Control>() as _;
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: each header points at one live vector, at an address and at control data that live as long, and each vector at bytes of
    // `map`, which is borrowed for the call. The kernel only reads them, and no Rust reference to the bytes exists.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), headers.len() as u32, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Room for the control data of a queued error: a header, `struct sock_extended_err`, and an address.
const ERROR_BYTES: usize = 128;

/// The longest IP packet, in bytes, that the kernel sends to the address of a datagram: the datagram, which was too long before, is sent
/// again, and the error that the kernel then queues has the number (ip(7), `IP_RECVERR`). It is queued only meanwhile: otherwise each
/// ICMP error would end another datagram's send call. `None`: there is no such error, since the datagram is on its way.
pub(crate) fn way_mtu(fd: BorrowedFd<'_>, map: &Map, departing: Departing) -> Option<u32> {
    let is_v4 = departing.to.ip()?.is_ipv4();
    let (level, option) = if is_v4 { (libc::SOL_IP, libc::IP_RECVERR) } else { (libc::SOL_IPV6, libc::IPV6_RECVERR) };
    set_option(fd, level, option, 1).ok()?;
    let sent = send_datagrams(fd, map, &[Departing { segment: 0, ..departing }]);
    let mtu = if sent.is_err() { queued_mtu(fd, (level, option)) } else { None };
    // This empties the queue, too.
    set_option(fd, level, option, 0).ok()?;
    mtu
}

/// The MTU in the last queued error of this kind, if one is that a datagram was too long.
fn queued_mtu(fd: BorrowedFd<'_>, kind: (libc::c_int, libc::c_int)) -> Option<u32> {
    let mut found = None;
    // The queue is limited by the socket's receive buffer, which is small.
    for _ in 0..MESSAGES {
        let mut control = [0u64; ERROR_BYTES / size_of::<u64>()];
        // SAFETY: `msghdr` is plain numbers and pointers, for which zeros are no name, no bytes, no flags.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = ERROR_BYTES as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the header points at control data of the length that is given, and at nothing else. Both are alive and ours for the call.
        if unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) } < 0 {
            break;
        }
        found = too_long(&control, kind).or(found);
    }
    found
}

/// The MTU, if the first control data is a queued error of this kind: a `struct cmsghdr`, then a `struct sock_extended_err`
/// (linux/errqueue.h), whose fields are the error's number, its origin in a byte, three other bytes, and the MTU.
fn too_long(control: &[u64; ERROR_BYTES / size_of::<u64>()], kind: (libc::c_int, libc::c_int)) -> Option<u32> {
    const { assert!(size_of::<libc::cmsghdr>() == 16 && size_of::<usize>() == 8) }
    let [_len, which, error, info, ..] = control.map(u64::to_ne_bytes);
    let int = |bytes: &[u8]| bytes.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
    let (level, option) = (int(&which)?, int(which.get(4..)?)?);
    let (errno, origin) = (int(&error)?, error[4]);
    let is_it = (level, option) == kind && errno == libc::EMSGSIZE && origin == libc::SO_EE_ORIGIN_LOCAL;
    is_it.then_some(int(&info)?.unsigned_abs())
}

/// Datagrams that have come from one address, one behind the other. Their index is that of their span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Landed {
    pub(crate) len: u32,
    /// The last one was longer than its span.
    pub(crate) cut: bool,
    /// Bytes of each datagram but the last.
    pub(crate) segment: u32,
    pub(crate) from: Address,
}

/// Receives datagrams into each span, up to as many as are waiting. Those that the kernel has joined (`UDP_GRO`) come into one span.
pub(crate) fn receive_datagrams(
    fd: BorrowedFd<'_>,
    map: &Map,
    spans: &[Span],
    out: &mut ArrayVec<Landed, MESSAGES>,
) -> io::Result<()> {
    out.clear();
    let mut vectors = vectors(map, spans);
    let mut headers = headers(&mut vectors);
    let mut names = [Address::default(); MESSAGES];
    let mut controls: [Control; MESSAGES] = std::array::from_fn(|_| Control::empty());
    for ((header, name), control) in headers.iter_mut().zip(&mut names).zip(&mut controls) {
        header.msg_hdr.msg_name = (&raw mut *name).cast();
        header.msg_hdr.msg_namelen = size_of::<Address>() as u32;
        header.msg_hdr.msg_control = (&raw mut *control).cast();
        header.msg_hdr.msg_controllen = size_of::<Control>() as _;
    }
    // SAFETY: each header points at one live vector, at an address and at control data that live as long, each of the length that is
    // given, and each vector at bytes of `map`, which is borrowed for the call and mapped for writing (it is private memory of an uplink).
    // No Rust reference to the bytes exists. Addresses and control data are plain numbers, of which every value is valid.
    let received = unsafe {
        let none = std::ptr::null_mut();
        libc::recvmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), headers.len() as u32, libc::MSG_DONTWAIT, none)
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    for ((header, name), control) in headers.iter().zip(&names).zip(&controls).take(received) {
        let (len, cut) = (header.msg_len, header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0);
        let joined = control.joined(header.msg_hdr.msg_controllen).filter(|bytes| *bytes != 0);
        out.push(Landed { len, cut, segment: joined.map_or(len, u32::from), from: *name });
    }
    Ok(())
}

/// Sets an option of a socket that is a number (`IP_MTU_DISCOVER`, `UDP_GRO`).
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let bytes = size_of_val(&value) as u32;
    // SAFETY: setsockopt(2) reads `bytes` of the number, which is alive for the call.
    if unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), bytes) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
