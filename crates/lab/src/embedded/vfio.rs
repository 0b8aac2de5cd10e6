//! A PCI function behind a vfio-user socket, as a bus: every access is a message, every interrupt an eventfd.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nicety_adapter::{Bus, BusError, InterruptKind};
use nicety_drivers::config;
use nicety_memory::{Map, Mapping, Rights};
use nicety_vfio_user::codec::irqs::{INTX, MSI, MSIX};
use nicety_vfio_user::{Client, DmaProtection, DmaRange, MemoryTable};

use super::link::{EventBus, LinkCounts, drain, event};

/// vfio's region index of configuration space (`VFIO_PCI_CONFIG_REGION_INDEX`).
const CONFIG: u32 = 7;
/// Interrupt Line: a register for software alone (PCI 3.0, 6.2.4).
const INTERRUPT_LINE: u64 = 0x3c;
/// Time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A bus over vfio-user (see the module's page).
#[derive(Debug)]
pub struct VfioBus {
    client: Client,
    memory: Arc<Map>,
    events: Vec<OwnedFd>,
    line: bool,
    interrupts: u64,
}

impl VfioBus {
    /// Connects and shares this file of `len` bytes at bus address 0.
    pub fn connect(socket: &Path, file: OwnedFd, len: u64) -> Result<VfioBus, BusError> {
        let mut client = Client::connect_with(socket, TIMEOUT, Box::new(MemoryTable::new())).map_err(bus)?;
        let range = DmaRange { address: 0, size: len };
        let protection = DmaProtection { read: true, write: true };
        client.dma_map(range, protection, Some((file.as_fd(), 0))).map_err(bus)?;
        let mapping = Mapping::of_file(file, 0, len, true).map_err(bus)?;
        let memory = Map::default().with(0, Arc::new(mapping), Rights::BOTH).map_err(bus)?;
        // Guest memory is not empty when a driver starts: it holds the kernel.
        memory.write(len - 1, &[1]).map_err(bus)?;
        Ok(VfioBus { client, memory: Arc::new(memory), events: Vec::new(), line: false, interrupts: 0 })
    }

    /// Enables message-signalled interrupts in the capability with this ID.
    fn enable_messages(&mut self, id: u8, enable: u16) -> Result<(), BusError> {
        let at = config::capability(self, id)?;
        let at = at.ok_or_else(|| BusError(format!("it has no capability {id:#x}")))?;
        config::set(self, at + config::MESSAGE_CONTROL, enable, true)
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
        let line = self.line;
        config::set(self, config::COMMAND, config::COMMAND_NO_INTX, !line)?;
        match kind {
            InterruptKind::Intx => Ok(()),
            InterruptKind::Msi => self.enable_messages(config::MSI, config::MSI_ENABLE),
            InterruptKind::Msix(_) => self.enable_messages(config::MSIX, config::MSIX_ENABLE),
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

    fn touch(&mut self, reads: u32, writes: u32) -> Result<(), BusError> {
        for _ in 0..writes {
            self.client.region_write_posted(CONFIG, INTERRUPT_LINE, &[0]).map_err(bus)?;
        }
        // An answer proves that the writes before it were handled.
        for _ in 0..reads.max(1) {
            self.client.region_read(CONFIG, 0, &mut [0; 4]).map_err(bus)?;
        }
        Ok(())
    }
}

fn bus(error: impl std::fmt::Display) -> BusError {
    BusError(error.to_string())
}
