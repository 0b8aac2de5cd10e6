//! The client's memory, accessed by DMA_READ and DMA_WRITE (vfio-user.rst, "Client memory access").

use std::os::fd::OwnedFd;

use rustix::io::{Errno, pread, pwrite};

use crate::device::{DmaProtection, DmaRange};

/// Memory that a [`crate::Client`] lets its server read and write by message.
pub trait ClientMemory {
    /// Fills `data` from `address` on.
    fn read(&mut self, address: u64, data: &mut [u8]) -> Result<(), Errno>;
    /// Stores `data` from `address` on.
    fn write(&mut self, address: u64, data: &[u8]) -> Result<(), Errno>;
}

/// No memory: every access fails with EFAULT.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMemory;

impl ClientMemory for NoMemory {
    fn read(&mut self, _address: u64, _data: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::FAULT)
    }

    fn write(&mut self, _address: u64, _data: &[u8]) -> Result<(), Errno> {
        Err(Errno::FAULT)
    }
}

#[derive(Debug)]
struct Window {
    range: DmaRange,
    protection: DmaProtection,
    file: OwnedFd,
    offset: u64,
}

/// Memory in files (a memfd), by windows. An access must lie within one window.
#[derive(Debug, Default)]
pub struct MemoryTable {
    windows: Vec<Window>,
}

impl MemoryTable {
    /// A table without windows.
    pub fn new() -> MemoryTable {
        MemoryTable::default()
    }

    /// Adds a window that begins at `offset` in `file`.
    pub fn add(&mut self, range: DmaRange, protection: DmaProtection, file: OwnedFd, offset: u64) {
        self.windows.push(Window { range, protection, file, offset });
    }

    fn find(&self, address: u64, length: usize) -> Result<(&Window, u64), Errno> {
        for window in &self.windows {
            let Some(into) = address.checked_sub(window.range.address) else { continue };
            if window.range.size.checked_sub(into).is_some_and(|left| left >= length as u64) {
                return Ok((window, window.offset.checked_add(into).ok_or(Errno::FAULT)?));
            }
        }
        Err(Errno::FAULT)
    }
}

impl ClientMemory for MemoryTable {
    fn read(&mut self, address: u64, data: &mut [u8]) -> Result<(), Errno> {
        let (window, at) = self.find(address, data.len())?;
        if !window.protection.read {
            return Err(Errno::PERM);
        }
        let wanted = data.len();
        if pread(&window.file, data, at)? == wanted { Ok(()) } else { Err(Errno::FAULT) }
    }

    fn write(&mut self, address: u64, data: &[u8]) -> Result<(), Errno> {
        let (window, at) = self.find(address, data.len())?;
        if !window.protection.write {
            return Err(Errno::PERM);
        }
        if pwrite(&window.file, data, at)? == data.len() { Ok(()) } else { Err(Errno::FAULT) }
    }
}
