//! The messages of vfio-user as bytes: header, commands and limits (vfio-user.rst, "Protocol Specification").
//!
//! All numbers are in the host's byte order, as specified. Nothing here performs input or output. Every size from the peer is
//! compared with the received length and with a limit of this module before it is used.

mod fields;
pub mod irqs;
pub mod region;
pub mod request;
pub mod version;

use rustix::io::Errno;

pub use fields::Malformed;
pub(crate) use fields::{Fields, put_u16, put_u32, put_u64};

/// Bytes of the header before every message ("Header").
pub const HEADER_SIZE: usize = 16;
/// Most bytes that one REGION_READ, REGION_WRITE, DMA_READ or DMA_WRITE moves: the specification's default.
pub const MAX_DATA_TRANSFER: usize = 1024 * 1024;
/// Most bytes of a message, header included: a data transfer of the largest size plus its fixed fields, rounded up.
pub const MAX_MESSAGE_SIZE: usize = MAX_DATA_TRANSFER + 4096;
/// Most file descriptors that a message may carry. QEMU refuses a server that offers more than 16.
pub const MAX_MESSAGE_FDS: usize = 16;
/// Most file descriptors that a peer may announce per message: libvfio-user's limit (lib/tran.h). The kernel passes 253.
pub const MAX_PEER_FDS: u64 = 1024;
/// Most DMA windows of one client at a time: the specification's default, and the most that QEMU accepts.
pub const MAX_DMA_MAPS: usize = 65535;
/// Most bytes of one DMA window, with or without a file: 4 PiB, the physical address space of an x86-64 processor (52 bits; Intel
/// SDM volume 3, 4.1.4). libvfio-user allows 8 TiB.
pub const MAX_WINDOW: u64 = 1 << 52;
/// Page sizes for DMA maps, or'ed together: 4 KiB.
pub const PAGE_SIZES: u64 = 4096;
/// Most bytes of JSON that a VERSION message may carry.
pub const MAX_VERSION_DATA: usize = 4096;
/// Most vectors of one interrupt index: the limit of a PCI function (PCI 3.0, 6.8.2.3).
pub const MAX_VECTORS: u32 = 2048;
/// Bytes of one write inside REGION_WRITE_MULTI, fixed.
pub const MULTI_WRITE_SIZE: usize = 24;

/// The protocol's major version.
pub const VERSION_MAJOR: u16 = 0;
/// The newest minor version understood.
pub const VERSION_MINOR: u16 = 1;

/// Bits 0–3 of a header's flags: the message's type.
pub const FLAG_TYPE_MASK: u32 = 0xf;
/// Type of a reply.
pub const FLAG_REPLY: u32 = 0x1;
/// The sender of the command wants no reply (a posted write).
pub const FLAG_NO_REPLY: u32 = 0x10;
/// The reply reports an error.
pub const FLAG_ERROR: u32 = 0x20;

/// The commands ("Commands"). 14 was DIRTY_PAGES and is no longer used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Command {
    /// Client proposes a version and capabilities.
    Version = 1,
    /// Client shares a window of its memory.
    DmaMap = 2,
    /// Client removes a window.
    DmaUnmap = 3,
    /// The properties of the device.
    DeviceGetInfo = 4,
    /// The properties of a region.
    DeviceGetRegionInfo = 5,
    /// The parts of a region that can be accessed through ioeventfd or ioregionfd.
    DeviceGetRegionIoFds = 6,
    /// The properties of an interrupt index.
    DeviceGetIrqInfo = 7,
    /// Connects, masks, unmasks or triggers interrupts.
    DeviceSetIrqs = 8,
    /// Reads a region.
    RegionRead = 9,
    /// Writes a region.
    RegionWrite = 10,
    /// Server reads the client's memory.
    DmaRead = 11,
    /// Server writes the client's memory.
    DmaWrite = 12,
    /// Resets the device.
    DeviceReset = 13,
    /// Several small region writes in one message.
    RegionWriteMulti = 15,
    /// Gets, sets or probes a feature.
    DeviceFeature = 16,
    /// Reads migration data.
    MigDataRead = 17,
    /// Writes migration data.
    MigDataWrite = 18,
}

impl Command {
    /// The size of a table indexed by command: the highest command number plus one.
    pub const TABLE: usize = 19;

    /// Every command.
    pub const ALL: [Command; 17] = [
        Command::Version,
        Command::DmaMap,
        Command::DmaUnmap,
        Command::DeviceGetInfo,
        Command::DeviceGetRegionInfo,
        Command::DeviceGetRegionIoFds,
        Command::DeviceGetIrqInfo,
        Command::DeviceSetIrqs,
        Command::RegionRead,
        Command::RegionWrite,
        Command::DmaRead,
        Command::DmaWrite,
        Command::DeviceReset,
        Command::RegionWriteMulti,
        Command::DeviceFeature,
        Command::MigDataRead,
        Command::MigDataWrite,
    ];

    /// The command with this number, if there is one.
    pub fn from_number(number: u16) -> Option<Command> {
        Command::ALL.into_iter().find(|&c| c as u16 == number)
    }

    /// The specification's name without its prefix, in lower case: `region_read`.
    pub fn name(self) -> &'static str {
        match self {
            Command::Version => "version",
            Command::DmaMap => "dma_map",
            Command::DmaUnmap => "dma_unmap",
            Command::DeviceGetInfo => "device_get_info",
            Command::DeviceGetRegionInfo => "device_get_region_info",
            Command::DeviceGetRegionIoFds => "device_get_region_io_fds",
            Command::DeviceGetIrqInfo => "device_get_irq_info",
            Command::DeviceSetIrqs => "device_set_irqs",
            Command::RegionRead => "region_read",
            Command::RegionWrite => "region_write",
            Command::DmaRead => "dma_read",
            Command::DmaWrite => "dma_write",
            Command::DeviceReset => "device_reset",
            Command::RegionWriteMulti => "region_write_multi",
            Command::DeviceFeature => "device_feature",
            Command::MigDataRead => "mig_data_read",
            Command::MigDataWrite => "mig_data_write",
        }
    }
}

/// A message's header ("Header"), as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Chosen by the sender of the command, echoed in the reply.
    pub id: u16,
    /// Number of the command, known or not.
    pub command: u16,
    /// Bytes of the whole message, this header included.
    pub size: u32,
    /// Type, no-reply and error bits.
    pub flags: u32,
    /// The errno of a reply whose error bit is set.
    pub error: u32,
}

/// Whether a connection starts with a message of vhost-user (vhost-user.rst, "Header"). Its fields are: 32 bits of request, a
/// small number; 32 bits of flags, whose lowest two say version 1, and two more may be set. In vfio-user this would be command 0,
/// which does not exist, with a size smaller than the header.
pub(crate) fn is_vhost_user(first: &[u8]) -> bool {
    const FLAGS: u32 = 0xc;
    let Some(&[a, b, c, d, e, f, g, h]) = first.first_chunk() else { return false };
    let (request, flags) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
    (1..=0xff).contains(&request) && flags & !FLAGS == 1
}

/// Errors of a header. They end the session, because the stream cannot be split into messages any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The size is less than the header's own.
    #[error("a message says that it is {0} bytes long, less than its own header of 16")]
    TooShort(u32),
    /// The size is more than [`MAX_MESSAGE_SIZE`].
    #[error("a message says that it is {0} bytes long; the limit is {limit}", limit = MAX_MESSAGE_SIZE)]
    TooLong(u32),
    /// The type bits mean neither command nor reply.
    #[error("a message has type {0}, which is neither command (0) nor reply (1)")]
    Type(u32),
}

impl Header {
    /// Reads a header. Any bytes are accepted; [`Header::check`] validates them.
    pub fn decode(bytes: &[u8; HEADER_SIZE]) -> Header {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
        Header {
            id: u16::from_ne_bytes([a, b]),
            command: u16::from_ne_bytes([c, d]),
            size: u32::from_ne_bytes([e, f, g, h]),
            flags: u32::from_ne_bytes([i, j, k, l]),
            error: u32::from_ne_bytes([m, n, o, p]),
        }
    }

    /// Appends the header to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u16(out, self.id);
        put_u16(out, self.command);
        put_u32(out, self.size);
        put_u32(out, self.flags);
        put_u32(out, self.error);
    }

    /// The message's length in bytes, if the header is valid.
    pub fn check(&self) -> Result<usize, HeaderError> {
        let size = self.size as usize;
        if size < HEADER_SIZE {
            return Err(HeaderError::TooShort(self.size));
        }
        if size > MAX_MESSAGE_SIZE {
            return Err(HeaderError::TooLong(self.size));
        }
        match self.flags & FLAG_TYPE_MASK {
            0 | FLAG_REPLY => Ok(size),
            other => Err(HeaderError::Type(other)),
        }
    }

    /// Whether this is a reply; otherwise it is a command.
    pub fn is_reply(&self) -> bool {
        self.flags & FLAG_TYPE_MASK == FLAG_REPLY
    }

    /// Whether the sender of this command wants no reply.
    pub fn no_reply(&self) -> bool {
        self.flags & FLAG_NO_REPLY != 0
    }

    /// Whether this reply reports an error.
    pub fn is_error(&self) -> bool {
        self.flags & FLAG_ERROR != 0
    }
}

/// The errno of an error reply. It "may be zero even if the error bit is set".
pub(crate) fn errno_of(number: u32) -> Errno {
    match i32::try_from(number) {
        Ok(raw @ 1..=4095) => Errno::from_raw_os_error(raw),
        _ => Errno::IO,
    }
}
