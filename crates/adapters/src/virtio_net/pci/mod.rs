//! virtio-net as a PCI function (virtio 1.2, section 4.1): the device of [`super`] behind a register interface, so that a VMM
//! reaches it over vfio-user like every other adapter. A transitional device: both interfaces work.
//!
//! ```text
//! BAR 0  ports    the legacy interface: features, queue addresses, doorbell, status, configuration space
//! BAR 1  memory   MSI-X table (a vector for each queue, and one for configuration), pending bits
//! BAR 4  memory   common structure │ interrupt status │ configuration space │ a doorbell for each queue
//! ```
//! Vendor-specific capabilities give their locations (4.1.4), and a window through configuration space (4.1.4.9).
//!
//! **Quirks**: the window's data is fetched when its address, bar or length is written, not when it is read, because reads of
//! configuration space do not involve the device. Drivers that use it (SeaBIOS, iPXE) write all three each time.

mod access;
mod common;
mod registers;
mod saved;

use nicety_adapter::interrupts::{InterruptRouter, Interrupts, Line};
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, Progress, Reason, Reset, RingFace, Stall,
};
use nicety_pci::{Bar, Capability, Express, Function, Identity, Mode, MsixCapability, Pin, Power, Rom};

use self::common::{Common, NO_VECTOR};
use self::registers::status;
use super::registers::feature;
use super::{RINGS_MAX, VirtioNet};
use crate::about::About;
use crate::block::NO_MASTER;
use crate::settings::{CreateError, Settings};

pub use self::registers::TABLE;

/// Maximum and initial number of descriptors of a queue: QEMU's value, and the size that a legacy driver gets.
const RING_SIZE: u16 = 256;
/// Vectors: one for each ring, one for configuration.
const VECTORS: u16 = RINGS_MAX as u16 + 1;
/// Causes of INTx interrupts, in the bits of the interrupt status (4.1.4.5).
const QUEUE: u128 = 1;
const CONFIGURATION: u128 = 2;
/// `cfg_type` of the capabilities (4.1.4).
const COMMON_CFG: u8 = 1;
const NOTIFY_CFG: u8 = 2;
const ISR_CFG: u8 = 3;
const DEVICE_CFG: u8 = 4;
const PCI_CFG: u8 = 5;

/// Description of this function.
pub static ABOUT: About = About {
    name: "virtio-net-pci",
    chip: "virtio 1.2 network device, a transitional PCI function",
    pci: (0x1af4, 0x1000),
    link_unless: None,
    transports: &["vfio-user"],
    ..super::ABOUT
};

/// The device with its register interface.
#[derive(Debug)]
struct VirtioPci {
    function: Function,
    rom: Option<Rom>,
    device: VirtioNet,
    common: Common,
    interrupts: Interrupts,
}

/// Creates a function in its power-on state.
///
/// # Errors
/// A group address, too many queues, an option ROM for another device.
pub fn create(settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    Ok(Box::new(VirtioPci::new(settings)?))
}

/// Body of a capability of section 4.1.4, from `cfg_type` on.
fn capability(kind: u8, bar: u8, offset: u32, len: u32, rest: &[u8]) -> Vec<u8> {
    let mut body = vec![kind, bar, 0, 0, 0];
    body.extend(offset.to_le_bytes());
    body.extend(len.to_le_bytes());
    body.extend(rest);
    body
}

fn describe(rom: Option<&Rom>) -> Result<Function, nicety_pci::BuildError> {
    let (vendor, device) = ABOUT.pci;
    // Revision 0 and subsystem 1, the network device's number: transitional (4.1.2.1).
    let identity = Identity { vendor, device, revision: 0, class: 0x02_0000, subsystem_vendor: vendor, subsystem: 1 };
    let msix = MsixCapability {
        vectors: VECTORS,
        table_bar: registers::MSIX_BAR,
        table_offset: 0,
        pba_bar: registers::MSIX_BAR,
        pba_offset: registers::PBA_AT,
    };
    let read_only = |body| Capability::Vendor { body, writable: Vec::new() };
    let place = |kind, at, rest: &[u8]| read_only(capability(kind, registers::BAR, at, registers::PAGE, rest));
    let multiplier = registers::NOTIFY_EVERY.to_le_bytes();
    // The window: the driver may write its bar, offset, length and data.
    let window = Capability::Vendor {
        body: capability(PCI_CFG, 0, 0, 0, &[0; 4]),
        writable: [&[0, 0xff, 0, 0, 0][..], &[0xff; 12]].concat(),
    };
    let builder = Function::builder(identity)
        .interrupt_pin(Pin::A)
        .bar(usize::from(registers::LEGACY_BAR), Bar::io(registers::LEGACY_LEN))
        .bar(usize::from(registers::MSIX_BAR), Bar::memory(registers::MSIX_LEN))
        .bar(usize::from(registers::BAR), Bar::memory64(registers::BAR_LEN))
        .capability(window)
        .capability(place(NOTIFY_CFG, registers::NOTIFY_AT, &multiplier))
        .capability(place(DEVICE_CFG, registers::CONFIG_AT, &[]))
        .capability(place(ISR_CFG, registers::ISR_AT, &[]))
        .capability(place(COMMON_CFG, 0, &[]))
        .capability(Capability::Msix(msix))
        // Without No_Soft_Reset, because a VMM's reset on waking from S3 keeps no state either: with it Linux (6.10 on) assumes
        // that the device kept its state (virtio_pci_common.c, vp_supports_pm_no_reset), and does not start it again.
        .capability(Capability::Power(Power { control: 0, ..Power::default() }))
        .capability(Capability::Express(Express::default()));
    match rom {
        Some(rom) => builder.rom(rom.size()).build(),
        None => builder.build(),
    }
}

impl VirtioPci {
    fn new(settings: &Settings) -> Result<Self, CreateError> {
        let mut device = VirtioNet::new(settings)?;
        // A VMM maps the memory that an IOMMU lets the function reach. The legacy interface lacks the bit: its drivers write
        // physical addresses.
        device.offer |= feature::ACCESS_PLATFORM;
        let (vendor, id) = ABOUT.pci;
        if let Some(rom) = &settings.rom {
            rom.expect(vendor, id).map_err(|error| CreateError::Rom(error.to_string()))?;
        }
        let function = describe(settings.rom.as_ref())
            .map_err(|error| CreateError::Description { adapter: ABOUT.name, why: error.to_string() })?;
        let mut interrupts = Interrupts::new(VECTORS, Line::Latched, InterruptRouter::Direct);
        interrupts.enable(u128::MAX);
        let common = Common::new(device.rings());
        Ok(Self { function, rom: settings.rom.clone(), device, common, interrupts })
    }

    /// Calls the device, and converts its notifications into interrupts.
    fn call<R>(&mut self, cx: &mut Context<'_>, act: impl FnOnce(&mut VirtioNet, &mut Context<'_>) -> R) -> R {
        self.apart(cx, |own, cx| act(&mut own.device, cx))
    }

    /// Runs `act`, then converts the ring notifications that it produced. Messages already in the outbox are vectors from an
    /// earlier call.
    pub(super) fn apart<R>(&mut self, cx: &mut Context<'_>, act: impl FnOnce(&mut Self, &mut Context<'_>) -> R) -> R {
        let vectors = std::mem::take(&mut cx.out.messages);
        let result = act(self, cx);
        self.settle(cx);
        cx.out.messages.extend(vectors);
        result
    }

    /// Converts ring notifications into vectors, or into the INTx line.
    fn settle(&mut self, cx: &mut Context<'_>) {
        let mut rings = std::mem::take(&mut cx.out.messages);
        // The device has counted them; they are counted again when they are sent.
        cx.counters.interrupts = cx.counters.interrupts.wrapping_sub(rings.len().into());
        let needs_reset = self.common.has(status::NEEDS_RESET);
        let changed = (needs_reset || !cx.out.stalled.is_empty()) && self.device.is_broken() != needs_reset;
        if rings.is_empty() && !changed {
            return;
        }
        while let Some(ring) = rings.pop() {
            let vector = self.common.queues.get(usize::from(ring)).map_or(NO_VECTOR, |queue| queue.vector);
            self.raise(vector, QUEUE);
        }
        // Memory that came back, or the reset of a queue alone, may have mended the device.
        if changed && self.common.has(status::DRIVER_OK) {
            self.common.status ^= status::NEEDS_RESET;
            self.raise(self.common.config_vector, CONFIGURATION);
        }
        self.interrupts.update(&mut self.function, cx);
    }

    /// Raises a vector, or a bit of the interrupt status.
    fn raise(&mut self, vector: u16, status: u128) {
        let messages = self.function.mode() == Mode::Msix;
        self.interrupts.raise(if messages { 1u128.checked_shl(vector.into()).unwrap_or(0) } else { status });
    }

    /// Reads the interrupt status and clears it.
    fn take_status(&mut self, cx: &mut Context<'_>) -> u32 {
        let status = self.interrupts.take();
        self.interrupts.update(&mut self.function, cx);
        (status & (QUEUE | CONFIGURATION)) as u32
    }

    /// Whether the function may reach guest memory.
    fn may_act(&self) -> bool {
        self.function.bus_master()
    }
}

impl Adapter for VirtioPci {
    fn face(&mut self) -> Face<'_> {
        Face::Pci(self)
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        if !self.may_act() {
            return Progress { more: false, armed: true };
        }
        self.call(cx, |device, cx| device.fetch(queue, budget, batch, cx))
    }

    fn complete(&mut self, batch: &Batch, cx: &mut Context<'_>) {
        if self.may_act() {
            self.call(cx, |device, cx| device.complete(batch, cx));
        }
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        if !self.may_act() {
            frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            return Delivery::default();
        }
        self.call(cx, |device, cx| device.deliver(frames, cx))
    }

    fn notice(&mut self, event: Event, cx: &mut Context<'_>) {
        if event == Event::Lost {
            return self.lose(cx);
        }
        let before = (self.device.config.link, self.device.control.announce);
        // A restored device that may not reach memory resumes when it may.
        if event != Event::Restored || self.may_act() {
            self.call(cx, |device, cx| device.notice(event, cx));
        }
        if (self.device.config.link, self.device.control.announce) != before {
            self.common.generation = self.common.generation.wrapping_add(1);
            if self.common.has(status::DRIVER_OK) {
                self.raise(self.common.config_vector, CONFIGURATION);
            }
        }
        if event == Event::Restored {
            self.interrupts.show(&mut self.function, cx);
        }
        self.interrupts.update(&mut self.function, cx);
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        if self.may_act() {
            self.call(cx, |device, cx| device.tick(cx));
        }
    }

    fn reset(&mut self, _kind: Reset, cx: &mut Context<'_>) {
        self.reset_function(cx);
    }

    fn transmit_queues(&self) -> u16 {
        self.device.transmit_queues()
    }

    fn is_driven(&self) -> bool {
        self.common.has(status::DRIVER_OK) && self.device.is_driven()
    }

    fn features(&self) -> Vec<&'static str> {
        Adapter::features(&self.device)
    }

    fn receive_block(&self) -> Option<&'static str> {
        if self.is_driven() && !self.function.bus_master() {
            return Some(NO_MASTER);
        }
        self.device.receive_block().filter(|_| self.is_driven())
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        self.device.stall(number)
    }
}
