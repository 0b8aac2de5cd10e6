//! Virtual functions of network cards: of an Intel 82576, the "igbvf", and of an 82599, the "ixgbevf". Their drivers have no EEPROM,
//! PHY or filters to program: for an address, a VLAN or a longer frame they ask their family, which stands for the physical
//! function's driver.
//!
//! ```text
//!              BAR 0: registers, 16 KiB                     BAR 3: MSI-X, 3 vectors
//!
//!   transmit queue n                             receive queue n
//!   (0x3800 + 0x100 n; 82599: 0x2000 + 0x40 n)   (0x2800 + 0x100 n; 82599: 0x1000 + 0x40 n)
//!   TDH ►┌─────────────────────────┐             RDH ►┌─────────────────────────┐
//!        │ context: lengths, MSS   │                  │ buffer (and headers')   │◄─ hash, type, status, length, tag
//!        │ data: buffer, EOP, RS   │─► frame, DD      │ buffer                  │◄─ its rest, EOP
//!   TDT ►├─────────────────────────┤             RDT ►├─────────────────────────┤
//!        │ the driver's            │                  │ the driver's            │
//!        └─────────────────────────┘                  └─────────────────────────┘
//!   mailbox: words ── REQ in V2PMAILBOX ──► family ── words, PFSTS ──► vector of IVAR_MISC
//! ```
//! The models follow Intel's *82576EB Gigabit Ethernet Controller Datasheet* and *82599 10 GbE Controller Datasheet*; numbers in
//! brackets are sections of the first. For drivers' requirements: Linux's drivers/net/ethernet/intel/igbvf and ixgbevf, and for the
//! answers of the families its igb and ixgbe.
//!
//! Features: all messages of Linux's and DPDK's drivers; checksums and segmentation (TCP and UDP, IPv4 and IPv6) on transmit,
//! checksums on receive, VLAN tags inserted, stripped and filtered, long frames, split headers (82576), two receive queues by the
//! hash (82599), four exact addresses, the multicast hash; a throttle for each vector; counters that never clear, head write-back.
//!
//! # Messages
//! Linux's drivers write TDT once for each packet (igbvf) or burst (ixgbevf), RDT once for 16 buffers, and EIMS at the end of each
//! poll; ixgbevf reads TDH and TDT when sent packets are done. Every two seconds they read the mailbox and the counters.
//!
//! # Not implemented
//! - Receive queue 1 of the 82576: its physical function sorts by address alone. Receive queues above 1 of the 82599.
//! - Versions 1.4 to 1.6 of the 82599's messages: IPsec, and a mailbox with other rules. Unicast promiscuous modes. RSC. Split
//!   headers of the 82599: frames go into the packet's buffers.
//! - SCTP's checksum, and segmentation in a tunnel, as the igb's.
//! - Counters of frames between functions (VFGPRLBC and the like) stay 0: other functions are reached by the switch.
//! - RXDCTL's and TXDCTL's thresholds; DCA; SRRCTL.Drop_En: frames without a buffer wait in the port.
//!
//! # Quirks
//! - The reply to RESET has no CTS, all others have: e1000_reset_hw_vf, ixgbevf_reset_hw_vf in Linux's vf.c.
//! - Frames are dropped from one byte above SET_LPE's length on, tags included, although SRRCTL names longer buffers: those of
//!   Linux's igbvf have 1522 bytes (igbvf_change_mtu). The 82599's length does not count one tag.
//! - The mailbox keeps the last reply, whose CTS is the sign of a link: e1000_check_for_link_vf, ixgbevf_check_mac_link_vf.
//! - Of an 82576 tags are stripped since the driver has added a VLAN: igb_set_vf_vlan_msg in Linux's igb_main.c.

mod access;
pub mod family;
mod interrupts;
mod mailbox;
pub mod models;
mod receive;
pub mod registers;
mod saved;
mod transmit;

use nicety_adapter::family::{Ask, Family};
use nicety_adapter::interrupts::{CompletionDelay, Interrupts};
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, Mappable, PciFace, Progress, Queue, Reset, Stall,
    Time,
};
use nicety_pci::{Bar, BuildError, Capability, Changes, Express, Function, Identity, MsixCapability};

use self::family::FunctionPolicy;
use self::mailbox::Mailbox;
use self::models::Model;
use self::registers::{self as r, QUEUES_MOST, dctl, rctl, vmolr};
use super::fault;
use super::filter::Filter;
use super::igb::transmit::{TransmitQueue, transmits};
use super::rss::Rss;
use crate::block::{LINK_DOWN, NO_MASTER};
use crate::msix;
use crate::settings::{CreateError, Settings};

/// The BAR of MSI-X.
const MSIX_BAR: u8 = 3;

/// Changes after which pending causes may interrupt.
const INTERRUPTS: Changes = Changes::MSIX.union(Changes::POWER).union(Changes::BUS_MASTER);

/// Action that makes a driver set up its rings anew: Linux igbvf_close and igbvf_open, ixgbevf_close and ixgbevf_open.
const CURE: &str = "restart the guest's driver (in Linux: `ip link set eth0 down`, then up)";

/// Creates a function of this model.
pub fn create(model: &'static Model, settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    Ok(Box::new(VirtualFunction::new(model, settings)?))
}

/// Number of a ring in [`Outbox::stalled`](nicety_adapter::Outbox::stalled).
fn stall_of(queue: usize, transmit: bool) -> u16 {
    2 * queue as u16 + u16::from(transmit)
}

/// The adapter.
#[derive(Debug)]
pub struct VirtualFunction {
    model: &'static Model,
    /// The policy of a family of one.
    policy: FunctionPolicy,
    function: Function,
    registers: r::Bank,
    mailbox: Mailbox,
    /// The time of the last ask.
    asked_at: Time,
    /// Its family has not seen yet what it was restored with.
    is_restored: bool,
    /// The host's: frames with the tag of a VLAN that was not granted are dropped.
    checks_tags: bool,
    filter: Filter,
    rss: Rss,
    transmit: [TransmitQueue; QUEUES_MOST],
    /// Receive queues that refused frames, a bit for each.
    starved: u32,
    link_up: bool,
    /// EICR, EIMS, EITR.
    causes: Interrupts,
    /// Completions that wait for an interrupt, by transmit queue.
    completions: [CompletionDelay; QUEUES_MOST],
    /// Why the last walk of each ring failed. The chip has no such state.
    stalls: [Option<&'static str>; 2 * QUEUES_MOST],
}

impl VirtualFunction {
    fn new(model: &'static Model, settings: &Settings) -> Result<Self, CreateError> {
        settings.check(&model.about)?;
        if settings.rom.is_some() {
            return Err(CreateError::Rom(format!("an {} has none", model.about.name)));
        }
        let function = describe(model)
            .map_err(|error| CreateError::Description { adapter: model.about.name, why: error.to_string() })?;
        let mut this = Self {
            model,
            // The port's own policy limits a function that belongs to no card, as it limits every adapter.
            policy: FunctionPolicy::free(settings.mac),
            function,
            registers: r::Bank::new(model.registers),
            mailbox: Mailbox::default(),
            asked_at: Time::ZERO,
            is_restored: false,
            checks_tags: false,
            filter: Filter::default(),
            rss: Rss::default(),
            transmit: Default::default(),
            starved: 0,
            link_up: true,
            causes: interrupts::causes(),
            completions: Default::default(),
            stalls: Default::default(),
        };
        this.clear_function();
        Ok(this)
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

fn describe(model: &Model) -> Result<Function, BuildError> {
    let identity = Identity {
        vendor: model.about.pci.0,
        device: model.about.pci.1,
        revision: 1,
        class: 0x02_0000,
        subsystem_vendor: model.about.pci.0,
        subsystem: model.subsystem,
    };
    let msix = MsixCapability {
        vectors: r::VECTORS,
        table_bar: MSIX_BAR,
        table_offset: 0,
        pba_bar: MSIX_BAR,
        pba_offset: r::PENDING,
    };
    Function::builder(identity)
        .bar(0, Bar::memory(r::WINDOW_BYTES.into()))
        .bar(3, Bar::memory(r::MSIX_BYTES.into()))
        // The chip's offsets (9.7).
        .capability_at(0x70, Capability::Msix(msix))
        .capability_at(0xa0, Capability::Express(Express::default()))
        .build()
}

impl PciFace for VirtualFunction {
    fn function(&self) -> &Function {
        &self.function
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        let changes = self.function.config_write(u64::from(offset), data);
        if changes.intersects(Changes::SOFT_RESET | Changes::FUNCTION_RESET) {
            self.reset(Reset::Function, cx);
        }
        if changes.intersects(INTERRUPTS) {
            self.causes.mode_changed(&mut self.function, cx);
            self.settle(cx);
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
        self.read_registers(offset, data, cx);
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        if bar == MSIX_BAR {
            return msix::write(&mut self.function, bar, offset, data);
        }
        self.write_registers(offset, data, cx);
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
}

impl Adapter for VirtualFunction {
    fn face(&mut self) -> Face<'_> {
        Face::Pci(self)
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        self.fetch_ring(queue.into(), budget, batch, cx)
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
                if std::mem::replace(&mut self.link_up, up) != up {
                    self.link_changed(cx);
                }
            }
            Event::Answer(answer) => self.answered(&answer, cx),
            Event::Restored => self.resume_restored(cx),
            Event::Lost | Event::Unanswered => self.lose(cx),
            // Addresses are translated in every call; a mapped page has the values of `shown`; no register counts missed frames.
            Event::Memory | Event::Page | Event::Missed(_) => {}
        }
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        self.time_passed(cx);
    }

    fn reset(&mut self, kind: Reset, cx: &mut Context<'_>) {
        // Frames that wait for buffers are lost with them.
        self.offer_room(!0, cx);
        self.function.reset();
        match kind {
            // The family keeps nothing of a function, so it need not hear of a new one.
            Reset::Bus => self.clear_function(),
            // As CTRL.RST (igb_vf_reset_event, ixgbe_vf_reset_event).
            Reset::Function => {
                self.clear_but_kept();
                self.mailbox.ask_for_reset();
                self.call_family(cx);
            }
        }
        self.settle(cx);
    }

    fn transmit_queues(&self) -> u16 {
        self.model.queues as u16
    }

    fn is_driven(&self) -> bool {
        (0..self.model.queues).any(|queue| self.receives(queue) || transmits(&self.registers, queue))
    }

    fn features(&self) -> Vec<&'static str> {
        let queues = self.registers.of(r::TXDCTL).iter().filter(|control| *control & dctl::ENABLE != 0).count();
        let on = [
            (self.mailbox.standing.ready, "rx-checksum"),
            (self.strips(0), "vlan-strip"),
            (self.mailbox.standing.vlans > 0, "vlan-filter"),
            (self.registers[r::VMOLR] & vmolr::RLPML > 1600, "jumbo"),
            (self.registers[r::RCTL] & rctl::MPE != 0, "all-multicast"),
            (self.spreads(), "rss"),
            (queues > 1, "mq"),
        ];
        on.into_iter().filter(|&(on, _)| on).map(|(_, name)| name).collect()
    }

    fn receive_block(&self) -> Option<&'static str> {
        let queues = (0..self.model.queues).filter(|queue| self.receives(*queue));
        match () {
            () if !self.is_driven() => None,
            () if !self.function.bus_master() => Some(NO_MASTER),
            () if !self.link_up => Some(LINK_DOWN),
            () => fault::block(&self.registers, &self.filter, queues, fault::Tails::Inside),
        }
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        let queue = usize::from(number / 2);
        let transmit = !number.is_multiple_of(2);
        let on = if transmit { transmits(&self.registers, queue) } else { self.receives(queue) };
        let own = on && self.function.bus_master();
        let why = self.stalls.get(usize::from(number)).copied().flatten().filter(|_| own)?;
        let queue = if transmit { Queue::Transmit(number / 2) } else { Queue::Receive(number / 2) };
        Some(Stall { queue, why, cure: CURE })
    }

    fn ask(&mut self) -> Option<Ask> {
        self.next_ask()
    }

    fn family_of_one(&self) -> Option<Box<dyn Family>> {
        Some(Box::new((self.model.card)(vec![self.policy])))
    }
}
