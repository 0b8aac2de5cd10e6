//! Intel 82574L, the "e1000e": a gigabit Ethernet controller of 2008 on PCI Express, whose driver has MSI-X, two queues and
//! receive-side scaling. It has the rings of the e1000 (`intel/transmit.rs`, `intel/receive.rs`), with extensions.
//!
//! ```text
//! BAR 0  registers, 128 KiB    BAR 1  flash, empty    BAR 2  the registers through IOADDR, IODATA    BAR 3  MSI-X table
//!
//!   transmit rings 0, 1 (TDBAL…)                 receive rings 0, 1 (RDBAL…)
//!   TDH ►┌────────────────────┐                  RDH ►┌────────────────────┐
//!        │ context: offsets   │                       │ buffer             │◄─ frame, hash, DD
//!        │ data: buffer, EOP  │─► frame, DD           │ buffer             │◄─ its rest, DD, EOP
//!   TDT ►├────────────────────┤                  RDT ►├────────────────────┤
//!        │ the driver's       │                       │ the driver's       │
//!        └────────────────────┘                       └────────────────────┘
//!
//!   RXQ0 RXQ1 TXQ0 TXQ1 OTHER ─► IVAR ─► EITR ─► vectors 0 to 4          (INTx, MSI: every cause ─► ITR)
//! ```
//! The model follows Intel's *82574 GbE Controller Family Datasheet* (317694); numbers in brackets are its sections.
//!
//! **Features**: checksums and segmentation (TCP and UDP, IPv4 and IPv6) on transmit, checksums on receive, VLAN tags inserted,
//! stripped and filtered, frames of up to 16 KiB, legacy and extended receive descriptors, headers split from their payload, two
//! queues each way with the Toeplitz hash, INTx, MSI and MSI-X with auto-clear and auto-mask, sixteen exact addresses and the
//! multicast hash, loopback in MAC and PHY, flow control, the chip's statistics, flash with its shadow RAM, PHY, the clock and its
//! time stamps.
//!
//! **Few messages**: with MSI-X and EIAC an interrupt needs no register read; a poll writes IMS once, and each tail once per burst.
//!
//! # Not implemented
//! - Wake-up, manageability, the flash's own interface: their registers only store values. BAR 1 is an empty flash.
//! - The packet checksum and the IP identification of a receive descriptor are 0 (RXCSUM.PCSD clear). The four bytes of check
//!   sequence that RCTL.SECRC keeps are counted in the length but not written. The hash skips IPv6 extension headers.
//! - Pages of the PHY other than the first read as zeros. FCRTL and FCRTH; RXO. Collisions, half duplex.
//! - TARC's shares between the transmit queues: they are served in turn. Thresholds of RXDCTL and TXDCTL: descriptors are written
//!   back at once.
//! - TIDV is ignored and TADV is a lower bound: see `interrupts.rs`. RDTR and RADV apply only without a throttle.
//! - Packet buffer memory (PBM) reads as zeros.
//!
//! # Quirks
//! - Frames wait while the receiver is enabled and the ring has no length, for drivers that set RCTL.EN before RDLEN (Linux's
//!   e1000e/netdev.c).
//! - TXCW, which a copper chip does not use, stores its value: e1000_reg_test in Linux's e1000e/ethtool.c.
//! - All bits of ICR can be set through ICS: e1000_intr_test there.
//! - RDH and TDH store any sixteen bits: e1000_reg_test. A ring with its head or tail outside is not used.
//! - EXTCNF_CTRL.MDIO_SW_OWNERSHIP reads as written: there is no firmware that could own the PHY (e1000_get_hw_semaphore_82574 in
//!   Linux's e1000e/82571.c).
//! - A write that clears ICR.OTHER clears its underlying causes, for Windows' driver, according to QEMU's e1000e_core.c.
//! - Negotiation completes at once, with LSC. A frame without IFCS is still sent with a good check sequence.
//! - RDH and RDT count units of 16 bytes even with descriptors of 32: Linux's e1000e/netdev.c, e1000_alloc_rx_buffers_ps.

mod access;
mod interrupts;
pub mod models;
mod receive;
pub mod registers;
mod saved;
mod stamps;
mod transmit;

use nicety_adapter::interrupts::{CompletionDelay, Delay, Interrupts};
use nicety_adapter::{Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, Progress, Queue, Reset, Stall};
use nicety_pci::{Bar, Capability, Express, Function, Identity, Msi, MsixCapability, Pin, Power, Rom};

use self::models::Model;
use self::registers::{self as r, ctrl, rxcsum};
use super::clock::Clock;
use super::fault;
use super::filter::Filter;
use super::flow::Pause;
use super::lost::Lost;
use super::nvm::Nvm;
use super::phy::Phy;
use super::rss::Rss;
use super::statistics::{OctetsRead, Statistics};
use super::transmit::Transmit;
use crate::block::{LINK_DOWN, LOOPBACK, NO_MASTER};
use crate::settings::{CreateError, Settings};

/// Action that makes a driver reset the chip and set up its rings anew: Linux's e1000e/netdev.c, e1000e_close and e1000e_open.
const CURE: &str = "restart the guest's driver (in Linux: `ip link set eth0 down`, then up)";

/// Creates an adapter.
pub fn create(model: &'static Model, settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    Ok(Box::new(E1000e::new(model, settings)?))
}

/// The adapter.
#[derive(Debug)]
pub struct E1000e {
    model: &'static Model,
    rom: Option<Rom>,
    function: Function,
    registers: r::Bank,
    phy: Phy,
    nvm: Nvm,
    filter: Filter,
    rss: Rss,
    transmit: [Transmit; r::QUEUES],
    /// Frames of a loopback, between their fetch and their delivery.
    looped: Option<Box<Batch>>,
    /// Pause of the transmitter.
    pause: Pause,
    /// The rings are lost, and the driver has not reset the chip yet.
    lost: Option<Lost>,
    octets: OctetsRead,
    /// Receive queues that refused frames.
    starved: [bool; r::QUEUES],
    link_up: bool,
    /// ICR, IMS, IVAR, EITR and the line.
    interrupts: Interrupts,
    /// RDTR and RADV, and the causes that wait for them.
    receive_delay: Delay,
    delayed: u32,
    /// Completions that wait for an interrupt.
    completions: [CompletionDelay; r::QUEUES],
    clock: Clock<40>,
    /// Why the last walk of each ring failed: receive queue n is number 2n, transmit queue n is 2n + 1. The chip has no such state.
    stalls: [Option<&'static str>; 2 * r::QUEUES],
    generation: u32,
}

impl E1000e {
    fn new(model: &'static Model, settings: &Settings) -> Result<Self, CreateError> {
        settings.check(&model.about)?;
        settings.check_rom(&model.about)?;
        let mut this = Self {
            model,
            rom: settings.rom.clone(),
            function: function(model, settings)?,
            registers: r::Bank::new(model.registers),
            phy: Phy::new(model.phy),
            nvm: Nvm::new(settings.mac, model.nvm, settings.subsystem),
            filter: Filter::default(),
            rss: Rss::default(),
            transmit: Default::default(),
            looped: None,
            pause: Pause::default(),
            lost: None,
            octets: OctetsRead::default(),
            starved: Default::default(),
            link_up: false,
            interrupts: interrupts::interrupts(),
            receive_delay: Delay::default(),
            delayed: 0,
            completions: Default::default(),
            clock: Clock::default(),
            stalls: Default::default(),
            generation: 0,
        };
        this.clear_chip();
        Ok(this)
    }

    /// Resets everything to the power-on state, except cable and flash.
    fn power_on(&mut self, cx: &mut Context<'_>) {
        self.phy.reset();
        self.registers.reset(|region| region == r::IO);
        self.function.reset();
        self.reset_chip(cx);
    }

    /// Whether the chip may reach guest memory.
    fn masters(&self) -> bool {
        self.function.bus_master() && self.registers[r::CTRL] & ctrl::MASTER_DISABLE == 0
    }

    /// Records whether a ring could be walked.
    fn saw_ring(&mut self, number: usize, why: Option<&'static str>, cx: &mut Context<'_>) {
        if let Some(stall) = self.stalls.get_mut(number)
            && std::mem::replace(stall, why).is_none()
            && why.is_some()
        {
            cx.out.stalled.insert(number as u16);
        }
    }

    /// Increments one of the chip's own counters.
    fn count(&mut self, counter: r::Reg, n: u32) {
        self.registers[counter] = self.registers[counter].saturating_add(n);
    }
}

fn function(model: &Model, settings: &Settings) -> Result<Function, CreateError> {
    let (vendor, device) = model.about.pci;
    let (subsystem_vendor, subsystem) = settings.subsystem.unwrap_or((vendor, model.subsystem));
    let identity = Identity { vendor, device, revision: model.revision, class: 0x02_0000, subsystem_vendor, subsystem };
    let msix = MsixCapability {
        vectors: model.vectors,
        table_bar: access::MSIX_BAR,
        table_offset: 0,
        pba_bar: access::MSIX_BAR,
        pba_offset: r::PBA_OFFSET,
    };
    // PCI PM 1.1 with D0 and D3hot, device-specific initialization; D3hot loses all state.
    let power = Power { capabilities: 0x0022, control: 0, data: 0 };
    let mut builder = Function::builder(identity)
        .interrupt_pin(Pin::A)
        .bar(0, Bar::memory(r::WINDOW_BYTES.into()))
        .bar(1, Bar::memory(r::WINDOW_BYTES.into()))
        .bar(2, Bar::io(r::IO_BYTES.into()))
        .bar(3, Bar::memory(r::MSIX_BYTES))
        .capability_at(0xc8, Capability::Power(power))
        .capability_at(0xd0, Capability::Msi(Msi { vectors: 1, maskable: false }))
        .capability_at(0xe0, Capability::Express(Express { version: 1, ..Express::default() }))
        .capability_at(0xa0, Capability::Msix(msix));
    if let Some(rom) = &settings.rom {
        builder = builder.rom(rom.size());
    }
    builder.build().map_err(|error| CreateError::Description { adapter: model.about.name, why: error.to_string() })
}

impl Adapter for E1000e {
    fn face(&mut self) -> Face<'_> {
        Face::Pci(self)
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        let progress = self.fetch_ring(queue.into(), budget, batch, cx);
        if self.transmits() { cx.fetched(progress) } else { progress }
    }

    fn complete(&mut self, batch: &Batch, cx: &mut Context<'_>) {
        if batch.generation == self.generation {
            self.give_back(batch.queue.into(), cx);
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
            // Addresses are translated in every call; a mapped page has the values of `shown`.
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
        self.model.queues as u16
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
            (self.registers[r::MRQC] & 3 == 1, "rss"),
            (self.has_vectors(), "msi-x"),
            (self.loops(), "loopback"),
        ];
        on.into_iter().filter(|&(on, _)| on).map(|(_, name)| name).collect()
    }

    fn receive_block(&self) -> Option<&'static str> {
        match () {
            () if !self.is_driven() => None,
            () if self.registers[r::RCTL] & r::rctl::EN == 0 => Some(fault::OFF),
            () if !self.masters() => Some(NO_MASTER),
            () if !self.link_up => Some(LINK_DOWN),
            () if self.loops() => Some(LOOPBACK),
            () => fault::block(&self.registers, &self.filter, 0..1, fault::Tails::Inside),
        }
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        let (on, queue) = match number % 2 {
            0 => (self.registers[r::RCTL] & r::rctl::EN != 0, Queue::Receive(number / 2)),
            _ => (self.registers[r::TCTL] & r::tctl::EN != 0, Queue::Transmit(number / 2)),
        };
        let why = self.stalls.get(usize::from(number)).copied().flatten().filter(|_| on && self.masters())?;
        Some(Stall { queue, why, cure: CURE })
    }
}
