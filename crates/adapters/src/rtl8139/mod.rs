//! Realtek 8139C+, the "rtl8139", and the 8139C, "rtl8139-plain": fast Ethernet controllers of about 2000, for which every
//! operating system of those years has a driver. They share registers, EEPROM, PHY and the plain mode; only the first has C+ mode.
//! Drivers distinguish them by PCI revision: Linux's 8139cp takes 0x20 and above, 8139too lower ones.
//!
//! ```text
//!                    BAR 0: registers, 256 bytes of I/O; BAR 1: the same in memory
//!
//!   C+ mode (CPCR)
//!   transmit ring (TNPDS)                        receive ring (RDSAR)
//!        ┌────────────────────┐                       ┌────────────────────┐
//!        │ OWN: the chip's    │─► packet, OWN cleared │ OWN: buffer        │◄─ frame, FS LS, OWN cleared
//!        │ OWN, EOR: the last │                       │ OWN, EOR           │
//!        └────────────────────┘                       └────────────────────┘
//!   plain mode
//!   TSAD0-3 addresses, TSD0-3 lengths: four      RBSTART: a buffer of 8 to 64 KiB
//!        slots; a write without OWN sends         CBR ►│ status, length, frame, check sequence │ next ... ◄ CAPR
//! ```
//! A write to TPPOLL is the doorbell of the transmit ring. The receive ring has none: the chip checks OWN. ISR has the interrupt
//! causes, and a one written there clears a cause. The model follows Realtek's *RTL8139C(L)* data sheet (1.4) and, for C+ mode,
//! Linux's 8139cp.c and the *RTL8169* data sheet (1.21), whose descriptors are the same.
//!
//! # Features
//! - In C+ mode: checksums on transmit (IPv4, TCP, UDP) and receive, TCP segmentation over IPv4, VLAN tags inserted and stripped, the
//!   counter dump. Frames of up to 4 KiB, in as many buffers as they need.
//! - In both modes: the own address, broadcast, the multicast hash, loopback, EEPROM (writable) and PHY, timer, the configuration lock.
//!
//! # Not implemented
//! - Wake-up: its registers only store values. So does HLTCLK: the clock does not stop.
//! - The high-priority transmit ring, early receive and transmit, pause frames, flash, collisions, half duplex.
//! - The four bytes of check sequence after a received frame are counted in its length but not written.
//! - TDU, FOVW and RER: their conditions never occur. RDU (RXOVW) reports frames lost in loopback, and frames that wait for buffers
//!   for half a millisecond or longer.
//!
//! # Quirks
//! - DTCCR and the plain mode's TSD0 and TSD1 have the same offset. In a chip with C+ mode it is DTCCR unless the plain transmitter
//!   is on: `ethtool -S` of Linux's 8139cp.c requests a dump while the interface is down, too.
//! - A write to RCR does not move the receive buffer's positions unless it changes the buffer's length: rtl8139_set_rx_mode in
//!   Linux's 8139too.c writes it while the buffer has frames. The positions restart when the receiver is enabled (rtl8139_rx_err).
//! - CSCR bit 11 shows that the link changed: only then does rtl8139_interrupt in Linux's 8139too.c check the link.
//! - Bits 25:16 of a completed transmit descriptor are clear: cp_tx in Linux's 8139cp.c counts collisions there.
//! - A read of ISR alone shows deferred causes at once: polled drivers (iPXE's realtek.c, U-Boot's rtl8139.c) check there.
//! - An event after a driver's read of ISR survives the write that clears its cause (`interrupts.rs`), because such writes are
//!   posted.
//! - A receive descriptor's PID is IP, not TCP or UDP, unless a checksum was verified: cp_rx_csum_ok in Linux's 8139cp.c accepts it
//!   as verified without having requested it.

mod access;
mod buffer;
mod eeprom;
mod filter;
mod interrupts;
mod lost;
pub mod models;
mod receive;
pub mod registers;
mod ring;
mod saved;
mod slots;
mod tally;
mod timer;
mod transmit;

use nicety_adapter::interrupts::{CompletionDelay, Interrupts, ReceiveModeration};
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, ErrorPlace, Event, Face, Frames, PciFace, Progress, Queue, Registers,
    Reset, Stall, Time,
};
use nicety_pci::{Bar, Capability, Changes, Function, Identity, Pin, Power, Rom};

use self::models::{DEVICE, Model, REALTEK};
use self::registers::{self as r, cause, cpcr, cr, rcr};
use self::slots::Slots;
use self::tally::Tally;
use self::timer::Timer;
use self::transmit::Transmit;
use crate::block::{LINK_DOWN, LOOPBACK, NO_MASTER};
use crate::microwire::Microwire;
use crate::settings::{CreateError, Settings};

/// Numbers of the rings in [`Outbox::stalled`](nicety_adapter::Outbox::stalled).
const RECEIVE_RING: u16 = 0;
const TRANSMIT_RING: u16 = 1;
/// A ring outside guest memory.
const NOWHERE: &str = "the ring lies where no memory is";
/// Action that makes a driver set up its rings anew: Linux 8139cp.c, cp_close and cp_open.
const CURE: &str = "restart the guest's driver (in Linux: `ip link set eth0 down`, then up)";

/// Creates an adapter of a model.
pub fn create(model: &'static Model, settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    Ok(Box::new(Rtl8139::new(model, settings)?))
}

/// The adapter.
#[derive(Debug)]
pub struct Rtl8139 {
    model: &'static Model,
    rom: Option<Rom>,
    function: Function,
    registers: r::Bank,
    eeprom: Microwire,
    tally: Tally,
    timer: Timer,
    transmit: Transmit,
    /// Descriptors of the transmit ring, as far as known.
    transmit_size: u32,
    slots: Slots,
    /// The next descriptor of the receive ring.
    next: u32,
    /// Descriptors of the receive ring, as far as known.
    size: u32,
    /// Frames of a loopback, between their fetch and their delivery.
    looped: Option<Box<Batch>>,
    /// Frames were refused: time of the next check of the receive ring, and the delay after it.
    starved: Option<Time>,
    retry_ns: u64,
    /// The cable has a link.
    cable: bool,
    /// The link was lost since the last read of BMSR.
    lost: bool,
    interrupts: Interrupts,
    /// Completions that wait for an interrupt.
    completions: CompletionDelay,
    /// Frames that wait for an interrupt.
    moderation: ReceiveModeration,
    /// Bytes carried both ways.
    carried: u64,
    /// Completions since the last read of ISR.
    unread: u32,
    /// Frames arrived since the last read of ISR; and the deadline of their interrupt, if a write has cleared their cause.
    unshown: bool,
    tell_unshown: Option<Time>,
    /// Why the last walk of the receive ring, and of the transmit ring, failed.
    stalls: [Option<&'static str>; 2],
    /// The transmitter's position is lost: see `lost.rs`.
    seeks: bool,
    /// The receiver's position is lost: it waits until the driver stands still where it stands itself.
    meets: Option<lost::Meeting>,
    /// Time of the next look for a lost position.
    next_look: Option<Time>,
    generation: u32,
}

impl Rtl8139 {
    fn new(model: &'static Model, settings: &Settings) -> Result<Self, CreateError> {
        settings.check(&model.about)?;
        settings.check_rom(&model.about)?;
        let mut this = Self {
            model,
            rom: settings.rom.clone(),
            function: function(model, settings.rom.as_ref())?,
            registers: r::Bank::new(model.registers),
            eeprom: eeprom::chip(settings.mac),
            tally: Tally::default(),
            timer: Timer::default(),
            transmit: Transmit::default(),
            transmit_size: ring::MAX,
            slots: Slots::default(),
            next: 0,
            size: ring::MAX,
            looped: None,
            starved: None,
            retry_ns: receive::RETRY_MIN_NS,
            cable: true,
            lost: false,
            interrupts: interrupts::interrupts(),
            completions: CompletionDelay::default(),
            moderation: ReceiveModeration::default(),
            carried: 0,
            unread: 0,
            unshown: false,
            tell_unshown: None,
            stalls: [None; 2],
            seeks: false,
            meets: None,
            next_look: None,
            generation: 0,
        };
        this.load_eeprom();
        Ok(this)
    }

    /// Resets everything to the power-on state, except cable and EEPROM.
    fn power_on(&mut self, cx: &mut Context<'_>) {
        self.registers.reset(|_| true);
        self.load_eeprom();
        self.eeprom.drive(0);
        self.lost = false;
        self.reset_chip(cx);
        self.function.reset();
    }

    /// CR.RST: resets everything except the [`KEPT`](r::KEPT) registers.
    fn reset_chip(&mut self, cx: &mut Context<'_>) {
        let before = self.registers.clone();
        self.registers.reset(|_| true);
        for &name in r::KEPT {
            self.registers.of_mut(name).copy_from_slice(before.of(name));
        }
        (self.tally, self.timer) = (Tally::default(), Timer::default());
        (self.transmit, self.slots) = (Transmit::default(), Slots::default());
        (self.next, self.size, self.transmit_size) = (0, ring::MAX, ring::MAX);
        self.retry_ns = receive::RETRY_MIN_NS;
        if self.starved.take().is_some() {
            cx.out.room.insert(0);
        }
        (self.completions, self.moderation, self.carried) = Default::default();
        (self.unread, self.unshown, self.tell_unshown) = Default::default();
        self.stalls = [None; 2];
        (self.seeks, self.meets, self.next_look) = (false, None, None);
        self.generation = self.generation.wrapping_add(1);
        self.interrupts.reset();
        self.settle_line(cx);
    }

    /// Whether the transmitter uses its ring, and the receiver its own.
    fn ring_mode(&self) -> (bool, bool) {
        let mode = self.registers[r::CPCR];
        (mode & cpcr::TX != 0, mode & cpcr::RX != 0)
    }

    fn receives(&self) -> bool {
        self.registers[r::CR] & cr::RE != 0
    }

    fn transmits(&self) -> bool {
        self.registers[r::CR] & cr::TE != 0
    }

    /// Notes that a ring of C+ mode cannot be walked.
    #[cold]
    fn blame_ring(&self, number: u16, cx: &mut Context<'_>) {
        let (queue, address, expected) = match number {
            TRANSMIT_RING => (Queue::Transmit(0), self.transmit_address(), "a descriptor ring in guest memory (TNPDS)"),
            _ => (Queue::Receive(0), self.receive_address(), "a descriptor ring in guest memory (RDSAR)"),
        };
        cx.guest_error(ErrorPlace::Ring(queue), address, expected);
    }

    /// Records whether a ring could be walked. The chip reports a failure as a system error.
    fn saw_ring(&mut self, number: u16, why: Option<&'static str>, cx: &mut Context<'_>) {
        let before = std::mem::replace(&mut self.stalls[usize::from(number)], why);
        if why.is_some() && before.is_none() {
            cx.out.stalled.insert(number);
            self.cause(cause::SERR, cx);
        }
    }
}

fn function(model: &Model, rom: Option<&Rom>) -> Result<Function, CreateError> {
    let identity = Identity {
        vendor: REALTEK,
        device: DEVICE,
        revision: model.revision,
        class: 0x02_0000,
        subsystem_vendor: REALTEK,
        subsystem: DEVICE,
    };
    // PCI PM 1.1 with D0 and D3hot; D3hot loses all state.
    let power = Power { capabilities: 0x0002, control: 0, data: 0 };
    let mut builder = Function::builder(identity)
        .interrupt_pin(Pin::A)
        .bar(0, Bar::io(r::WINDOW_BYTES.into()))
        .bar(1, Bar::memory(r::WINDOW_BYTES.into()))
        .status(0x0280)
        .timing(0x20, 0x40)
        .capability_at(0x50, Capability::Power(power));
    if let Some(rom) = rom {
        builder = builder.rom(rom.size());
    }
    builder.build().map_err(|error| CreateError::Description { adapter: model.about.name, why: error.to_string() })
}

impl PciFace for Rtl8139 {
    fn function(&self) -> &Function {
        &self.function
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        let changes = self.function.config_write(u64::from(offset), data);
        if changes.intersects(Changes::SOFT_RESET | Changes::FUNCTION_RESET) {
            self.power_on(cx);
        }
        if changes.intersects(Changes::INTX | Changes::POWER) {
            self.interrupts.mode_changed(&mut self.function, cx);
            self.settle_line(cx);
        }
        if changes.contains(Changes::BUS_MASTER) {
            self.look_for_room(cx);
            if self.function.bus_master() {
                cx.out.work.insert(0);
            }
        }
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        self.read_bar(bar, offset, data, cx);
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        self.write_bar(bar, offset, data, cx);
    }

    fn rom(&self) -> Option<&Rom> {
        self.rom.as_ref()
    }
}

impl Adapter for Rtl8139 {
    fn face(&mut self) -> Face<'_> {
        Face::Pci(self)
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        if queue != 0 {
            return Progress { more: false, armed: true };
        }
        self.fetch_packets(budget, batch, cx)
    }

    fn complete(&mut self, batch: &Batch, cx: &mut Context<'_>) {
        if batch.generation == self.generation {
            self.give_back(cx);
        }
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        self.deliver_frames(frames, cx)
    }

    fn notice(&mut self, event: Event, cx: &mut Context<'_>) {
        match event {
            Event::Link(up) => self.plug(up, cx),
            Event::Restored => self.resume_restored(cx),
            Event::Lost | Event::Unanswered => self.lose_positions(cx),
            // Addresses are translated in every call; no doorbell page is mapped.
            Event::Memory | Event::Page | Event::Answer(_) | Event::Missed(_) => {}
        }
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        self.time_passed(cx);
        self.look(cx);
    }

    fn reset(&mut self, kind: Reset, cx: &mut Context<'_>) {
        match kind {
            Reset::Bus | Reset::Function => self.power_on(cx),
        }
    }

    fn transmit_queues(&self) -> u16 {
        1
    }

    fn is_driven(&self) -> bool {
        self.receives() || self.transmits()
    }

    fn features(&self) -> Vec<&'static str> {
        let (transmit, receive) = self.ring_mode();
        let mode = self.registers[r::CPCR];
        let on = [
            (transmit || receive, "c+"),
            (receive && mode & cpcr::CHECKSUM != 0, "rx-checksum"),
            (receive && mode & cpcr::VLAN != 0, "vlan-strip"),
            (self.registers[r::RCR] & rcr::AAP != 0, "promiscuous"),
            (self.loops(), "loopback"),
        ];
        on.into_iter().filter(|&(on, _)| on).map(|(_, name)| name).collect()
    }

    fn receive_block(&self) -> Option<&'static str> {
        let accepts = self.registers[r::RCR] & (rcr::AAP | rcr::APM | rcr::AM | rcr::AB);
        match () {
            () if !self.is_driven() => None,
            () if !self.receives() => Some("its receiver is off (CR.RE)"),
            () if !self.function.bus_master() => Some(NO_MASTER),
            () if !self.link() => Some(LINK_DOWN),
            () if self.loops() => Some(LOOPBACK),
            () => (accepts == 0).then_some("its receive filter accepts no address (RCR)"),
        }
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        let (on, queue) = match number {
            RECEIVE_RING => (self.receives(), Queue::Receive(0)),
            TRANSMIT_RING => (self.transmits(), Queue::Transmit(0)),
            _ => return None,
        };
        let why = self.stalls[usize::from(number)].filter(|_| on && self.function.bus_master())?;
        Some(Stall { queue, why, cure: CURE })
    }
}
