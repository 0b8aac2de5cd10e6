//! A tap interface of the host. Follows Linux's `Documentation/networking/tuntap.rst` and `drivers/net/tun.c`.
//!
//! The interface is attached by name, or made if this process may. It is not brought up, bridged or given an address:
//! that is its administrator's. Checksums that are still to be made and packets that are still to be cut pass both
//! ways as they are, told by a virtio header before each frame. A tap takes one frame per call, each whole, from one
//! buffer.

mod error;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, PACKET_BYTES, Packet, Piece, PortId, Progress, Reason, Time, Uplink,
    Wants,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use vm_memory::{ReadVolatile, VolatileMemoryError, WriteVolatile};

use crate::buffers::{Buffers, SLOT_BYTES};
use crate::egress::{self, Put, Sink};
use crate::offload::passes_uncut;
use crate::system;
use crate::virtio_header::{self, HEADER_BYTES};
use crate::watch::{Watch, writable};
pub use error::TapError;

/// What is asked of the kernel, best first: it answers EINVAL to what it does not know (UDP came with Linux 6.2).
const OFFLOADS: [u32; 3] = [
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN | libc::TUN_F_USO4 | libc::TUN_F_USO6,
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN,
    0,
];
/// Room for a batch: its bytes, headers and gaps, and one more packet of the greatest length.
const BATCH_BYTES: u32 = (64 << 10) + (16 << 10) + 2 * SLOT_BYTES;

/// See the module's page.
#[derive(Debug)]
pub struct Tap {
    name: String,
    fd: OwnedFd,
    watch: Watch,
    offloads: u32,
    arrived: Buffers,
    leaving: Buffers,
    lent: bool,
    /// Refused for want of room; the watch tells when there is some.
    full: bool,
    /// Room came back.
    room: bool,
    gone: bool,
}

impl Tap {
    /// Attaches to the tap of this name, or makes it (it then goes with this object). `tap%d` takes the next free
    /// number.
    pub fn open(name: &str) -> Result<Self, TapError> {
        let fits = (1..libc::IFNAMSIZ).contains(&name.len())
            && !name.bytes().any(|byte| byte == b'/' || byte == b':' || byte == 0 || byte.is_ascii_whitespace())
            && !matches!(name, "." | "..");
        if !fits {
            return Err(TapError::Name(name.to_owned()));
        }
        let os = |doing| move |source: io::Error| TapError::Os { doing, source };
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(TapError::opening)?;
        let actual = system::set_interface(fd.as_fd(), name)
            .map_err(|error| TapError::attaching(name, is_there(name), error))?;
        system::set_header(fd.as_fd(), HEADER_BYTES).map_err(os("setting a tap's header (TUNSETVNETHDRSZ)"))?;
        let offloads = OFFLOADS.into_iter().find(|&flags| system::set_offload(fd.as_fd(), flags).is_ok()).unwrap_or(0);
        let watch = Watch::new().map_err(os("making an epoll instance"))?;
        watch.add(&fd).map_err(os("watching a tap"))?;
        Ok(Self {
            name: actual,
            fd,
            watch,
            offloads,
            arrived: Buffers::new(BATCH_BYTES)?,
            leaving: Buffers::new(SLOT_BYTES)?,
            lent: false,
            full: false,
            room: false,
            gone: false,
        })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What passes uncut, in words for a person: "checksum", "tso4", "tso6", "uso".
    pub fn features(&self) -> Vec<&'static str> {
        let names = [
            (libc::TUN_F_CSUM, "checksum"),
            (libc::TUN_F_TSO4, "tso4"),
            (libc::TUN_F_TSO6, "tso6"),
            (libc::TUN_F_USO4, "uso"),
        ];
        names.into_iter().filter(|(flag, _)| self.has(*flag)).map(|(_, name)| name).collect()
    }

    /// Whether the interface was deleted.
    pub fn gone(&self) -> bool {
        self.gone
    }

    fn has(&self, flag: u32) -> bool {
        self.offloads & flag != 0
    }

    /// One frame into `[at, ..)`. `Err(None)`: none is there.
    fn read(&self, at: u32) -> Result<u32, Option<Errno>> {
        let mut bytes = self.arrived.map().bytes(self.arrived.span(at, SLOT_BYTES));
        match (&self.fd).read_volatile(&mut bytes) {
            Ok(len) => Ok(len as u32),
            Err(error) => match errno(&error) {
                Errno::AGAIN | Errno::INTR => Err(None),
                error => Err(Some(error)),
            },
        }
    }

    /// Drafts the frame that was read into `[at, at + len)`.
    fn draft(&self, at: u32, len: u32, batch: &mut Batch) -> Result<(), Reason> {
        let mut header = [0; HEADER_BYTES as usize];
        self.arrived.map().read_span(self.arrived.span(at, HEADER_BYTES), &mut header);
        let len = len.checked_sub(HEADER_BYTES).filter(|&len| len >= 14).ok_or(Reason::TooShort)?;
        if len > PACKET_BYTES {
            return Err(Reason::TooLong);
        }
        let asked = virtio_header::decode(header).ok_or(Reason::BadOffload)?;
        let mut draft = batch.draft(asked.head_wanted()).ok_or(Reason::BufferFull)?;
        draft.push_span(self.arrived.span(at + HEADER_BYTES, len)).map_err(|_| Reason::TooLong)?;
        let offload = asked.vet(draft.head_mut(), len).ok_or(Reason::BadOffload)?;
        draft.finish(offload, 0);
        Ok(())
    }

    fn lose(&mut self) {
        self.gone = true;
        self.watch.remove(&self.fd);
    }
}

/// Whether an interface has this name.
fn is_there(name: &str) -> bool {
    let any = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    any.and_then(|socket| name_to_index(socket, name)).is_ok()
}

fn errno(error: &VolatileMemoryError) -> Errno {
    match error {
        VolatileMemoryError::IOError(error) => Errno::from_io_error(error).unwrap_or(Errno::IO),
        _ => Errno::IO,
    }
}

impl Uplink for Tap {
    fn fetch(
        &mut self,
        port: PortId,
        budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        _now: Time,
    ) -> Progress {
        self.room = self.full && writable(&self.fd);
        if self.room {
            self.full = false;
            let _it_was_deleted = self.watch.room(&self.fd, false);
        }
        if self.lent && self.arrived.held() {
            batch.start(&nicety_memory::Map::empty(), port, 0);
            return Progress { more: true, armed: false };
        }
        batch.start(self.arrived.map(), port, 0);
        let mut progress = Progress { more: true, armed: false };
        let (mut at, mut reads) = (0, 0);
        while !self.gone
            && budget.allows(batch)
            && reads < budget.packets.max(1)
            && at + SLOT_BYTES <= self.arrived.len()
        {
            reads += 1;
            match self.read(at) {
                Ok(len) => match self.draft(at, len, batch) {
                    Ok(()) => {
                        let packet = batch.packets().last();
                        let (frames, bytes) = packet.map_or((1, 0), |packet| (packet.frames(), packet.len()));
                        counters.sent(0, u64::from(frames), u64::from(bytes));
                        at = (at + len).next_multiple_of(64);
                    }
                    Err(reason) => counters.transmit_drop(reason),
                },
                Err(None) => {
                    progress = Progress { more: false, armed: true };
                    break;
                }
                Err(Some(_)) => self.lose(),
            }
        }
        if self.gone {
            progress = Progress { more: false, armed: true };
        }
        self.lent = !batch.is_empty();
        progress
    }

    fn complete(&mut self, _batch: &Batch) {
        self.lent = false;
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _now: Time) -> Delivery {
        self.room = false;
        let delivery = egress::deliver(frames, counters, self);
        if delivery.refused != 0 {
            self.full = self.watch.room(&self.fd, true).is_ok();
        }
        delivery
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.descriptor())
    }

    fn wake(&self) -> Option<Time> {
        self.room.then_some(Time::ZERO)
    }
}

impl Sink for Tap {
    fn wants(&self, packet: &Packet) -> Wants {
        let uncut = passes_uncut(packet) && self.has(libc::TUN_F_CSUM);
        Wants {
            frame_max: PACKET_BYTES,
            tcp4: uncut && self.has(libc::TUN_F_TSO4),
            tcp6: uncut && self.has(libc::TUN_F_TSO6),
            udp: uncut && self.has(libc::TUN_F_USO4),
            partial: self.has(libc::TUN_F_CSUM),
            untag: false,
            verify: false,
        }
    }

    fn put(&mut self, piece: &mut Piece<'_>) -> Put {
        if self.gone {
            return Put::Dropped(Reason::LinkDown);
        }
        let len = piece.len();
        if len > PACKET_BYTES {
            return Put::Dropped(Reason::TooLong);
        }
        let checked = piece.write(self.leaving.map(), &[self.leaving.span(HEADER_BYTES, len)]);
        let header = virtio_header::encode(piece, checked);
        self.leaving.map().write_span(self.leaving.span(0, HEADER_BYTES), &header);
        let bytes = self.leaving.map().bytes(self.leaving.span(0, HEADER_BYTES + len));
        match (&self.fd).write_volatile(&bytes) {
            Ok(_) => Put::Taken,
            Err(error) => match errno(&error) {
                Errno::AGAIN | Errno::INTR => Put::Full,
                // The interface is not up.
                Errno::IO => Put::Dropped(Reason::LinkDown),
                Errno::INVAL => Put::Dropped(Reason::BadOffload),
                Errno::BADFD => {
                    self.lose();
                    Put::Dropped(Reason::LinkDown)
                }
                _ => Put::Dropped(Reason::UplinkRefused),
            },
        }
    }
}
