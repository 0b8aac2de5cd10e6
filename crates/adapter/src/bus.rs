//! The driver's side: a guest driver's view of an adapter, in process or through a socket.

use std::sync::Arc;

use nicety_memory::Map;

/// An access failed because the device or its server is gone.
#[derive(Debug, thiserror::Error)]
#[error("the device does not answer: {0}")]
pub struct BusError(pub String);

/// Interrupt mode of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptKind {
    /// The INTx line: level-triggered; delivery masks it until it is unmasked.
    Intx,
    /// One message.
    Msi,
    /// This many vectors.
    Msix(u16),
}

/// A PCI function, seen from its driver.
pub trait Bus {
    /// Reads configuration space.
    fn config_read(&mut self, offset: u16, data: &mut [u8]) -> Result<(), BusError>;

    /// Writes configuration space.
    fn config_write(&mut self, offset: u16, data: &[u8]) -> Result<(), BusError>;

    /// Reads from a BAR.
    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), BusError>;

    /// Writes to a BAR. It may be posted: later reads are ordered behind it.
    fn write(&mut self, bar: u8, offset: u64, data: &[u8]) -> Result<(), BusError>;

    /// The guest's memory, addressed by bus addresses.
    fn memory(&self) -> &Arc<Map>;

    /// Enables interrupts of this kind, in the device's configuration space and elsewhere as needed.
    fn interrupts(&mut self, kind: InterruptKind) -> Result<(), BusError>;

    /// A delivered INTx was handled: unmasks it.
    fn unmask_line(&mut self) -> Result<(), BusError>;

    /// Reads a 32-bit register.
    fn read32(&mut self, bar: u8, offset: u64) -> Result<u32, BusError> {
        let mut data = [0; 4];
        self.read(bar, offset, &mut data)?;
        Ok(u32::from_le_bytes(data))
    }

    /// Writes a 32-bit register.
    fn write32(&mut self, bar: u8, offset: u64, value: u32) -> Result<(), BusError> {
        self.write(bar, offset, &value.to_le_bytes())
    }
}
