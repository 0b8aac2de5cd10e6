//! AMD Am79C970A, the "PCnet-PCI II": a 10 Mbit/s Ethernet controller of 1995, the last of the LANCE's family without a PHY. VMware
//! calls it vlance. Old systems of every kind have its driver.
//!
//! ```text
//!  BAR 0 (I/O) and BAR 1 (memory), 32 bytes: address PROM, RDP, RAP, RESET, BDP
//!       RAP = n ─► RDP is CSR n, BDP is BCR n
//!
//!  CSR1/2 ─► initialization block: mode, addresses, ring lengths and places
//!
//!   transmit ring (BADX, XMTRL)                  receive ring (BADR, RCVRL)
//!        ┌────────────────────┐                       ┌────────────────────┐
//!        │ the driver's       │                       │ the driver's       │
//!  next ►│ OWN STP            │─► a frame       next ►│ OWN: a buffer      │◄─ frame, STP
//!        │ OWN ENP            │   OWN cleared         │ OWN: a buffer      │◄─ its rest, ENP, length
//!        │ the driver's       │                       │ OWN: a buffer      │
//!        └────────────────────┘                       └────────────────────┘
//! ```
//! The chip owns a descriptor while OWN is set. No message reports buffers that the driver returned. CSR0 has the interrupt causes,
//! and ones written there clear them. The model follows AMD's *Am79C970A PCnet-PCI II Single-Chip Full-Duplex Ethernet Controller
//! for PCI Local Bus Product* (19436); comments name its registers.
//!
//! # Features
//! - Ports as words and as double words, in I/O and in memory.
//! - Structures of 16 and of 32 bits (SWSTYLE 0 to 3), chained buffers both ways, the initialization block, suspension.
//! - All masks and causes of CSR0, 3, 4 and 5. The link in the LED registers.
//! - The address filter with its hash, loopback, automatic padding and stripping.
//! - The address PROM with its shadow, the EEPROM behind BCR19.
//!
//! # Few messages
//! A driver that accesses a CSR writes RAP first, so each access is two. Linux makes two for a frame that it sends, and fourteen
//! for an interrupt. So a bulk flow interrupts at three quarters of a ring, or after 500 µs (`ReceiveModeration`), and completions
//! wait for another interrupt (`CompletionDelay`). When a driver lifts its masks, the rings are checked: frames that its poll has
//! taken meanwhile do not interrupt again. CSR0 always shows all causes. The transmit ring is checked on TDMD, on every write to
//! CSR0, and by timer (`polling.rs`) until the first TDMD.
//!
//! # Not implemented
//! - Look-ahead (LAPPEN), big-endian structures (BSWP), Magic Packet, sleep, the timers and FIFO marks of CSR80, 82 and 100: their
//!   registers only store values. The EEPROM's values for bus configuration registers are not loaded.
//! - Collisions and their counts; jabber. A frame's own check sequence (DXMTFCS) is removed unread, and the check sequence of a
//!   received frame is four zeros.
//! - CSR18 to CSR23, 40 to 45 and 62 to 67, the chip's working copies of descriptors, only store values.
//!
//! # Quirks
//! - A frame without a buffer waits before the adapter, as with every Nicety adapter. So MISS and CSR112 report only frames in
//!   loopback.
//! - The link is as fast as the host; 10 Mbit/s is only what drivers show.
//! - BABL is for frames of more than 1522 bytes without their check sequence (two tags), not for more than 1514: otherwise
//!   pcnet32_interrupt in Linux's pcnet32.c counts each tagged frame as an error.
//! - SWSTYLE 4, which is reserved, is treated as 0: pcnet32_close writes it "to return to 16bit mode".

mod access;
mod control;
mod eeprom;
mod filter;
mod interrupts;
pub mod models;
mod polling;
mod receive;
pub mod registers;
mod ring;
mod saved;
mod transmit;

use nicety_adapter::interrupts::Interrupts;
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, PciFace, Progress, Queue, Registers, Reset, Stall,
};
use nicety_frame::Mac;
use nicety_pci::{Bar, Changes, Function, Identity, Pin, Rom};

use self::eeprom::Eeprom;
use self::interrupts::Tidings;
use self::models::{AMD, Model};
use self::polling::Polling;
use self::receive::Receive;
use self::registers::{self as r, bcr, csr0, mode};
use self::transmit::Transmit;
use crate::block::{LINK_DOWN, LOOPBACK, NO_MASTER};
use crate::settings::{CreateError, Settings};

/// Numbers of the rings in [`Outbox::stalled`](nicety_adapter::Outbox::stalled).
const RECEIVE_RING: u16 = 0;
const TRANSMIT_RING: u16 = 1;
/// Action that makes a driver initialize the chip anew: Linux pcnet32.c, pcnet32_close and pcnet32_open.
const CURE: &str = "restart the guest's driver (in Linux: `ip link set eth0 down`, then up)";

/// Creates an adapter of a model.
pub fn create(model: &'static Model, settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    Ok(Box::new(Lance::new(model, settings)?))
}

/// The adapter.
#[derive(Debug)]
pub struct Lance {
    model: &'static Model,
    rom: Option<Rom>,
    function: Function,
    registers: r::Bank,
    /// Index of the register behind RDP and BDP.
    rap: u8,
    eeprom: Eeprom,
    /// Contents of the address PROM.
    prom: [u8; 16],
    transmit: Transmit,
    polling: Polling,
    receive: Receive,
    /// Frames of a loopback, between their fetch and their delivery.
    looped: Option<Box<Batch>>,
    link_up: bool,
    interrupts: Interrupts,
    tidings: Tidings,
    /// Why the last walk of each ring failed. The chip has no such state.
    stalls: [Option<&'static str>; 2],
    /// The rings' positions are lost, and the driver has not initialized the chip again yet.
    lost: bool,
    generation: u32,
}

impl Lance {
    pub(crate) fn new(model: &'static Model, settings: &Settings) -> Result<Self, CreateError> {
        settings.check(&model.about)?;
        settings.check_rom(&model.about)?;
        let mut this = Self {
            model,
            rom: settings.rom.clone(),
            function: function(model, settings.rom.as_ref())?,
            registers: r::Bank::new(model.registers),
            rap: 0,
            eeprom: Eeprom::new(settings.mac),
            prom: prom(settings.mac),
            transmit: Transmit::default(),
            polling: Polling::default(),
            receive: Receive::default(),
            looped: None,
            link_up: true,
            interrupts: interrupts::interrupts(),
            tidings: Tidings::default(),
            stalls: [None; 2],
            lost: false,
            generation: 0,
        };
        this.clear_chip();
        Ok(this)
    }

    /// H_RESET: resets everything except the cable.
    fn hard_reset(&mut self, cx: &mut Context<'_>) {
        self.reset_chip(cx);
        self.function.reset();
    }

    /// The same, except configuration space.
    pub(crate) fn reset_chip(&mut self, cx: &mut Context<'_>) {
        self.registers.reset(|_| true);
        self.prom = self.eeprom.read();
        self.clear_chip();
        self.settle(cx);
    }

    /// Configuration space, for another personality that takes it over.
    pub(crate) fn function_mut(&mut self) -> &mut Function {
        &mut self.function
    }

    /// Records whether a ring could be walked.
    fn saw_ring(&mut self, number: u16, why: Option<&'static str>, cx: &mut Context<'_>) {
        let before = std::mem::replace(&mut self.stalls[usize::from(number)], why);
        if why.is_some() {
            self.blame_ring(number, cx);
        }
        if why.is_some() && before.is_none() {
            cx.out.stalled.insert(number);
        }
    }

    /// Notes that a ring cannot be walked.
    #[cold]
    fn blame_ring(&self, number: u16, cx: &mut Context<'_>) {
        let (base, length, expected) = match number {
            TRANSMIT_RING => (r::BADX, r::XMTRL, "a transmit ring in guest memory with a length (TDRA, TLEN)"),
            _ => (r::BADR, r::RCVRL, "a receive ring in guest memory with a length (RDRA, RLEN)"),
        };
        let table = self.registers.table();
        if self.registers[length] == 0 {
            return cx.guest_error(table.error_place(length, 0), 0, expected);
        }
        let address = self.registers.of(base).iter().rev().fold(0, |address, word| address << 16 | u64::from(*word));
        cx.guest_error(table.error_place(base, 0), address, expected);
    }

    fn has(&self, name: r::Reg, bits: u32) -> bool {
        self.registers[name] & bits != 0
    }

    /// Whether it is suspended (CSR5.SPND).
    fn suspended(&self) -> bool {
        self.has(r::CSR5, r::csr5::SPND)
    }
}

/// The address PROM ("Address PROM Space"): the address, the hardware identity 11h, the sum of all other bytes, and "WW".
fn prom(Mac(address): Mac) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&address);
    bytes[9] = 0x11;
    bytes[14..].fill(b'W');
    let sum: u16 = bytes.iter().map(|byte| u16::from(*byte)).sum();
    bytes[12..14].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn function(model: &Model, rom: Option<&Rom>) -> Result<Function, CreateError> {
    let (subsystem_vendor, subsystem) = model.subsystem;
    let identity = Identity {
        vendor: AMD,
        device: model.about.pci.1,
        revision: model.revision,
        class: 0x02_0000,
        subsystem_vendor,
        subsystem,
    };
    let mut builder = Function::builder(identity)
        .interrupt_pin(Pin::A)
        .bar(0, Bar::io(model.ports_bytes.into()))
        .bar(1, Bar::memory(r::WINDOW_BYTES.into()))
        // Fast back-to-back, medium DEVSEL; MIN_GNT and MAX_LAT with BCR22's values.
        .status(0x0280)
        .timing(0x06, 0xff);
    if let Some(rom) = rom {
        builder = builder.rom(rom.size());
    }
    builder.build().map_err(|error| CreateError::Description { adapter: model.about.name, why: error.to_string() })
}

impl PciFace for Lance {
    fn function(&self) -> &Function {
        &self.function
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        let changes = self.function.config_write(u64::from(offset), data);
        if changes.intersects(Changes::SOFT_RESET | Changes::FUNCTION_RESET) {
            self.hard_reset(cx);
        }
        if changes.intersects(Changes::INTX | Changes::POWER) {
            self.interrupts.mode_changed(&mut self.function, cx);
            self.settle(cx);
        }
        if changes.contains(Changes::BUS_MASTER) && self.function.bus_master() {
            cx.out.work.insert(0);
            self.offer_room(cx);
            self.settle(cx);
        }
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        self.read_bar(bar, offset, data, cx);
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        if offset == 0x10 && data.len() == 4 && self.region(bar) == r::WIO {
            // A 32-bit write to RDP switches to DWIO and writes RDP ("Double Word I/O Mode").
            self.registers[r::BSBC] |= r::bcr::DWIO;
        }
        self.write_bar(bar, offset, data, cx);
    }

    fn rom(&self) -> Option<&Rom> {
        self.rom.as_ref()
    }
}

impl Adapter for Lance {
    fn face(&mut self) -> Face<'_> {
        Face::Pci(self)
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        if queue != 0 {
            return Progress { more: false, armed: true };
        }
        self.fetch_ring(budget, batch, cx)
    }

    fn complete(&mut self, batch: &Batch, cx: &mut Context<'_>) {
        if batch.generation == self.generation {
            self.give_back(cx);
        }
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        self.poll_soon(cx);
        self.deliver_frames(frames, cx)
    }

    fn notice(&mut self, event: Event, cx: &mut Context<'_>) {
        match event {
            // The chip does not interrupt for the link: drivers read BCR4.
            Event::Link(up) => self.link_up = up,
            Event::Restored => self.resume_restored(cx),
            Event::Lost | Event::Unanswered => self.lose(cx),
            // Addresses are translated in every call; no doorbell page is mapped.
            Event::Memory | Event::Page | Event::Answer(_) | Event::Missed(_) => {}
        }
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        self.look_for_room(cx);
        self.poll_if_due(cx);
        self.fail_transmits(cx);
        self.settle(cx);
    }

    fn reset(&mut self, kind: Reset, cx: &mut Context<'_>) {
        match kind {
            Reset::Bus | Reset::Function => self.hard_reset(cx),
        }
    }

    fn transmit_queues(&self) -> u16 {
        1
    }

    fn is_driven(&self) -> bool {
        self.has(r::CSR0, csr0::RXON | csr0::TXON)
    }

    fn features(&self) -> Vec<&'static str> {
        let on = [
            (self.has(r::SWSTYLE, bcr::SSIZE32), "32-bit"),
            (self.has(r::BSBC, bcr::DWIO), "double-word-ports"),
            (self.has(r::FDC, bcr::FDEN), "full-duplex"),
            (self.has(r::MODE, mode::PROM), "promiscuous"),
            (self.loops(), "loopback"),
        ];
        on.into_iter().filter(|&(on, _)| on).map(|(_, name)| name).collect()
    }

    fn receive_block(&self) -> Option<&'static str> {
        let hears_nothing = mode::DRCVPA | mode::DRCVBC;
        let is_closed = self.registers[r::MODE] & (hears_nothing | mode::PROM) == hears_nothing
            && self.registers.of(r::LADR).iter().all(|word| *word == 0);
        match () {
            () if !self.is_driven() => None,
            () if !self.has(r::CSR0, csr0::RXON) => Some("its receiver is off (CSR0.RXON)"),
            () if !self.function.bus_master() => Some(NO_MASTER),
            () if !self.link_up => Some(LINK_DOWN),
            () if self.loops() => Some(LOOPBACK),
            () if self.suspended() => Some("it is suspended (CSR5.SPND)"),
            () if self.registers[r::RCVRL] == 0 => Some("its receive ring has no length (CSR76)"),
            () => is_closed.then_some("its receive filter accepts no address (CSR15, LADRF)"),
        }
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        let (on, queue) = match number {
            RECEIVE_RING => (csr0::RXON, Queue::Receive(0)),
            TRANSMIT_RING => (csr0::TXON, Queue::Transmit(0)),
            _ => return None,
        };
        let on = self.has(r::CSR0, on) && self.function.bus_master();
        let why = self.stalls[usize::from(number)].filter(|_| on)?;
        Some(Stall { queue, why, cure: CURE })
    }
}
