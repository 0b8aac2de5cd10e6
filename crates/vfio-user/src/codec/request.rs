//! The client's commands, decoded and checked (vfio-user.rst, one section per command).

use super::irqs::RawIrqSet;
use super::region::INFO_SIZE as REGION_INFO_SIZE;
use super::version::Version;
use super::{Command, Fields, MAX_DATA_TRANSFER, MAX_WINDOW, MULTI_WRITE_SIZE, Malformed};

/// DMA_UNMAP: unmap everything (`VFIO_DMA_UNMAP_FLAG_ALL`).
pub const UNMAP_ALL: u32 = 2;
/// DMA_MAP: the device may read.
pub const MAP_READ: u32 = 1;
/// DMA_MAP: the device may write.
pub const MAP_WRITE: u32 = 2;
/// Bytes of DMA_MAP.
pub const MAP_SIZE: usize = 32;
/// Bytes of DMA_UNMAP, both ways.
pub const UNMAP_SIZE: usize = 24;
/// Bytes of DEVICE_GET_INFO, both ways.
pub const DEVICE_INFO_SIZE: usize = 16;
/// `VFIO_DEVICE_FLAGS_RESET`.
pub const DEVICE_RESET: u32 = 1;
/// `VFIO_DEVICE_FLAGS_PCI`.
pub const DEVICE_PCI: u32 = 2;
/// DEVICE_FEATURE: probe for a feature.
pub const FEATURE_PROBE: u32 = 1 << 18;

/// A range in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Bytes from the region's start.
    pub offset: u64,
    /// The region.
    pub region: u32,
    /// Number of bytes, at most [`MAX_DATA_TRANSFER`]; `offset + count` does not overflow.
    pub count: u32,
}

/// The bit position of a string access's width in the region number.
const STRING_SHIFT: u32 = 24;

impl Access {
    /// Splits a string access into the plain access and the width of each of its accesses, in bytes. A string (`rep ins`,
    /// `rep outs`) has the width of one access in the highest byte of its region number. It repeats accesses to the same offset
    /// until `count` bytes have been moved. Only peers that have both announced `port_strings` use it.
    pub fn string(self) -> Result<(Access, u32), Malformed> {
        let (region, width) = (self.region & ((1 << STRING_SHIFT) - 1), self.region >> STRING_SHIFT);
        match width {
            0 => Ok((self, self.count)),
            1 | 2 | 4 if self.count.is_multiple_of(width) => Ok((Access { region, ..self }, width)),
            _ => Err(Malformed("a string of accesses of a width that no port has, or of a part of one")),
        }
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Access, Malformed> {
        let access = Access { offset: fields.u64()?, region: fields.u32()?, count: fields.u32()? };
        if access.count as usize > MAX_DATA_TRANSFER {
            return Err(Malformed("an access is larger than max_data_xfer_size"));
        }
        if access.offset.checked_add(u64::from(access.count)).is_none() {
            return Err(Malformed("an access ends after the last address"));
        }
        Ok(access)
    }
}

/// A window of the client's memory, as in DMA_MAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRequest {
    /// `MAP_*` bits.
    pub flags: u32,
    /// Offset in the file of this message.
    pub offset: u64,
    /// First DMA address.
    pub address: u64,
    /// Bytes; not 0, at most [`MAX_WINDOW`], and `address + size - 1` and `offset + size` do not overflow.
    pub size: u64,
}

/// The writes of a REGION_WRITE_MULTI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writes<'a>(pub(crate) &'a [u8]);

impl<'a> Writes<'a> {
    /// Number of writes.
    pub fn count(&self) -> u64 {
        (self.0.len() / MULTI_WRITE_SIZE) as u64
    }

    /// The first `most` writes, or all if there are fewer.
    pub fn first(&self, most: u64) -> Writes<'a> {
        let bytes = usize::try_from(most).unwrap_or(usize::MAX).saturating_mul(MULTI_WRITE_SIZE);
        Writes(self.0.get(..bytes).unwrap_or(self.0))
    }

    /// The writes as bytes of the message.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }

    /// The writes in order; each of at most 8 bytes.
    pub fn iter(&self) -> impl Iterator<Item = Result<(Access, &'a [u8]), Malformed>> + use<'a> {
        self.0.chunks_exact(MULTI_WRITE_SIZE).map(|bytes| {
            let mut fields = Fields(bytes);
            let access = Access::decode(&mut fields)?;
            let data = fields.rest().get(..access.count as usize);
            Ok((access, data.ok_or(Malformed("REGION_WRITE_MULTI: a write of more than 8 bytes"))?))
        })
    }
}

/// A command of the client, checked as far as that is possible without the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// VERSION.
    Version(Version),
    /// DMA_MAP.
    DmaMap(MapRequest),
    /// DMA_UNMAP.
    DmaUnmap {
        /// `UNMAP_ALL` or 0.
        flags: u32,
        /// First DMA address.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// DEVICE_GET_INFO.
    DeviceInfo,
    /// DEVICE_GET_REGION_INFO.
    RegionInfo {
        /// Most bytes of the reply's payload.
        argsz: u32,
        /// The region.
        index: u32,
    },
    /// DEVICE_GET_REGION_IO_FDS.
    RegionIoFds {
        /// The region.
        index: u32,
    },
    /// DEVICE_GET_IRQ_INFO.
    IrqInfo {
        /// The interrupt index.
        index: u32,
    },
    /// DEVICE_SET_IRQS.
    SetIrqs(RawIrqSet<'a>),
    /// REGION_READ.
    Read(Access),
    /// REGION_WRITE, with the data of the access.
    Write(Access, &'a [u8]),
    /// REGION_WRITE_MULTI.
    WriteMulti(Writes<'a>),
    /// DEVICE_RESET.
    Reset,
    /// DEVICE_FEATURE.
    Feature {
        /// Feature index and operation bits.
        flags: u32,
    },
    /// A command that this server does not serve: DMA_READ, DMA_WRITE, migration data.
    Unsupported,
}

impl<'a> Request<'a> {
    /// Whether a message of this command may carry descriptors, as far as the received part of its payload tells.
    pub fn takes_fds(command: u16, payload: &[u8]) -> bool {
        match Command::from_number(command) {
            Some(Command::DmaMap) => true,
            Some(Command::DeviceSetIrqs) => {
                let mut fields = Fields(payload);
                // Yes, unless the flags exclude it. If the flags have not arrived yet, they may still allow it.
                fields.u32().is_err() || fields.u32().map_or(true, RawIrqSet::takes_fds)
            }
            _ => false,
        }
    }

    /// Reads the payload of `command`.
    pub fn decode(command: Command, payload: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let mut fields = Fields(payload);
        Ok(match command {
            Command::Version => Request::Version(Version::decode(payload)?),
            Command::DmaMap => Request::DmaMap(decode_map(fields)?),
            Command::DmaUnmap => decode_unmap(fields)?,
            Command::DeviceGetInfo => {
                argsz(&mut fields, DEVICE_INFO_SIZE)?;
                Request::DeviceInfo
            }
            Command::DeviceGetRegionInfo => {
                let argsz = argsz(&mut fields, REGION_INFO_SIZE)?;
                let _flags = fields.u32()?;
                Request::RegionInfo { argsz, index: fields.u32()? }
            }
            Command::DeviceGetRegionIoFds => {
                argsz(&mut fields, 16)?;
                let (flags, index, count) = (fields.u32()?, fields.u32()?, fields.u32()?);
                if flags != 0 || count != 0 {
                    return Err(Malformed("REGION_IO_FDS: flags and count must be 0"));
                }
                Request::RegionIoFds { index }
            }
            Command::DeviceGetIrqInfo => {
                argsz(&mut fields, super::irqs::INFO_SIZE)?;
                let _flags = fields.u32()?;
                Request::IrqInfo { index: fields.u32()? }
            }
            Command::DeviceSetIrqs => Request::SetIrqs(RawIrqSet::decode(payload)?),
            Command::RegionRead => Request::Read(Access::decode(&mut fields)?),
            Command::RegionWrite => {
                let access = Access::decode(&mut fields)?;
                if fields.rest().len() != access.count as usize {
                    return Err(Malformed("REGION_WRITE: the data is not as long as its count says"));
                }
                Request::Write(access, fields.rest())
            }
            Command::RegionWriteMulti => {
                let count = fields.u64()?;
                let bytes = fields.rest();
                if (bytes.len() / MULTI_WRITE_SIZE) as u64 != count || !bytes.len().is_multiple_of(MULTI_WRITE_SIZE) {
                    return Err(Malformed("REGION_WRITE_MULTI: the writes are not as many as the count says"));
                }
                Request::WriteMulti(Writes(bytes))
            }
            Command::DeviceReset => Request::Reset,
            Command::DeviceFeature => {
                argsz(&mut fields, 8)?;
                Request::Feature { flags: fields.u32()? }
            }
            Command::DmaRead | Command::DmaWrite | Command::MigDataRead | Command::MigDataWrite => Request::Unsupported,
        })
    }
}

fn argsz(fields: &mut Fields<'_>, least: usize) -> Result<u32, Malformed> {
    let argsz = fields.u32()?;
    if (argsz as usize) < least {
        return Err(Malformed("argsz is less than the reply's fixed part"));
    }
    Ok(argsz)
}

fn decode_map(mut fields: Fields<'_>) -> Result<MapRequest, Malformed> {
    argsz(&mut fields, MAP_SIZE)?;
    let map = MapRequest { flags: fields.u32()?, offset: fields.u64()?, address: fields.u64()?, size: fields.u64()? };
    if map.size == 0 {
        return Err(Malformed("DMA_MAP: a window of no size"));
    }
    if map.size > MAX_WINDOW {
        return Err(Malformed("DMA_MAP: a window larger than any machine's memory"));
    }
    if map.address.checked_add(map.size - 1).is_none() || map.offset.checked_add(map.size).is_none() {
        return Err(Malformed("DMA_MAP: the window ends after the last address"));
    }
    if map.flags & !(MAP_READ | MAP_WRITE) != 0 {
        return Err(Malformed("DMA_MAP: unknown flags"));
    }
    Ok(map)
}

fn decode_unmap<'a>(mut fields: Fields<'_>) -> Result<Request<'a>, Malformed> {
    argsz(&mut fields, UNMAP_SIZE)?;
    let (flags, address, size) = (fields.u32()?, fields.u64()?, fields.u64()?);
    match flags {
        0 => {}
        UNMAP_ALL if address == 0 && size == 0 => {}
        UNMAP_ALL => return Err(Malformed("DMA_UNMAP: everything, but also an address or a size")),
        _ => return Err(Malformed("DMA_UNMAP: unknown flags")),
    }
    Ok(Request::DmaUnmap { flags, address, size })
}
