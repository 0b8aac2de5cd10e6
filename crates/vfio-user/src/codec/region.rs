//! DEVICE_GET_REGION_INFO with its sparse mmap capability (vfio-user.rst, the section of that name).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{Fields, Malformed, put_u16, put_u32, put_u64};

/// Bytes of the fixed part (`struct vfio_region_info`); capabilities begin there.
pub const INFO_SIZE: usize = 32;
/// `VFIO_REGION_INFO_FLAG_READ`.
pub const FLAG_READ: u32 = 1;
/// `VFIO_REGION_INFO_FLAG_WRITE`.
pub const FLAG_WRITE: u32 = 2;
/// `VFIO_REGION_INFO_FLAG_MMAP`.
pub const FLAG_MMAP: u32 = 4;
/// `VFIO_REGION_INFO_FLAG_CAPS`.
pub const FLAG_CAPS: u32 = 8;
/// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`.
pub const CAP_SPARSE_MMAP: u16 = 1;
/// Most areas of a sparse region that are sent or accepted.
pub const MAX_AREAS: usize = 64;

const SPARSE_HEADER: usize = 16;
const AREA_SIZE: usize = 16;

/// A part of a region, in bytes from the region's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Offset within the region, a multiple of the page size.
    pub offset: u64,
    /// Size in bytes, a multiple of the page size.
    pub size: u64,
}

/// Memory that a client may map, to access it without messages.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The file to map, kept open by the device.
    pub fd: Arc<OwnedFd>,
    /// Offset of the region's start within the file, a multiple of the page size.
    pub offset: u64,
    /// The parts that may be mapped. Empty: the whole region.
    pub areas: Vec<Area>,
}

/// The properties of a region. The default is a region that does not exist: size 0.
#[derive(Clone, Debug, Default)]
pub struct RegionInfo {
    /// Size in bytes; 0 if the device has no such region.
    pub size: u64,
    /// Whether the client may read it.
    pub readable: bool,
    /// Whether the client may write it.
    pub writable: bool,
    /// The memory that the client may map. QEMU posts no writes to a device with a mapping in any region.
    pub mapping: Option<Mapping>,
}

impl RegionInfo {
    /// A region of `size` bytes that is accessed by messages.
    pub fn trapped(size: u64) -> RegionInfo {
        RegionInfo { size, readable: true, writable: true, mapping: None }
    }

    /// Appends the reply's payload for region `index` to `out`. If it does not fit into `argsz`, only the fixed part is sent,
    /// with the required size and without capabilities (libvfio-user does the same; QEMU asks again). Returns the descriptor to
    /// send with a complete reply.
    pub fn encode(&self, index: u32, argsz: u32, out: &mut Vec<u8>) -> Option<Arc<OwnedFd>> {
        let areas = self.mapping.as_ref().map_or(&[][..], |m| m.areas.get(..MAX_AREAS).unwrap_or(&m.areas));
        let capabilities = if areas.is_empty() { 0 } else { SPARSE_HEADER + AREA_SIZE * areas.len() };
        let whole = INFO_SIZE + capabilities;
        let is_whole = argsz as usize >= whole;
        let follows = is_whole && capabilities > 0;
        let bit = |on: bool, flag: u32| if on { flag } else { 0 };
        let flags = bit(self.readable, FLAG_READ)
            | bit(self.writable, FLAG_WRITE)
            | bit(self.mapping.is_some(), FLAG_MMAP)
            | bit(follows, FLAG_CAPS);
        put_u32(out, whole as u32);
        put_u32(out, flags);
        put_u32(out, index);
        put_u32(out, if follows { INFO_SIZE as u32 } else { 0 });
        put_u64(out, self.size);
        put_u64(out, self.mapping.as_ref().map_or(0, |m| m.offset));
        if !is_whole {
            return None;
        }
        if follows {
            put_u16(out, CAP_SPARSE_MMAP);
            put_u16(out, 1);
            put_u32(out, 0);
            put_u32(out, areas.len() as u32);
            put_u32(out, 0);
            for area in areas {
                put_u64(out, area.offset);
                put_u64(out, area.size);
            }
        }
        self.mapping.as_ref().map(|m| Arc::clone(&m.fd))
    }
}

/// A reply to DEVICE_GET_REGION_INFO, as the client reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionReply {
    /// Bytes of a complete reply.
    pub argsz: u32,
    /// `FLAG_*` bits.
    pub flags: u32,
    /// The region.
    pub index: u32,
    /// Offset of the capabilities in the payload; 0 if there are none.
    pub cap_offset: u32,
    /// Size of the region in bytes.
    pub size: u64,
    /// Offset of the region's start in the file of this message.
    pub offset: u64,
    /// Areas that may be mapped; empty if the reply was truncated or has no sparse capability.
    pub areas: Vec<Area>,
}

impl RegionReply {
    /// Reads a reply's payload. A reply without its capabilities has no areas and a larger `argsz`.
    pub fn decode(payload: &[u8]) -> Result<RegionReply, Malformed> {
        let mut fields = Fields(payload);
        let mut reply = RegionReply {
            argsz: fields.u32()?,
            flags: fields.u32()?,
            index: fields.u32()?,
            cap_offset: fields.u32()?,
            size: fields.u64()?,
            offset: fields.u64()?,
            areas: Vec::new(),
        };
        if reply.flags & FLAG_CAPS == 0 {
            return Ok(reply);
        }
        let mut at = reply.cap_offset as usize;
        let mut before = 0;
        while at != 0 && at < payload.len() {
            if at < INFO_SIZE || at <= before {
                return Err(Malformed("region info: the list of capabilities does not go forward"));
            }
            before = at;
            let mut cap = Fields(payload.get(at..).unwrap_or(&[]));
            let (id, _version, next) = (cap.u16()?, cap.u16()?, cap.u32()?);
            if id == CAP_SPARSE_MMAP {
                let count = cap.u32()? as usize;
                let _reserved = cap.u32()?;
                if count > MAX_AREAS {
                    return Err(Malformed("region info: too many areas"));
                }
                for _ in 0..count {
                    reply.areas.push(Area { offset: cap.u64()?, size: cap.u64()? });
                }
            }
            at = next as usize;
        }
        Ok(reply)
    }
}
