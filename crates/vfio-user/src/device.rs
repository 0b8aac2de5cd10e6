//! The interface of a device behind a session: one method per command of vfio-user.rst that needs the device.

use nicety_peer::PeerFd;
use rustix::io::Errno;

use crate::codec::irqs::{IrqInfo, IrqSet, PCI_INDEXES};
use crate::codec::region::RegionInfo;
use crate::session::DmaId;

/// The properties of a device.
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

/// A device's rights to a window.
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
    /// The window's DMA addresses.
    pub range: DmaRange,
    /// The device's rights.
    pub protection: DmaProtection,
    /// Offset of the window in the file, in bytes; the file may be shorter.
    pub offset: u64,
    /// The file to map, if any. Without it the device accesses the window only by DMA_READ and DMA_WRITE.
    pub fd: Option<PeerFd>,
}

/// The progress of a memory change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is done.
    Done,
    /// Another thread makes it, because it may block on the client. The session handles no further message until
    /// [`Device::dma_changed`] returns the result. Then the session's caller must call [`crate::Session::receive`].
    UnderWay,
}

/// A device behind a [`crate::Session`].
///
/// Every method must return at once: QEMU stops a virtual CPU until the answer, and gives up after 5 s. An `Err` becomes an error
/// reply (or nothing, for a posted write), and the session continues.
pub trait Device {
    /// The properties of the device.
    fn info(&self) -> DeviceInfo {
        DeviceInfo::PCI
    }

    /// The properties of region `index`; `None` if the device does not have it.
    fn region(&self, index: u32) -> Option<RegionInfo>;

    /// The size of region `index` in bytes, 0 if there is none. The session calls it before each access; the result must not
    /// change.
    fn region_size(&self, index: u32) -> u64 {
        self.region(index).map_or(0, |region| region.size)
    }

    /// The properties of interrupt index `index`; `None` is answered with an error.
    fn irq_info(&self, index: u32) -> Option<IrqInfo>;

    /// Extra cost of the writes since the last call, in accesses. A write that took as long as a hundred accesses counts as a
    /// hundred against the session's limit.
    fn excess(&mut self) -> u32 {
        0
    }

    /// Reads a region. `data` is zeroed, never empty, and lies within the region.
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;

    /// Writes a region. `data` is never empty and lies within the region.
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// Adds a window that overlaps no other. An `Err` is sent to the client.
    fn dma_map(&mut self, map: DmaMap) -> Result<Change, Errno>;

    /// Removes a window with exactly this range; `None` removes all. On return nothing accesses that memory any more. The client
    /// gets its answer when the change is done. If the client has gone, [`Device::dma_changed`] is not called.
    fn dma_unmap(&mut self, range: Option<DmaRange>) -> Change;

    /// The result of the change in progress; `None` if it is not done yet.
    fn dma_changed(&mut self) -> Option<Result<(), Errno>> {
        Some(Ok(()))
    }

    /// Connects, masks, unmasks or triggers interrupts. Use [`crate::Interrupts::apply`].
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
