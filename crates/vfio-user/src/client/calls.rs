//! The commands of a client, one method each (vfio-user.rst, one section per command).

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use nicety_peer::PeerFd;
use rustix::io::Errno;

use super::{Client, ClientError};
use crate::codec::irqs::{self, IrqAction, IrqData, IrqInfo, IrqSet};
use crate::codec::region::{Area, FLAG_MMAP, FLAG_READ, FLAG_WRITE, INFO_SIZE, RegionReply};
use crate::codec::request::{DEVICE_INFO_SIZE, DEVICE_RESET, MAP_READ, MAP_SIZE, MAP_WRITE, UNMAP_ALL, UNMAP_SIZE};
use crate::codec::{Command, Fields, MAX_MESSAGE_FDS, Malformed, put_u32, put_u64};
use crate::device::{DeviceInfo, DmaProtection, DmaRange};

/// A region, and its parts that may be mapped.
#[derive(Debug)]
pub struct RegionDetails {
    /// Size in bytes, 0 if there is none.
    pub size: u64,
    /// Whether it can be read.
    pub readable: bool,
    /// Whether it can be written.
    pub writable: bool,
    /// The file to map, if the server shares one.
    pub fd: Option<OwnedFd>,
    /// Offset of the region's start within that file.
    pub offset: u64,
    /// The parts that may be mapped. If empty, and there is a file: the whole region.
    pub areas: Vec<Area>,
}

impl Client {
    /// The properties of the device.
    pub fn device_info(&mut self) -> Result<DeviceInfo, ClientError> {
        self.call(Command::DeviceGetInfo, Vec::new(), |out| {
            put_u32(out, DEVICE_INFO_SIZE as u32);
            out.resize(out.len() + 12, 0);
        })?;
        let mut fields = Fields(&self.reply);
        let (_argsz, flags) = (fields.u32()?, fields.u32()?);
        Ok(DeviceInfo { regions: fields.u32()?, irqs: fields.u32()?, resettable: flags & DEVICE_RESET != 0 })
    }

    /// The properties of a region.
    pub fn region_info(&mut self, index: u32) -> Result<RegionDetails, ClientError> {
        let mut argsz = INFO_SIZE as u32;
        let mut reply = self.region_reply(index, argsz)?;
        if reply.argsz > argsz {
            argsz = reply.argsz.min(4096);
            reply = self.region_reply(index, argsz)?;
        }
        let fd = if reply.flags & FLAG_MMAP != 0 { self.reply_fds.pop() } else { None };
        Ok(RegionDetails {
            size: reply.size,
            readable: reply.flags & FLAG_READ != 0,
            writable: reply.flags & FLAG_WRITE != 0,
            fd,
            offset: reply.offset,
            areas: reply.areas,
        })
    }

    fn region_reply(&mut self, index: u32, argsz: u32) -> Result<RegionReply, ClientError> {
        self.call(Command::DeviceGetRegionInfo, Vec::new(), |out| {
            put_u32(out, argsz);
            put_u32(out, 0);
            put_u32(out, index);
            out.resize(out.len() + 20, 0);
        })?;
        Ok(RegionReply::decode(&self.reply)?)
    }

    /// Number of parts of a region that can be accessed through ioeventfd or ioregionfd.
    pub fn region_io_fds(&mut self, index: u32) -> Result<u32, ClientError> {
        self.call(Command::DeviceGetRegionIoFds, Vec::new(), |out| {
            put_u32(out, 4096);
            put_u32(out, 0);
            put_u32(out, index);
            put_u32(out, 0);
        })?;
        let mut fields = Fields(&self.reply);
        let (_argsz, _flags, _index) = (fields.u32()?, fields.u32()?, fields.u32()?);
        Ok(fields.u32()?)
    }

    /// The properties of an interrupt index.
    pub fn irq_info(&mut self, index: u32) -> Result<IrqInfo, ClientError> {
        self.call(Command::DeviceGetIrqInfo, Vec::new(), |out| {
            put_u32(out, irqs::INFO_SIZE as u32);
            put_u32(out, 0);
            put_u32(out, index);
            put_u32(out, 0);
        })?;
        let mut fields = Fields(&self.reply);
        let (_argsz, flags, _index) = (fields.u32()?, fields.u32()?, fields.u32()?);
        Ok(IrqInfo { flags, count: fields.u32()? })
    }

    /// Reads a region.
    pub fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        let count = self.transfer(data.len())?;
        self.counters.reads += 1;
        self.call(Command::RegionRead, Vec::new(), |out| put_access(out, region, offset, count))?;
        let mut fields = Fields(&self.reply);
        let (_offset, _region, answered) = (fields.u64()?, fields.u32()?, fields.u32()?);
        if answered != count || fields.rest().len() != data.len() {
            return Err(Malformed("a read of another length than was asked for").into());
        }
        data.copy_from_slice(fields.rest());
        Ok(())
    }

    /// Writes a region and waits until the device has it.
    pub fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let count = self.transfer(data.len())?;
        self.counters.writes += 1;
        self.call(Command::RegionWrite, Vec::new(), |out| {
            put_access(out, region, offset, count);
            out.extend_from_slice(data);
        })
    }

    /// Writes a region without waiting; errors are not reported.
    pub fn region_write_posted(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let count = self.transfer(data.len())?;
        self.counters.writes += 1;
        self.counters.posted_writes += 1;
        self.post(Command::RegionWrite, |out| {
            put_access(out, region, offset, count);
            out.extend_from_slice(data);
        })
    }

    /// Several writes (region, offset, at most 8 bytes) in one message, waiting for the answer unless `posted`.
    pub fn write_multi(&mut self, writes: &[(u32, u64, &[u8])], posted: bool) -> Result<(), ClientError> {
        if self.server.write_multiple != Some(true) {
            return Err(ClientError::Limit("the server did not offer write_multiple"));
        }
        if writes.iter().any(|w| w.2.len() > 8) || writes.len() > 4096 {
            return Err(ClientError::Limit("at most 4096 writes of at most 8 bytes"));
        }
        let encode = |out: &mut Vec<u8>| {
            put_u64(out, writes.len() as u64);
            for (region, offset, data) in writes {
                put_access(out, *region, *offset, data.len() as u32);
                let padded = out.len() + 8;
                out.extend_from_slice(data);
                out.resize(padded, 0);
            }
        };
        self.counters.writes += writes.len() as u64;
        if posted {
            self.counters.posted_writes += writes.len() as u64;
            return self.post(Command::RegionWriteMulti, encode);
        }
        self.call(Command::RegionWriteMulti, Vec::new(), encode)?;
        if Fields(&self.reply).u64()? != writes.len() as u64 {
            return Err(Malformed("another number of writes than was sent").into());
        }
        Ok(())
    }

    /// Shares a window of memory: the file and the window's offset in it, or no file if the server must use messages.
    pub fn dma_map(
        &mut self,
        range: DmaRange,
        protection: DmaProtection,
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<(), ClientError> {
        let fds = match file {
            Some((fd, _)) => vec![Arc::new(rustix::io::fcntl_dupfd_cloexec(fd, 0)?)],
            None => Vec::new(),
        };
        self.call(Command::DmaMap, fds, |out| {
            put_u32(out, MAP_SIZE as u32);
            let bit = |on, flag| if on { flag } else { 0 };
            put_u32(out, bit(protection.read, MAP_READ) | bit(protection.write, MAP_WRITE));
            put_u64(out, file.map_or(0, |(_, offset)| offset));
            put_u64(out, range.address);
            put_u64(out, range.size);
        })
    }

    /// Removes a window; after this the server does not touch it.
    pub fn dma_unmap(&mut self, range: DmaRange) -> Result<(), ClientError> {
        self.unmap(0, range.address, range.size)
    }

    /// Removes all windows.
    pub fn dma_unmap_all(&mut self) -> Result<(), ClientError> {
        self.unmap(UNMAP_ALL, 0, 0)
    }

    fn unmap(&mut self, flags: u32, address: u64, size: u64) -> Result<(), ClientError> {
        self.call(Command::DmaUnmap, Vec::new(), |out| {
            put_u32(out, UNMAP_SIZE as u32);
            put_u32(out, flags);
            put_u64(out, address);
            put_u64(out, size);
        })
    }

    /// Sends any SET_IRQS. The caller must split descriptors that exceed the server's limit per message ([`Client::connect_irqs`]
    /// does so).
    pub fn set_irqs(&mut self, mut set: IrqSet<'_>) -> Result<(), ClientError> {
        let fds: Vec<Arc<OwnedFd>> = match &mut set.data {
            IrqData::Connect(fds) => fds.drain(..).map(|fd| Arc::new(fd.into())).collect(),
            _ => Vec::new(),
        };
        if fds.len() > self.server.fd_limit() {
            return Err(ClientError::Limit("more descriptors than the server takes in one message"));
        }
        self.call(Command::DeviceSetIrqs, fds, |out| set.encode(out))
    }

    /// Connects eventfds, from `start` on. Sends as many messages as the server's limit requires.
    pub fn connect_irqs(&mut self, index: u32, start: u32, fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let chunk = self.server.fd_limit().clamp(1, MAX_MESSAGE_FDS);
        let mut at = start;
        for fds in fds.chunks(chunk) {
            let copies: Result<Vec<_>, Errno> = fds.iter().map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0)).collect();
            let (count, data) = (fds.len() as u32, IrqData::Connect(copies?.into_iter().map(PeerFd::from).collect()));
            self.set_irqs(IrqSet { index, start: at, count, action: IrqAction::Trigger, data })?;
            at = at.wrapping_add(count);
        }
        Ok(())
    }

    /// Masks or unmasks interrupts.
    pub fn mask_irqs(&mut self, index: u32, start: u32, count: u32, masked: bool) -> Result<(), ClientError> {
        let action = if masked { IrqAction::Mask } else { IrqAction::Unmask };
        self.set_irqs(IrqSet { index, start, count, action, data: IrqData::All })
    }

    /// Disables a whole index.
    pub fn disable_irqs(&mut self, index: u32) -> Result<(), ClientError> {
        self.set_irqs(IrqSet::disable(index))
    }

    /// Resets the device.
    pub fn reset(&mut self) -> Result<(), ClientError> {
        self.call(Command::DeviceReset, Vec::new(), |_| {})
    }

    /// Sends DEVICE_FEATURE with these flags and no data.
    pub fn device_feature(&mut self, flags: u32) -> Result<(), ClientError> {
        self.call(Command::DeviceFeature, Vec::new(), |out| {
            put_u32(out, 4096);
            put_u32(out, flags);
        })
    }

    fn transfer(&self, length: usize) -> Result<u32, ClientError> {
        if length > self.server.transfer_limit() {
            return Err(ClientError::Limit("more bytes than max_data_xfer_size"));
        }
        Ok(length as u32)
    }
}

fn put_access(out: &mut Vec<u8>, region: u32, offset: u64, count: u32) {
    put_u64(out, offset);
    put_u32(out, region);
    put_u32(out, count);
}
