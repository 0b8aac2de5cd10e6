//! A VMM that delivers MSI-X messages itself: an e1000e sends its guest an interrupt, which waits while its vector is masked.
//!
//! ```sh
//! cargo run -p nicety-plane --example messages
//! ```
//! The port says which vectors its adapter raises, masked or not. `nicety_pci::Pending` has the messages and the pending bits. The
//! port's lock is held while it says so: the VMM notes the vectors, and looks at them after the call.
#![forbid(unsafe_code)]

mod help;

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use nicety_adapter::{PciFace, PortId, Set, Time};
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_pci::{Message, Pending};
use nicety_plane::{End, Port, Shell};

const NOW: Time = Time::ZERO;
/// Registers and bits of Intel's 82574L (its datasheet, 10.2.4).
const ICS: u64 = 0x00c8;
const IMS: u64 = 0x00d0;
const IVAR: u64 = 0x00e4;
const LINK_CHANGED: u32 = 1 << 2;
const OTHER: u32 = 1 << 24;
/// IVAR: other causes have this vector, and it is valid.
const OTHER_HAS_VECTOR: u32 = 0b1000 << 16;
/// The MSI-X capability's identifier (PCI 3.0, appendix H).
const MSIX: u8 = 0x11;

/// Vectors that were raised since the VMM has looked.
#[derive(Clone, Default)]
struct Raised(Arc<Mutex<Set>>);

impl Raised {
    fn take(&self) -> Set {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Shell for Raised {
    fn messages(&self, vectors: Set) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(vectors);
    }
    fn line(&self, _level: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, _time: Time) {}
}

/// A guest's adapter as its VMM sees it.
struct Device {
    port: Port,
    raised: Raised,
    pending: Pending,
    delivered: Vec<Message>,
}

impl Device {
    fn new() -> Result<Self, Box<dyn Error>> {
        let e1000e = find("e1000e").ok_or("there is no e1000e")?;
        let adapter = (e1000e.create)(&Settings::new(Mac([2, 0, 0, 0, 0, 1])))?;
        let raised = Raised::default();
        let port = Port::new(PortId(1), End::guest(adapter), Box::new(raised.clone()), 1 << 20)?;
        port.attach();
        Ok(Self { port, raised, pending: Pending::default(), delivered: Vec::new() })
    }

    /// Delivers what may go now: after each call of the port that may raise or unmask a vector.
    fn deliver(&mut self) {
        let mut raised = self.raised.take();
        let Self { port, pending, delivered, .. } = self;
        port.with_pci(NOW, |pci: &mut dyn PciFace, _| {
            while let Some(vector) = raised.pop() {
                delivered.extend(pending.raise(pci.function(), vector));
            }
            while let Some(message) = pending.due(pci.function()) {
                delivered.push(message);
            }
        });
    }

    fn write(&mut self, bar: u8, offset: u64, value: u32) {
        self.port.write(bar, offset, &value.to_le_bytes(), NOW);
        self.deliver();
    }

    fn read(&self, bar: u8, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.port.read(bar, offset, &mut bytes, NOW);
        self.port.with_pci(NOW, |pci, _| self.pending.read(pci.function(), bar, offset, &mut bytes));
        u32::from_le_bytes(bytes)
    }

    fn config_write(&mut self, offset: u16, value: u16) {
        self.port.config_write(offset, &value.to_le_bytes(), NOW);
        self.deliver();
    }

    fn config_read(&self, offset: u16) -> u32 {
        let mut bytes = [0; 4];
        self.port.config_read(offset.into(), &mut bytes, NOW);
        u32::from_le_bytes(bytes)
    }

    /// The place of a capability, as a guest finds it.
    fn capability(&self, wanted: u8) -> Option<u16> {
        let mut at = self.config_read(0x34) as u8;
        while at != 0 {
            let [id, next, ..] = self.config_read(at.into()).to_le_bytes();
            if id == wanted {
                return Some(at.into());
            }
            at = next;
        }
        None
    }
}

/// A message that waits until its vector is unmasked.
pub fn main() -> Result<(), Box<dyn Error>> {
    help::on_request(include_str!("messages.rs"));
    let mut device = Device::new()?;
    device.config_write(4, 6); // BARs answer, messages are allowed
    let at = device.capability(MSIX).ok_or("it has no MSI-X")?;
    // The lowest three bits of each word are the BAR's number.
    let [table, array] = [4, 8].map(|word| device.config_read(at + word));
    let [(table_bar, table), (array_bar, array)] = [table, array].map(|word| ((word & 7) as u8, u64::from(word & !7)));
    for (word, value) in [(0, 0xfee0_0000), (4, 0), (8, 0x41), (12, 1)] {
        device.write(table_bar, table + word, value); // vector 0: address, data, masked
    }
    device.config_write(at + 2, 0x8000); // MSI-X is on
    device.write(0, IVAR, OTHER_HAS_VECTOR);
    device.write(0, IMS, OTHER | LINK_CHANGED);
    device.write(0, ICS, OTHER | LINK_CHANGED);

    let waits = device.read(array_bar, array) & 1 != 0;
    println!("masked: {} messages, pending bit {}", device.delivered.len(), u8::from(waits));
    if !waits || !device.delivered.is_empty() {
        return Err("a masked vector must wait".into());
    }
    device.write(table_bar, table + 12, 0);
    for Message { address, data } in &device.delivered {
        println!("unmasked: {data:#x} to {address:#x}");
    }
    let came = device.delivered == [Message { address: 0xfee0_0000, data: 0x41 }];
    let waits = device.read(array_bar, array) & 1 != 0;
    if came && !waits { Ok(()) } else { Err("an unmasked vector must send its message once".into()) }
}
