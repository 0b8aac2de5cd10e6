//! Opening the queues of an interface: memory, rings, socket, program. Only with rights in the initial user namespace.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nicety_memory::shared_file;
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::error::os;
use super::program::Program;
use super::ring::Ring;
use super::{HEADER_BYTES, Line, Lost, Mode, RECEIVE, Rings, TRANSMIT, Xdp, XdpError};
use crate::buffers::Buffers;
use crate::events::LinkEvents;
use crate::joining::Joining;
use crate::system;
use crate::watch::Watch;

/// Flags of an interface by which frames pass: it is up, and has a carrier.
pub(super) const UP: i32 = libc::IFF_UP | libc::IFF_RUNNING;
/// Bytes that the kernel keeps free before a received frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;
/// Two VLAN tags.
const TAGS_BYTES: u32 = 8;
/// Sizes of a piece of memory; a page is the greatest.
pub(super) const PIECES: [u32; 2] = [2048, 4096];
/// Binding is tried for so long: the kernel frees a queue some time after its socket was closed.
const LET_GO: Duration = Duration::from_secs(1);

/// A socket with its memory and rings, not bound yet.
struct Raw {
    socket: OwnedFd,
    memory: Buffers,
    memory_file: OwnedFd,
    rings: Rings,
}

/// Parts of an uplink that are made anew in each process.
pub(super) struct Parts {
    pub(super) name: String,
    pub(super) queue: u16,
    pub(super) index: u32,
    pub(super) piece: u32,
    pub(super) longest: u32,
    pub(super) socket: OwnedFd,
    pub(super) memory_file: OwnedFd,
    pub(super) memory: Buffers,
    pub(super) rings: Rings,
    pub(super) link: OwnedFd,
    pub(super) mode: Mode,
}

fn socket(name: &str) -> Result<OwnedFd, XdpError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None).map_err(|error| match error {
        Errno::AFNOSUPPORT => XdpError::NoSockets,
        error => os(name, "an AF_XDP socket")(error.into()),
    })
}

/// A socket by which the settings of this interface are read.
fn any_socket(name: &str) -> Result<OwnedFd, XdpError> {
    let any = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None);
    any.map_err(|error| os(name, "reading an interface's settings")(error.into()))
}

/// The interface's number, its MTU, and the size of the pieces of memory that its frames need.
pub(super) fn look(name: &str) -> Result<(u32, u32, u32), XdpError> {
    let any = any_socket(name)?;
    let index = name_to_index(&any, name).map_err(|_| XdpError::Missing(name.to_owned()))?;
    let reading = os(name, "reading an interface's settings");
    if system::hardware_address(any.as_fd(), name).map_err(&reading)?.is_none() {
        return Err(XdpError::NotEthernet(name.to_owned()));
    }
    let mtu = system::mtu(any.as_fd(), name).map_err(&reading)?;
    let most = |piece: u32| piece - HEADROOM - HEADER_BYTES - TAGS_BYTES;
    match PIECES.into_iter().find(|&piece| mtu <= most(piece)) {
        Some(piece) => Ok((index, mtu, piece)),
        None => Err(XdpError::Mtu { name: name.to_owned(), mtu, most: most(PIECES[1]) }),
    }
}

impl Raw {
    fn new(name: &str, piece: u32) -> Result<Self, XdpError> {
        let bytes = (RECEIVE + TRANSMIT) * piece;
        let socket = socket(name)?;
        let memory_file = shared_file("nicety xdp", bytes.into())?;
        let copy = memory_file.try_clone().map_err(os(name, "duplicating a descriptor"))?;
        let memory = Buffers::of_file(copy, bytes)?;
        let registered = sockopt::set_xdp_umem_reg(
            &socket,
            XdpUmemReg {
                addr: memory.address(),
                len: bytes.into(),
                chunk_size: piece,
                headroom: 0,
                flags: XdpUmemRegFlags::empty(),
                tx_metadata_len: 0,
            },
        );
        registered.map_err(|error| match error {
            Errno::NOBUFS => XdpError::Locked { name: name.to_owned(), bytes },
            error => os(name, "sharing memory with the kernel (XDP_UMEM_REG)")(error.into()),
        })?;
        let sizes = sockopt::set_xdp_umem_fill_ring_size(&socket, RECEIVE)
            .and_then(|()| sockopt::set_xdp_rx_ring_size(&socket, RECEIVE))
            .and_then(|()| sockopt::set_xdp_umem_completion_ring_size(&socket, TRANSMIT))
            .and_then(|()| sockopt::set_xdp_tx_ring_size(&socket, TRANSMIT));
        sizes.map_err(|error| os(name, "making AF_XDP rings")(error.into()))?;
        let rings = Rings::map(&socket).map_err(os(name, "mapping AF_XDP rings"))?;
        Ok(Self { socket, memory, memory_file, rings })
    }

    /// Binds the socket to its queue: with zero copy if the driver can, else with a copy.
    fn bind(&self, name: &str, index: u32, queue: u16) -> Result<(), XdpError> {
        let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP, index, queue.into());
        let end = Instant::now() + LET_GO;
        loop {
            return match rustix::net::bind(&self.socket, &address) {
                Ok(()) => Ok(()),
                Err(Errno::BUSY) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
                Err(Errno::BUSY) => Err(XdpError::Taken { name: name.to_owned(), queue }),
                Err(Errno::INVAL) => Err(XdpError::NoQueue { name: name.to_owned(), queue }),
                Err(Errno::NODEV) => Err(XdpError::Missing(name.to_owned())),
                Err(error) => Err(os(name, "binding an AF_XDP socket to a queue")(error.into())),
            };
        }
    }
}

impl Rings {
    /// Maps a socket's rings.
    pub(super) fn map(socket: &OwnedFd) -> io::Result<Self> {
        let at = sockopt::xdp_mmap_offsets(socket)?;
        Ok(Self {
            fill: Ring::map(socket.as_fd(), XDP_UMEM_PGOFF_FILL_RING, at.fr, RECEIVE)?,
            receive: Ring::map(socket.as_fd(), XDP_PGOFF_RX_RING, at.rx, RECEIVE)?,
            transmit: Ring::map(socket.as_fd(), XDP_PGOFF_TX_RING, at.tx, TRANSMIT)?,
            completion: Ring::map(socket.as_fd(), XDP_UMEM_PGOFF_COMPLETION_RING, at.cr, TRANSMIT)?,
        })
    }
}

/// Attaches the program. The driver runs it if it can, else the kernel. True if the driver does.
fn attach(program: &Program, name: &str, index: u32, zero_copy: bool) -> Result<(OwnedFd, bool), XdpError> {
    let is_taken = |error: &io::Error| matches!(Errno::from_io_error(error), Some(Errno::BUSY | Errno::EXIST));
    let failed = |source: io::Error| match Errno::from_io_error(&source) {
        _ if is_taken(&source) => XdpError::Program(name.to_owned()),
        Some(Errno::PERM | Errno::ACCESS) => os(name, "attaching an XDP program")(source),
        _ => XdpError::NoXdp { name: name.to_owned(), source },
    };
    match program.attach(index, true) {
        Ok(link) => Ok((link, true)),
        // A driver that knows XDP, but not with these settings of the interface.
        Err(error) if !zero_copy && !is_taken(&error) => match program.attach(index, false) {
            Ok(link) => Ok((link, false)),
            Err(_) => Err(failed(error)),
        },
        Err(error) => Err(failed(error)),
    }
}

impl Xdp {
    /// Opens the first `count` queues (at least 1) of the interface of this name, and attaches an XDP program to it that gives their
    /// frames to us. Program and sockets go when all of them are dropped.
    pub fn open(name: &str, count: u16) -> Result<Vec<Self>, XdpError> {
        let (index, mtu, piece) = look(name)?;
        let program = Program::load(count.max(1)).map_err(os(name, "an XDP program"))?;
        let mut bound = Vec::new();
        for queue in 0..count.max(1) {
            let mut raw = Raw::new(name, piece)?;
            (0..RECEIVE).for_each(|at| _ = raw.rings.fill.push(u64::from(at * piece)));
            raw.bind(name, index, queue)?;
            program.give(queue, raw.socket.as_fd()).map_err(os(name, "naming a socket to an XDP program"))?;
            let options = sockopt::xdp_options(&raw.socket).map_err(|error| os(name, "XDP_OPTIONS")(error.into()))?;
            bound.push((queue, raw, options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY)));
        }
        let zero_copy = bound.iter().any(|(.., zero_copy)| *zero_copy);
        let (link, by_driver) = attach(&program, name, index, zero_copy)?;
        let made = bound.into_iter().map(|(queue, raw, zero_copy)| {
            let Raw { socket, memory, memory_file, rings } = raw;
            let link = link.try_clone().map_err(os(name, "duplicating a descriptor"))?;
            let longest = longest(mtu);
            let mode = Mode { zero_copy, by_driver };
            let name = name.to_owned();
            Self::with(Parts { name, queue, index, piece, longest, socket, memory_file, memory, rings, link, mode })
        });
        made.collect()
    }

    /// Finds out whether [`Xdp::open`] has the rights, and the interface is fit for it and has so many queues, without changing anything. It
    /// cannot find out whether another process has them.
    pub fn check(name: &str, count: u16) -> Result<(), XdpError> {
        look(name)?;
        let queues = system::queues(any_socket(name)?.as_fd(), name).and_then(|queues| u16::try_from(queues).ok());
        if let Some(queue) = queues.filter(|queues| *queues < count) {
            return Err(XdpError::NoQueue { name: name.to_owned(), queue });
        }
        socket(name)?;
        Program::load(1).map_err(os(name, "an XDP program"))?;
        Ok(())
    }

    pub(super) fn with(parts: Parts) -> Result<Self, XdpError> {
        let Parts { name, queue, index, piece, longest, socket, memory_file, memory, rings, link, mode } = parts;
        let label = name.clone();
        let watching = os(&label, "watching an interface");
        let watch = Watch::new().map_err(&watching)?;
        watch.add(&socket).map_err(&watching)?;
        let events = LinkEvents::new().ok().filter(|events| watch.add(events).is_ok());
        let any = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None);
        let any = any.map_err(|error| watching(error.into()))?;
        let line = match system::flags(any.as_fd(), &name) {
            Ok(flags) if flags & UP == UP => Line::Up,
            _ => Line::Down,
        };
        Ok(Self {
            queue,
            index,
            piece,
            longest,
            rings,
            socket,
            link,
            memory,
            memory_file,
            mode,
            watch,
            events,
            joining: Joining::new(),
            lent: Vec::with_capacity(RECEIVE as usize),
            borrowed: false,
            free: free(piece),
            full: false,
            now: nicety_adapter::Time::ZERO,
            line,
            logged: None,
            uncounted: 0,
            lost: Lost::default(),
            name,
        })
    }
}

/// The longest frame of an interface with this MTU.
pub(super) fn longest(mtu: u32) -> u32 {
    mtu + HEADER_BYTES + TAGS_BYTES
}

/// Addresses of all pieces for frames that are sent.
pub(super) fn free(piece: u32) -> Vec<u64> {
    (RECEIVE..RECEIVE + TRANSMIT).map(|at| u64::from(at * piece)).collect()
}
