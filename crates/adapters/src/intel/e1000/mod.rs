//! Intel 82540EM, the "e1000": a gigabit Ethernet controller of 2002 with a driver in every operating system. Its relatives, the
//! 82545EM and the 82544GC, are the same with other data: `models.rs`.
//!
//! ```text
//!              BAR 0: registers, 128 KiB         BAR 1: the same through IOADDR, IODATA
//!
//!   transmit ring (TDBAL, TDLEN)                 receive ring (RDBAL, RDLEN)
//!   TDH ►┌────────────────────┐                  RDH ►┌────────────────────┐
//!        │ context: offsets   │                       │ buffer             │◄─ frame, DD
//!        │ data: buffer, EOP  │─► frame, DD           │ buffer             │◄─ its rest, DD, EOP
//!   TDT ►├────────────────────┤                  RDT ►├────────────────────┤
//!        │ the driver's       │                       │ the driver's       │
//!        └────────────────────┘                       └────────────────────┘
//! ```
//! A write to TDT is the transmit doorbell; a write to RDT posts buffers. ICR has the interrupt causes and clears on reading; ITR
//! throttles. The model follows Intel's *PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual* (317453);
//! numbers in brackets are its sections.
//!
//! Features: checksums and segmentation (TCP and UDP, IPv4 and IPv6) on transmit, checksums on receive, VLAN tags inserted,
//! stripped and filtered, frames of up to 16 KiB in as many buffers as they need, sixteen exact addresses and the multicast hash,
//! loopback in MAC and PHY, flow control (`flow.rs`), the chip's statistics, EEPROM (writable) and PHY, interrupt throttle and
//! receive delay.
//!
//! # Not implemented
//! - Wake-up, manageability, flash: their registers only store values. MSI and PCI-X: drivers for this chip use INTx.
//! - The packet checksum of a receive descriptor (PCSS) is 0. The four bytes of check sequence that RCTL.SECRC keeps are counted in
//!   the length but not written.
//! - TIDV is ignored and TADV is a lower bound: completions that request a delay wait for an interrupt that is due anyway
//!   (`CompletionDelay`).
//! - FCRTL and FCRTH; RXO except for a lone descriptor. Collisions, half duplex, early receive.
//!
//! # Quirks
//! - ICS reads as ICR without clearing it, as VxWorks' driver expects (according to QEMU's e1000.c).
//! - All bits of ICR can be set through ICS, reserved ones too: e1000_intr_test in Linux's e1000_ethtool.c sets each of the ten
//!   lowest and waits for it.
//! - RDH and TDH store any sixteen bits, also beyond the ring: e1000_reg_test in Linux's e1000_ethtool.c. A ring with its head
//!   outside is not used, nor is a transmit ring with its tail outside.
//! - A receive ring with its tail outside has every descriptor without DD: e1000_enable in NuttX's drivers/net/e1000.c writes the
//!   ring's length to RDT, and receives in QEMU.
//! - Negotiation completes at once, with LSC: Linux polls, other drivers wait for the interrupt.
//! - A frame without IFCS is still sent with a good check sequence: small drivers omit the bit, which QEMU tolerates.
//! - SWSM.SWESMBI, which only later chips have, stores its value: e1000_get_hw_eeprom_semaphore in U-Boot's drivers/net/e1000.c
//!   takes the semaphore on every chip before it reads the EEPROM.
//! - A ring without a length (RDLEN or TDLEN is 0; 16 reads as 0) is a lone descriptor while its tail is 1 and its head 0: each
//!   write of 1 to TDT sends it, and each frame that arrives in it sets RXO. Zephyr's eth_e1000.c drives QEMU's e1000.c in this
//!   way. The next frame is delivered 200 µs after a read of ICR, or a write to it, that clears RXO.
//! - Frames wait while the receiver is enabled and its ring has no length, for drivers that set RCTL.EN first.
//! - Reserved registers read as 0, as in the chip; offsets beyond the window as ones.

mod access;
mod interrupts;
pub mod models;
mod receive;
pub mod registers;
mod saved;
mod transmit;

use nicety_adapter::interrupts::{CompletionDelay, Delay, Interrupts};
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, PciFace, Progress, Queue, Reset, Stall, Time,
};
use nicety_pci::{Bar, Capability, Changes, Function, Identity, Pin, Power, Rom};

use self::models::{INTEL, Model};
use self::registers::{self as r, ctrl, rxcsum};
use super::fault;
use super::filter::Filter;
use super::flow::Pause;
use super::lost::Lost;
use super::phy::Phy;
use super::statistics::{OctetsRead, Statistics};
use super::transmit::Transmit;
use crate::block::{LINK_DOWN, LOOPBACK, NO_MASTER};
use crate::microwire::Microwire;
use crate::settings::{CreateError, Settings};

/// Numbers of the rings in [`Outbox::stalled`](nicety_adapter::Outbox::stalled).
const RECEIVE_RING: u16 = 0;
const TRANSMIT_RING: u16 = 1;
/// Action that makes a driver reset the chip and set up its rings anew: Linux e1000_main.c, e1000_close and e1000_open.
const CURE: &str = "restart the guest's driver (in Linux: `ip link set eth0 down`, then up)";

/// Creates an adapter of a model.
pub fn create(model: &'static Model, settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    Ok(Box::new(E1000::new(model, settings)?))
}

/// The adapter.
#[derive(Debug)]
pub struct E1000 {
    model: &'static Model,
    rom: Option<Rom>,
    function: Function,
    registers: r::Bank,
    /// Packet buffer memory, allocated at its first write.
    buffer: Option<Vec<u32>>,
    phy: Phy,
    eeprom: Microwire,
    filter: Filter,
    transmit: Transmit,
    /// Frames of a loopback, between their fetch and their delivery.
    looped: Option<Box<Batch>>,
    /// Pause of the transmitter.
    pause: Pause,
    /// Time by which the driver will have read the frame in its only receive descriptor.
    lone_read_by: Option<Time>,
    /// The rings are lost, and the driver has not reset the chip yet.
    lost: Option<Lost>,
    octets: OctetsRead,
    /// Frames were refused.
    starved: bool,
    link_up: bool,
    /// ICR, IMS, ITR and the line.
    interrupts: Interrupts,
    /// RDTR and RADV.
    receive_delay: Delay,
    /// Completions that wait for an interrupt.
    completions: CompletionDelay,
    /// Why the last walk of the receive ring, and of the transmit ring, failed. The chip has no such state.
    stalls: [Option<&'static str>; 2],
    generation: u32,
}

impl E1000 {
    fn new(model: &'static Model, settings: &Settings) -> Result<Self, CreateError> {
        settings.check(&model.about)?;
        settings.check_rom(&model.about)?;
        let mut this = Self {
            model,
            rom: settings.rom.clone(),
            function: function(model, settings)?,
            registers: r::Bank::new(model.registers),
            buffer: None,
            phy: Phy::new(model.phy),
            eeprom: model.eeprom.chip(settings.mac, settings.subsystem),
            filter: Filter::default(),
            transmit: Transmit::default(),
            looped: None,
            pause: Pause::default(),
            lone_read_by: None,
            lost: None,
            octets: OctetsRead::default(),
            starved: false,
            link_up: false,
            interrupts: interrupts::interrupts(),
            receive_delay: Delay::default(),
            completions: CompletionDelay::default(),
            stalls: [None; 2],
            generation: 0,
        };
        this.clear_chip();
        Ok(this)
    }

    /// Resets everything to the power-on state, except cable and EEPROM.
    fn power_on(&mut self, cx: &mut Context<'_>) {
        self.phy.reset();
        self.registers.reset(|region| region == r::IO);
        self.buffer = None;
        self.reset_chip(cx);
        self.function.reset();
    }

    /// Records whether a ring could be walked.
    fn saw_ring(&mut self, number: u16, why: Option<&'static str>, cx: &mut Context<'_>) {
        let before = std::mem::replace(&mut self.stalls[usize::from(number)], why);
        if why.is_some() && before.is_none() {
            cx.out.stalled.insert(number);
        }
    }
}

fn function(model: &Model, settings: &Settings) -> Result<Function, CreateError> {
    let (subsystem_vendor, subsystem) = settings.subsystem.unwrap_or((INTEL, model.subsystem));
    let identity = Identity {
        vendor: INTEL,
        device: model.about.pci.1,
        revision: model.revision,
        class: 0x02_0000,
        subsystem_vendor,
        subsystem,
    };
    // PCI PM 1.1 with D0 and D3hot, device-specific initialization; D3hot loses all state.
    let power = Power { capabilities: 0x0022, control: 0, data: 0 };
    let mut builder = Function::builder(identity)
        .interrupt_pin(Pin::A)
        .bar(0, Bar::memory(r::WINDOW_BYTES.into()))
        .bar(1, Bar::io(r::IO_BYTES.into()))
        .status(0x0220)
        .timing(0xff, 0)
        .capability_at(0xdc, Capability::Power(power));
    if let Some(rom) = &settings.rom {
        builder = builder.rom(rom.size());
    }
    builder.build().map_err(|error| CreateError::Description { adapter: model.about.name, why: error.to_string() })
}

impl PciFace for E1000 {
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
        if changes.contains(Changes::BUS_MASTER) && self.function.bus_master() {
            cx.out.work.insert(0);
            self.offer_room(cx);
        }
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        self.read_region(self.region(bar), offset, data, cx);
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        self.write_region(self.region(bar), offset, data, cx);
    }

    fn rom(&self) -> Option<&Rom> {
        self.rom.as_ref()
    }
}

impl Adapter for E1000 {
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
        self.deliver_frames(frames, cx)
    }

    fn notice(&mut self, event: Event, cx: &mut Context<'_>) {
        match event {
            Event::Link(up) => {
                match &mut self.lost {
                    Some(lost) => lost.cable = up,
                    None => self.phy.plug(up),
                }
                self.settle_link(cx);
            }
            Event::Lost | Event::Unanswered => self.lose(cx),
            Event::Restored => self.resume_restored(cx),
            Event::Missed(frames) => self.registers.count(r::MPC, frames),
            // Addresses are translated in every call; no doorbell page is mapped.
            Event::Memory | Event::Page | Event::Answer(_) => {}
        }
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        self.time_passed(cx);
        self.try_again(cx);
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
        self.registers[r::RCTL] & r::rctl::EN != 0 || self.registers[r::TCTL] & r::tctl::EN != 0
    }

    fn features(&self) -> Vec<&'static str> {
        let on = [
            (self.registers[r::RXCSUM] & rxcsum::TUOFL != 0, "rx-checksum"),
            (self.registers[r::CTRL] & ctrl::VME != 0, "vlan-strip"),
            (self.registers[r::RCTL] & r::rctl::VFE != 0, "vlan-filter"),
            (self.registers[r::RCTL] & r::rctl::LPE != 0, "jumbo"),
            (self.registers[r::RCTL] & r::rctl::UPE != 0, "promiscuous"),
            (self.loops(), "loopback"),
        ];
        on.into_iter().filter(|&(on, _)| on).map(|(_, name)| name).collect()
    }

    fn receive_block(&self) -> Option<&'static str> {
        match () {
            () if !self.is_driven() => None,
            () if self.registers[r::RCTL] & r::rctl::EN == 0 => Some(fault::OFF),
            () if !self.function.bus_master() => Some(NO_MASTER),
            () if !self.link_up => Some(LINK_DOWN),
            () if self.loops() => Some(LOOPBACK),
            () => fault::block(&self.registers, &self.filter, 0..1, fault::Tails::OpenEnded),
        }
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        let (on, queue) = match number {
            RECEIVE_RING => (self.registers[r::RCTL] & r::rctl::EN != 0, Queue::Receive(0)),
            TRANSMIT_RING => (self.registers[r::TCTL] & r::tctl::EN != 0, Queue::Transmit(0)),
            _ => return None,
        };
        let why = self.stalls[usize::from(number)].filter(|_| on && self.function.bus_master())?;
        Some(Stall { queue, why, cure: CURE })
    }
}
