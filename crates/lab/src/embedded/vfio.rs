//! A PCI function behind a vfio-user socket, as a bus: every access is a message, every interrupt an eventfd.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nicety_adapter::{Bus, BusError, InterruptKind};
use nicety_memory::{Map, Mapping, Rights, shared_file};
use nicety_vfio_user::codec::irqs::{INTX, MSI, MSIX};
use nicety_vfio_user::{Client, DmaProtection, DmaRange, MemoryTable};

use super::link::{EventBus, LinkCounts, drain, event};

/// vfio's number of the region that is configuration space.
const CONFIG: u32 = 7;
/// PCI 3.0, section 6.2.2: INTx disable.
const COMMAND: u16 = 0x04;
const COMMAND_NO_INTX: u16 = 1 << 10;
/// Sections 6.7 and 6.8: capabilities.
const CAPABILITIES: u16 = 0x34;
const CAPABILITY_MSI: u8 = 0x05;
const CAPABILITY_MSIX: u8 = 0x11;
const MSI_ENABLE: u16 = 1;
const MSIX_ENABLE: u16 = 1 << 15;
/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// See the module's page.
#[derive(Debug)]
pub struct VfioBus {
    client: Client,
    memory: Arc<Map>,
    events: Vec<OwnedFd>,
    line: bool,
    interrupts: u64,
}

impl VfioBus {
    /// Connects, and shares `len` bytes of new memory at bus address 0.
    pub fn connect(socket: &Path, len: u64) -> Result<VfioBus, BusError> {
        let mut client = Client::connect_with(socket, TIMEOUT, Box::new(MemoryTable::new())).map_err(bus)?;
        let file = shared_file("nicety-guest", len).map_err(bus)?;
        let range = DmaRange { address: 0, size: len };
        let protection = DmaProtection { read: true, write: true };
        client.dma_map(range, protection, Some((file.as_fd(), 0))).map_err(bus)?;
        let mapping = Mapping::of_file(file, 0, len, true).map_err(bus)?;
        let memory = Map::default().with(0, Arc::new(mapping), Rights::BOTH).map_err(bus)?;
        Ok(VfioBus { client, memory: Arc::new(memory), events: Vec::new(), line: false, interrupts: 0 })
    }

    fn config16(&mut self, offset: u16) -> Result<u16, BusError> {
        let mut data = [0; 2];
        self.config_read(offset, &mut data)?;
        Ok(u16::from_le_bytes(data))
    }

    /// Where a capability lies.
    fn capability(&mut self, wanted: u8) -> Result<u16, BusError> {
        let [mut at] = [0; 1];
        self.config_read(CAPABILITIES, std::slice::from_mut(&mut at))?;
        for _ in 0..48 {
            let mut header = [0; 2];
            self.config_read(u16::from(at & 0xfc), &mut header)?;
            match header {
                _ if at < 0x40 => break,
                [kind, _] if kind == wanted => return Ok(u16::from(at & 0xfc)),
                [_, next] => at = next,
            }
        }
        Err(BusError(format!("it has no capability {wanted:#x}")))
    }

    fn set_config(&mut self, offset: u16, bits: u16, on: bool) -> Result<(), BusError> {
        let old = self.config16(offset)?;
        let new = if on { old | bits } else { old & !bits };
        self.config_write(offset, &new.to_le_bytes())
    }
}

impl Bus for VfioBus {
    fn config_read(&mut self, offset: u16, data: &mut [u8]) -> Result<(), BusError> {
        self.client.region_read(CONFIG, offset.into(), data).map_err(bus)
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) -> Result<(), BusError> {
        self.client.region_write(CONFIG, offset.into(), data).map_err(bus)
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.client.region_read(bar.into(), offset, data).map_err(bus)
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.client.region_write_posted(bar.into(), offset, data).map_err(bus)
    }

    fn memory(&self) -> &Arc<Map> {
        &self.memory
    }

    fn interrupts(&mut self, kind: InterruptKind) -> Result<(), BusError> {
        let (index, count) = match kind {
            InterruptKind::Intx => (INTX, 1),
            InterruptKind::Msi => (MSI, 1),
            InterruptKind::Msix(vectors) => (MSIX, vectors),
        };
        self.events = (0..count).map(|_| event()).collect::<Result<_, _>>().map_err(bus)?;
        let fds: Vec<BorrowedFd<'_>> = self.events.iter().map(AsFd::as_fd).collect();
        self.client.connect_irqs(index, 0, &fds).map_err(bus)?;
        self.line = kind == InterruptKind::Intx;
        self.set_config(COMMAND, COMMAND_NO_INTX, !self.line)?;
        match kind {
            InterruptKind::Intx => Ok(()),
            InterruptKind::Msi => {
                let at = self.capability(CAPABILITY_MSI)?;
                self.set_config(at + 2, MSI_ENABLE, true)
            }
            InterruptKind::Msix(_) => {
                let at = self.capability(CAPABILITY_MSIX)?;
                self.set_config(at + 2, MSIX_ENABLE, true)
            }
        }
    }

    fn unmask_line(&mut self) -> Result<(), BusError> {
        if self.line { self.client.mask_irqs(INTX, 0, 1, false).map_err(bus) } else { Ok(()) }
    }
}

impl EventBus for VfioBus {
    fn vectors(&self) -> Vec<BorrowedFd<'_>> {
        self.events.iter().map(AsFd::as_fd).collect()
    }

    fn take(&mut self, vector: usize) -> Result<bool, BusError> {
        let Some(event) = self.events.get(vector) else { return Ok(false) };
        let raised = drain(event.as_fd()).map_err(bus)?;
        self.interrupts += raised;
        Ok(raised > 0)
    }

    fn counts(&self) -> LinkCounts {
        let counters = self.client.counters();
        LinkCounts { reads: counters.reads, writes: counters.writes, interrupts: self.interrupts }
    }
}

fn bus(error: impl std::fmt::Display) -> BusError {
    BusError(error.to_string())
}
