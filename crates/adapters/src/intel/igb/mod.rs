//! Intel 82576, the "igb": a gigabit Ethernet controller of 2008 with sixteen queues each way and MSI-X, whose driver Linux, Windows,
//! FreeBSD and DPDK have. One port of it, as a plain PCI function.
//!
//! ```text
//!              BAR 0: registers, 128 KiB    BAR 2: the same through IOADDR, IODATA    BAR 3: MSI-X, 25 vectors
//!
//!   transmit queue n (0xe000 + 0x40 n)           receive queue n (0xc000 + 0x40 n)
//!   TDH ►┌─────────────────────────┐             RDH ►┌─────────────────────────┐
//!        │ context: lengths, MSS   │                  │ buffer (and headers')   │◄─ hash, type, status, length, tag
//!        │ data: buffer, EOP, RS   │─► frame, DD      │ buffer                  │◄─ its rest, EOP
//!   TDT ►├─────────────────────────┤             RDT ►├─────────────────────────┤
//!        │ the driver's            │                  │ the driver's            │
//!        └─────────────────────────┘                  └─────────────────────────┘
//! ```
//! A write to TDT is the transmit doorbell; a write to RDT posts buffers. A queue interrupts by its vector in IVAR. EIAC clears the
//! vector's bit of EICR and EIAM masks it when the message is sent, so no register is read. The model follows Intel's *82576EB
//! Gigabit Ethernet Controller Datasheet*; numbers in brackets are its sections. For drivers' requirements: Linux's
//! drivers/net/ethernet/intel/igb.
//!
//! Features: sixteen queues each way (Linux uses up to eight), RSS with key and table, filters by EtherType and by flow; checksums
//! and segmentation (TCP and UDP, IPv4 and IPv6) on transmit, checksums on receive, VLAN tags inserted, stripped and filtered,
//! frames of up to 9.5 KiB, split headers, 24 exact addresses and the multicast hash; MSI-X, MSI and INTx, a throttle for each
//! vector; loopback in MAC and PHY, flow control, the chip's statistics, the clock of IEEE 1588 with departure and arrival times,
//! head write-back, NVM and PHY.
//!
//! # Messages
//! A burst of sent frames: one write (TDT). One interrupt with MSI-X: one write (EIMS), and one (RDT) for each 16 buffers that
//! Linux posts; no read.
//!
//! # Not implemented
//! - Virtual functions: the SR-IOV capability (0x160) is readable and writable as the chip's, and creates none, because a socket
//!   serves one function. QEMU hides it from its guest. The registers of pools, mailboxes and virtual functions only store values.
//! - VMDq: MRQC's modes other than RSS send all frames to their default queue.
//! - SCTP's checksum on transmit: a packet that requests it is dropped as `bad-offload` (`ethtool -K eth0 tx-checksum-sctp off`);
//!   and segmentation of packets in a tunnel (`ethtool -K eth0 tx-gso-partial off`).
//! - Writes to the NVM: it accepts no command over EECD's wires, and reports busy.
//! - IPsec, MACsec, wake-up, manageability, flash, DCA, SerDes, low-latency interrupts (IMIR's), the TCP timer: their registers
//!   only store values.
//! - EICR without GPIE.Multiple_MSIX: it shows causes and does not interrupt; ICR does.
//! - The packet checksum of a receive descriptor (RXCSUM.PCSD clear) is 0. The four bytes of check sequence that RCTL.SECRC keeps
//!   are counted in the length but not written.
//! - FCRTL and FCRTH; RXO. Collisions, half duplex. SRRCTL.Drop_En: frames without a buffer wait in the port, and are dropped there
//!   if it is full.
//!
//! # Quirks
//! - Frames wait while the receiver is enabled and the ring has no length, for drivers that set RCTL.EN before RDLEN (Linux's
//!   e1000e/netdev.c).
//! - All bits of ICR except the highest can be set through ICS, reserved ones too: igb_intr_test in Linux's igb_ethtool.c. It also
//!   leaves GPIE in reset state, and expects MSI-X's vector 0.
//! - RDT, TDT, RDH and TDH store any sixteen bits, also beyond the ring: igb_reg_test. A ring with its head or tail outside is not
//!   used.
//! - Negotiation completes at once, with LSC. So frames may arrive before a driver has routed its queues (igb_open): a queue with
//!   earlier frames interrupts when it gets its vector.
//! - Untagged frames are dropped from 12 bytes below RLPML on: RLPML's count includes two tags and the check sequence, and Linux's
//!   buffers have no room for more (igb_set_rx_mode).
//! - The device serial number is at 0x100, where the chip has error reporting, which is not implemented.
//! - Reserved registers read as 0, as in the chip; offsets beyond the window as ones.

mod access;
mod interrupts;
pub mod models;
pub(super) mod queues;
mod receive;
pub mod registers;
mod saved;
mod stamps;
pub(super) mod transmit;
pub(super) mod virtual_functions;

use nicety_adapter::interrupts::{CompletionDelay, Interrupts};
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, Mappable, PciFace, Progress, Queue, Reset, Stall,
};
use nicety_pci::{
    Bar, BuildError, Capability, Changes, Express, Function, Identity, Msi, MsixCapability, Pin, Power, Rom,
};

use self::models::{INTEL, Model};
use self::registers::{self as r, QUEUES, ctrl, dctl, rctl, rxcsum};
use self::transmit::{TransmitQueue, transmits};
use super::clock::Clock;
use super::fault;
use super::filter::Filter;
use super::flow::Pause;
use super::lost::Lost;
use super::phy::Phy;
use super::rss::Rss;
use super::statistics::{OctetsRead, Statistics};
use crate::block::{LINK_DOWN, LOOPBACK, NO_MASTER};
use crate::microwire::Microwire;
use crate::msix;
use crate::settings::{CreateError, Settings};

/// The BAR of MSI-X.
const MSIX_BAR: u8 = 3;

/// Changes after which pending causes may interrupt, or use another vector.
const INTERRUPTS: Changes =
    Changes::INTX.union(Changes::MSI).union(Changes::MSIX).union(Changes::POWER).union(Changes::BUS_MASTER);

/// Action that makes a driver reset the chip and set up its rings anew: Linux igb_main.c, igb_close and igb_open.
const CURE: &str = "restart the guest's driver (in Linux: `ip link set eth0 down`, then up)";

/// Creates an adapter.
pub fn create(model: &'static Model, settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    Ok(Box::new(Igb::new(model, settings)?))
}

/// Number of a ring in [`Outbox::stalled`](nicety_adapter::Outbox::stalled).
fn stall_of(queue: usize, transmit: bool) -> u16 {
    2 * queue as u16 + u16::from(transmit)
}

/// The adapter.
#[derive(Debug)]
pub struct Igb {
    model: &'static Model,
    rom: Option<Rom>,
    /// Offered MSI-X vectors.
    vectors: u16,
    function: Function,
    registers: r::Bank,
    phy: Phy,
    eeprom: Microwire,
    filter: Filter,
    rss: Rss,
    transmit: [TransmitQueue; QUEUES],
    /// Frames of a loopback, between their fetch and their delivery.
    looped: Option<Box<Batch>>,
    /// Pause of the transmitter.
    pause: Pause,
    /// The rings are lost, and the driver has not reset the chip yet.
    lost: Option<Lost>,
    octets: OctetsRead,
    /// Receive queues that refused frames, a bit for each.
    starved: u32,
    link_up: bool,
    /// ICR and IMS.
    causes: Interrupts,
    /// EICR, EIMS, EITR.
    extended: Interrupts,
    /// Causes of ICR that EICR has signalled.
    other: u32,
    /// Completions that wait for an interrupt, by transmit queue.
    completions: [CompletionDelay; QUEUES],
    clock: Clock<16>,
    /// Why the last walk of each ring failed. The chip has no such state.
    stalls: [Option<&'static str>; 2 * QUEUES],
}

impl Igb {
    fn new(model: &'static Model, settings: &Settings) -> Result<Self, CreateError> {
        let about = &model.about;
        settings.check(about)?;
        settings.check_rom(about)?;
        // A driver uses as many queues as it gets vectors, in addition to the one for other causes.
        let vectors =
            settings.queues.filter(|queues| *queues < about.queues).map_or(model.vectors, |queues| queues + 1);
        let function = describe(model, settings, vectors)
            .map_err(|error| CreateError::Description { adapter: about.name, why: error.to_string() })?;
        let mut this = Self {
            model,
            rom: settings.rom.clone(),
            vectors,
            function,
            registers: r::Bank::new(model.registers),
            phy: Phy::new(model.phy),
            eeprom: model.nvm.chip(settings.mac, None),
            filter: Filter::default(),
            rss: Rss::default(),
            transmit: Default::default(),
            looped: None,
            pause: Pause::default(),
            lost: None,
            octets: OctetsRead::default(),
            starved: 0,
            link_up: false,
            causes: interrupts::causes(),
            extended: interrupts::extended(),
            other: 0,
            completions: Default::default(),
            clock: Clock::default(),
            stalls: Default::default(),
        };
        this.clear_chip();
        Ok(this)
    }

    /// Resets everything to the power-on state, except cable and NVM.
    fn power_on(&mut self, cx: &mut Context<'_>) {
        self.phy.reset();
        self.registers.reset(|region| region == r::IO);
        self.reset_chip(cx);
        self.function.reset();
    }

    /// Records whether a ring could be walked.
    fn saw_ring(&mut self, number: u16, why: Option<&'static str>, cx: &mut Context<'_>) {
        let Some(stall) = self.stalls.get_mut(usize::from(number)) else { return };
        let before = std::mem::replace(stall, why);
        if why.is_some() && before.is_none() {
            cx.out.stalled.insert(number);
        }
    }
}

fn describe(model: &Model, settings: &Settings, vectors: u16) -> Result<Function, BuildError> {
    let identity = Identity {
        vendor: INTEL,
        device: model.about.pci.1,
        revision: model.revision,
        class: 0x02_0000,
        subsystem_vendor: INTEL,
        subsystem: model.subsystem,
    };
    // PCI PM 1.2 with D0 and D3hot, device-specific initialization; D3hot loses all state (9.4.1).
    let power = Power { capabilities: 0x0023, control: 0, data: 0 };
    let msix =
        MsixCapability { vectors, table_bar: MSIX_BAR, table_offset: 0, pba_bar: MSIX_BAR, pba_offset: r::PENDING };
    let [a, b, c, d, e, f] = settings.mac.0;
    let mut builder = Function::builder(identity)
        .interrupt_pin(Pin::A)
        .bar(0, Bar::memory(r::WINDOW_BYTES.into()))
        .bar(2, Bar::io(r::IO_BYTES.into()))
        .bar(3, Bar::memory(r::MSIX_BYTES.into()))
        // The chip's offsets (9.5).
        .capability_at(0x40, Capability::Power(power))
        .capability_at(0x50, Capability::Msi(Msi { vectors: 1, maskable: true }))
        .capability_at(0x70, Capability::Msix(msix))
        .capability_at(0xa0, Capability::Express(Express::default()))
        // Device serial number: the address with ff:ff in its middle (9.6.2).
        .extended(3, 1, vec![f, e, d, 0xff, 0xff, c, b, a]);
    builder = virtual_functions::describe(builder);
    if let Some(rom) = &settings.rom {
        builder = builder.rom(rom.size());
    }
    builder.build()
}

impl PciFace for Igb {
    fn function(&self) -> &Function {
        &self.function
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        let changes = self.function.config_write(u64::from(offset), data);
        virtual_functions::bound(&mut self.function);
        if changes.intersects(Changes::SOFT_RESET | Changes::FUNCTION_RESET) {
            self.power_on(cx);
        }
        if changes.intersects(INTERRUPTS) {
            self.mode_changed(cx);
        }
        if changes.contains(Changes::BUS_MASTER) && self.function.bus_master() {
            self.look_at_all_queues(cx);
            self.offer_room(!0, cx);
        }
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        if bar == MSIX_BAR {
            return msix::read(&self.function, bar, offset, data);
        }
        self.read_region(self.region(bar), offset, data, cx);
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        if bar == MSIX_BAR {
            return msix::write(&mut self.function, bar, offset, data);
        }
        self.write_region(self.region(bar), offset, data, cx);
    }

    fn mappable(&self) -> Option<Mappable> {
        Some(self.model.pages.part())
    }

    fn doorbells(&self) -> Vec<u32> {
        self.model.pages.offsets()
    }

    fn shown(&self, words: &mut [u32]) -> bool {
        self.model.pages.show(&self.registers, words);
        true
    }

    fn rom(&self) -> Option<&Rom> {
        self.rom.as_ref()
    }
}

impl Adapter for Igb {
    fn face(&mut self) -> Face<'_> {
        Face::Pci(self)
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        let progress = self.fetch_ring(queue.into(), budget, batch, cx);
        if transmits(&self.registers, queue.into()) && self.may_dma() { cx.fetched(progress) } else { progress }
    }

    fn complete(&mut self, batch: &Batch, cx: &mut Context<'_>) {
        let queue = usize::from(batch.queue);
        if self.transmit.get(queue).is_some_and(|own| own.generation == batch.generation) {
            self.give_back(queue, cx);
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
        self.registers[r::RCTL] & rctl::EN != 0 || self.registers[r::TCTL] & r::tctl::EN != 0
    }

    fn features(&self) -> Vec<&'static str> {
        let queues = self.registers.of(r::RXDCTL).iter().filter(|control| *control & dctl::ENABLE != 0).count();
        let on = [
            (self.registers[r::RXCSUM] & rxcsum::TUOFL != 0, "rx-checksum"),
            (self.registers[r::CTRL] & ctrl::VME != 0, "vlan-strip"),
            (self.registers[r::RCTL] & rctl::VFE != 0, "vlan-filter"),
            (self.registers[r::RCTL] & rctl::LPE != 0 && self.registers[r::RLPML] > 1600, "jumbo"),
            (self.registers[r::RCTL] & rctl::UPE != 0, "promiscuous"),
            (self.registers[r::MRQC] & 7 == 2, "rss"),
            (queues > 1, "mq"),
            (self.loops(), "loopback"),
        ];
        on.into_iter().filter(|&(on, _)| on).map(|(_, name)| name).collect()
    }

    fn receive_block(&self) -> Option<&'static str> {
        let queues = (0..QUEUES).filter(|queue| self.receives(*queue));
        match () {
            () if !self.is_driven() => None,
            () if self.registers[r::RCTL] & rctl::EN == 0 => Some(fault::OFF),
            () if !self.may_dma() => Some(NO_MASTER),
            () if !self.link_up => Some(LINK_DOWN),
            () if self.loops() => Some(LOOPBACK),
            () => fault::block(&self.registers, &self.filter, queues, fault::Tails::Inside),
        }
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        let queue = usize::from(number / 2);
        let transmit = !number.is_multiple_of(2);
        let on = if transmit { transmits(&self.registers, queue) } else { self.receives(queue) };
        let why = self.stalls.get(usize::from(number)).copied().flatten().filter(|_| on && self.may_dma())?;
        let queue = if transmit { Queue::Transmit(number / 2) } else { Queue::Receive(number / 2) };
        Some(Stall { queue, why, cure: CURE })
    }
}
