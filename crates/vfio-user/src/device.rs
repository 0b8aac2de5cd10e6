//! What a device behind a session implements (vfio-user.rst: one method per command that needs the device).

use nicety_bell::Lent;
use rustix::io::Errno;

use crate::codec::irqs::{IrqInfo, IrqSet, PCI_INDEXES};
use crate::codec::region::RegionInfo;
use crate::session::DmaId;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number of regions; 9 for a PCI device: six BARs, ROM, configuration space, VGA.
    pub regions: u32,
    /// Number of interrupt indexes; 3 for a PCI device: INTx, MSI, MSI-X.
    pub irqs: u32,
    /// Whether [`Device::reset`] does something.
    pub resettable: bool,
}

impl DeviceInfo {
    /// A PCI function that can be reset.
    pub const PCI: DeviceInfo = DeviceInfo { regions: 9, irqs: PCI_INDEXES, resettable: true };
}

/// A range of DMA addresses. `address + size - 1` does not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaRange {
    /// First address.
    pub address: u64,
    /// Bytes, not 0.
    pub size: u64,
}

/// What a device may do with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaProtection {
    /// Read it.
    pub read: bool,
    /// Write it.
    pub write: bool,
}

/// A window of the client's memory.
#[derive(Debug)]
pub struct DmaMap {
    /// Where the device sees it.
    pub range: DmaRange,
    /// What the device may do with it.
    pub protection: DmaProtection,
    /// Offset of the window within the file, in bytes; nothing says that the file is that long.
    pub offset: u64,
    /// The file to map, if there is one; without it the window is reached by DMA_READ and DMA_WRITE only.
    pub fd: Option<Lent>,
}

/// How far a change of memory has come when the method that was to make it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is made.
    Done,
    /// It is being made elsewhere, since it may wait for the client. The session handles no further message until
    /// [`Device::dma_changed`] says how it went; its driver calls [`crate::Session::receive`] then.
    UnderWay,
}

/// A device behind a [`crate::Session`].
///
/// Every method answers at once: QEMU stops a virtual CPU meanwhile and gives up after 5 s. An `Err` becomes an error
/// reply (or nothing, for a posted write) and the session goes on.
pub trait Device {
    /// What the device is.
    fn info(&self) -> DeviceInfo {
        DeviceInfo::PCI
    }

    /// What region `index` is; `None` for an index that the device does not have.
    fn region(&self, index: u32) -> Option<RegionInfo>;

    /// Bytes of region `index`, 0 if there is none: asked before each access, and the same at all times.
    fn region_size(&self, index: u32) -> u64 {
        self.region(index).map_or(0, |region| region.size)
    }

    /// What interrupt index `index` is; `None` is answered with an error.
    fn irq_info(&self, index: u32) -> Option<IrqInfo>;

    /// Extra cost of the writes since the last call, in accesses: a write that took as long as a hundred accesses counts as a
    /// hundred in the session's share.
    fn excess(&mut self) -> u32 {
        0
    }

    /// Reads a region. `data` comes zeroed, is never empty, and lies within the region.
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;

    /// Writes a region, under the same conditions.
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// Takes a window, which overlaps no other. `Err` is the client's answer.
    fn dma_map(&mut self, map: DmaMap) -> Result<Change, Errno>;

    /// Gives a window back that was taken as exactly this range; `None` is all of them. When it returns, nothing
    /// touches that memory any more; the client gets its answer when the change is made. If the client has gone,
    /// [`Device::dma_changed`] is not called.
    fn dma_unmap(&mut self, range: Option<DmaRange>) -> Change;

    /// How the change that was under way went; `None`: it still is.
    fn dma_changed(&mut self) -> Option<Result<(), Errno>> {
        Some(Ok(()))
    }

    /// Connects, masks, unmasks or triggers interrupts: [`crate::Interrupts::apply`] does it.
    fn set_irqs(&mut self, set: IrqSet<'_>) -> Result<(), Errno>;

    /// Resets the device.
    fn reset(&mut self) -> Result<(), Errno>;

    /// The client answered [`crate::Session::dma_read`].
    fn dma_read_done(&mut self, id: DmaId, result: Result<&[u8], Errno>) {
        let _ = (id, result);
    }

    /// The client answered [`crate::Session::dma_write`].
    fn dma_write_done(&mut self, id: DmaId, result: Result<(), Errno>) {
        let _ = (id, result);
    }
}
