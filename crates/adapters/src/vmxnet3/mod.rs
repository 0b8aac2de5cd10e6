//! vmxnet3, VMware's paravirtual adapter (15ad:07b0), versions 1 to 7.
//!
//! All data structures are in guest memory; registers hold commands, masks and doorbells. While both sides are busy, a frame costs
//! no register access.
//!
//! ```text
//! DSAL/DSAH ─► DriverShared ──► queue descriptors (256 bytes each: transmit, then receive)
//!              features, MTU        │
//!              filter, RSS          ├─ transmit ring ─────► data ring (headers copied) or the packet's own pages
//!              interrupts           │  ▒▒▒▒ gen = ours  ──fetch──►  Batch
//!                                   ├─ transmit completions ◄─complete── index of each packet's last descriptor
//!                                   │
//!                                   ├─ receive ring 0: head buffers (and bodies, up to version 6)
//!                                   ├─ receive ring 1: body buffers, a page each
//!                                   ├─ receive data ring: small packets (version 3 on)
//!                                   └─ receive completions ◄─deliver──  SOP … EOP, checksum, tag, hash, LRO
//!
//! BAR 0  PT 4 KiB   IMR (mask) 0+8v   TXPROD 600+8q   RXPROD 800+8q   RXPROD2 a00+8q      (may be mapped)
//! BAR 1  VD 4 KiB   VRRS UVRS DSAL DSAH CMD MACL MACH ICR ECR DCR PTCR
//! BAR 2  8 KiB      MSI-X table, 65 vectors; pending bits; a page that holds nothing (see *Quirks*)
//! ```
//!
//! The device owns a descriptor whose generation bit equals the ring's, which flips with each round. The driver owns a completion
//! by the same rule.
//!
//! # Features
//! - Up to 32 transmit and 32 receive queues. RSS (Toeplitz, TCP and UDP ports, ESP's index).
//! - Checksums both ways. TSO for IPv4 and IPv6. Both also for frames sent in VXLAN or Geneve.
//! - Packets received uncut (LRO completions), which make guest to guest fast.
//! - VLAN tags inserted and stripped, VLAN and multicast filters, MTU up to 9190.
//! - INTx, MSI, MSI-X with automatic masks.
//!
//! # Few messages
//! While a transmit queue is served its driver does not ring the doorbell (`transmit.rs`). The device looks in
//! the ring for receive buffers whenever it needs one, so updateRxProd stays off. A queue that ran out of them is checked when its
//! interrupt is unmasked, and by a timer.
//!
//! # Not implemented
//! - Inner checksums and hashes of received tunnel packets. A driver that asks for them with `UPT1_F_RXINNEROFLD` gets outer ones.
//! - The large BAR 0, out-of-order receive completions, UPT pass-through, timestamp rings (version 9), plug-ins, wake-on-LAN.
//! - Interrupt moderation has one level, adaptive, for vectors whose driver requests any (`ReceiveModeration`).
//!
//! # Quirks
//! - `VMXNET3_IC_DISABLE_ALL` is ignored (`interrupts.rs`).
//! - A VLAN table without any bit filters nothing (`filter.rs`).
//! - ACTIVATE_DEV on an active device starts it anew.
//! - BAR 2 has an empty page that can be mapped. QEMU posts writes to devices that have no such page. Linux's `vmxnet3_set_mc` and
//!   `vmxnet3_quiesce_dev` free a command's data right after writing the command, so the write must not be posted.
//! - Completions of transmitted packets wait for an interrupt that is due anyway (`CompletionDelay`).

use std::time::Duration;

use nicety_adapter::bank::Bank;
use nicety_adapter::interrupts::{Interrupts, MODERATION_NS};
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, Progress, Queue, Reason, Reset, Stall, Time,
};
use nicety_frame::Mac;
use nicety_pci::{Bar, Capability, Express, Function, Identity, Msi, MsixCapability, Pin, Power, Rom};

use crate::about::{About, Boot, Kind, Since, Sources};
use crate::block::{LINK_DOWN, NO_MASTER};
use crate::settings::{CreateError, Settings};

mod access;
mod coalescing;
mod command;
mod filter;
mod interrupts;
mod receive;
pub(crate) mod registers;
mod rss;
mod saved;
mod shared;
mod statistics;
mod transmit;

use coalescing::Coalescing;
use filter::Filter;
use receive::{Arrival, Outcome, ReceiveQueue, Windows, wants};
use registers::{REGISTERS, Reg};
use rss::Rss;
use shared::Setup;
use transmit::{Sending, TransmitQueue, Tunnels};

/// Description of vmxnet3.
pub static ABOUT: About = About {
    name: "vmxnet3",
    chip: "VMware vmxnet3",
    kind: Kind::Paravirtual,
    pci: (0x15ad, 0x07b0),
    stands_by: false,
    vmware_subsystem: None,
    link_mbps: 10_000,
    link_unless: None,
    offloads: &["tx-checksum", "rx-checksum", "tso4", "tso6", "lro", "vlan-insert", "vlan-strip", "rss"],
    queues: registers::QUEUES,
    mtu_max: shared::MTU_MAX,
    announces_mtu: false,
    promiscuous: true,
    dma: true,
    boot: Boot { rom: Some("vmxnet3"), u_boot: None },
    linux: Since {
        driver: "vmxnet3",
        version: "2.6.32",
        source: "torvalds/linux commit d1a890fa37f2 of 2009-10-13, net: VMware virtual Ethernet NIC driver: vmxnet3",
    },
    windows: Since {
        driver: "vmxnet3",
        version: "with VMware Tools",
        source: "VMware, vSphere 4 Administration Guide, Network Adapter Types: requires VMware Tools",
    },
    sources: Sources {
        chip: "Linux drivers/net/vmxnet3/vmxnet3_defs.h and upt1_defs.h (by VMware)",
        pci: "Linux include/linux/pci_ids.h, PCI_DEVICE_ID_VMWARE_VMXNET3",
        link: "Linux vmxnet3_defs.h, VMXNET3_LINK_UP",
        offloads: "Linux vmxnet3_defs.h, Vmxnet3_TxDesc and Vmxnet3_RxCompDesc; upt1_defs.h, UPT1_F_*",
        queues: "Linux vmxnet3_defs.h, VMXNET3_EXT_MAX_TX_QUEUES",
        mtu: "Linux vmxnet3_defs.h, VMXNET3_V6_MAX_MTU",
    },
    qemu: Some("vmxnet3"),
    transports: &["vfio-user"],
};

/// Action that makes a driver activate the device anew. Linux's does so when it learns of the error (vmxnet3_drv.c,
/// vmxnet3_process_events), and whenever its interface goes up.
const CURE: &str = "Linux's driver resets the device by itself; if it stays so, restart the guest's driver (in Linux: \
     `ip link set eth0 down`, then up)";
/// Default number of queue pairs: the maximum that drivers before version 6 use for transmit.
const QUEUES_DEFAULT: u16 = 8;
/// First delay between a refusal and a check of the rings; it doubles up to [`ROOM_MAX`].
const ROOM_FIRST: Duration = Duration::from_micros(200);
const ROOM_MAX: Duration = Duration::from_millis(4);
/// Interval of mask checks in a mapped page: this fraction of the time since a vector started to wait, at most as long as for
/// rings. A driver that polls never lifts its masks.
const MASKED_PART: u32 = 8;
const SECOND_NS: u64 = 1_000_000_000;

/// The adapter.
#[derive(Debug)]
pub struct Vmxnet3 {
    function: Function,
    rom: Option<Rom>,
    permanent: Mac,
    /// Offered queues, each way.
    queues: u16,
    link: bool,
    generation: u32,
    /// Version that the driver selected, 1 to 7.
    version: u8,
    registers: Bank<Reg>,
    /// Events not yet acknowledged.
    events: u32,
    /// Capabilities that the driver enabled (DCR 0).
    capabilities: u32,
    /// VMXNET3_RSS_FIELDS_*.
    fields: u32,
    coalescing: Coalescing,
    interrupts: Interrupts,
    filter: Filter,
    rss: Rss,
    /// Set while the device is active.
    setup: Option<Setup>,
    transmit: Vec<TransmitQueue>,
    receive: Vec<ReceiveQueue>,
    /// Time of the next search for receive buffers, and the delay after it.
    room_at: Option<Time>,
    room_delay: Duration,
    /// Time at which a vector last started to wait for its mask to be lifted.
    masked_at: Option<Time>,
}

/// Creates an adapter.
///
/// # Errors
/// A group address, too many queues, an option ROM for another device.
pub fn create(settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    Ok(Box::new(Vmxnet3::new(settings)?))
}

fn describe(mac: Mac, rom: Option<&Rom>) -> Result<Function, nicety_pci::BuildError> {
    let (vendor, device) = ABOUT.pci;
    let identity =
        Identity { vendor, device, revision: 1, class: 0x02_0000, subsystem_vendor: vendor, subsystem: device };
    let msix = MsixCapability {
        vectors: registers::VECTORS,
        table_bar: 2,
        table_offset: 0,
        pba_bar: 2,
        pba_offset: registers::PBA_OFFSET,
    };
    let [a, b, c, d, e, f] = mac.0;
    let builder = Function::builder(identity)
        .interrupt_pin(Pin::A)
        .bar(0, Bar::memory(registers::PT_LEN))
        .bar(1, Bar::memory(registers::VD_LEN))
        .bar(2, Bar::memory(registers::MSIX_LEN))
        .capability(Capability::Power(Power::default()))
        .capability(Capability::Express(Express::default()))
        .capability(Capability::Msi(Msi { vectors: 1, maskable: false }))
        .capability(Capability::Msix(msix))
        // Device serial number: the address with ff:fe in its middle (PCIe 4.0 §7.9.3).
        .extended(3, 1, vec![f, e, d, 0xfe, 0xff, c, b, a]);
    match rom {
        Some(rom) => builder.rom(rom.size()).build(),
        None => builder.build(),
    }
}

impl Vmxnet3 {
    fn new(settings: &Settings) -> Result<Self, CreateError> {
        let adapter = ABOUT.name;
        let mac = settings.mac;
        settings.check(&ABOUT)?;
        let queues = settings.queues.unwrap_or(QUEUES_DEFAULT);
        settings.check_rom(&ABOUT)?;
        let function = describe(mac, settings.rom.as_ref())
            .map_err(|error| CreateError::Description { adapter, why: error.to_string() })?;
        let mut this = Self {
            function,
            rom: settings.rom.clone(),
            permanent: mac,
            queues,
            link: true,
            generation: 0,
            version: 1,
            registers: Bank::new(&REGISTERS),
            events: 0,
            capabilities: 0,
            fields: rss::FIELDS_DEFAULT,
            coalescing: Coalescing::default(),
            interrupts: interrupts::interrupts(),
            filter: Filter::default(),
            rss: Rss::default(),
            setup: None,
            transmit: Vec::new(),
            receive: Vec::new(),
            room_at: None,
            room_delay: ROOM_FIRST,
            masked_at: None,
        };
        this.restore_address();
        Ok(this)
    }

    fn restore_address(&mut self) {
        let [a, b, c, d, e, f] = self.permanent.0;
        self.registers[Reg::MACL] = u32::from_le_bytes([a, b, c, d]);
        self.registers[Reg::MACH] = u32::from_le_bytes([e, f, 0, 0]);
    }

    /// The driver's current MAC address.
    fn address(&self) -> Mac {
        let [a, b, c, d] = self.registers[Reg::MACL].to_le_bytes();
        let [e, f, ..] = self.registers[Reg::MACH].to_le_bytes();
        Mac([a, b, c, d, e, f])
    }

    fn transmit_count(&self) -> u16 {
        self.setup.map_or(0, |setup| setup.transmit)
    }

    /// The setup, while the device is active and may reach memory.
    fn running(&self) -> Option<Setup> {
        self.setup.filter(|_| self.function.bus_master())
    }

    /// Reports queues that had refused packets and have buffers again.
    fn look_for_room(&mut self, cx: &mut Context<'_>) {
        if self.room_at.is_none() || self.running().is_none() {
            return;
        }
        let mut starved = false;
        for (number, queue) in self.receive.iter_mut().enumerate().filter(|(_, queue)| queue.starved) {
            if queue.has_room(cx.memory) {
                queue.starved = false;
                cx.out.room.insert(number as u16);
            } else {
                starved = true;
            }
        }
        if !starved {
            (self.room_at, self.room_delay) = (None, ROOM_FIRST);
        }
    }

    /// Requests the next tick.
    fn schedule(&self, cx: &mut Context<'_>) {
        let recheck = self.transmit.iter().filter_map(|queue| queue.recheck).min();
        let delay = self.transmit.iter().filter_map(|queue| queue.delay.due()).min();
        let mask = (cx.page.is_some() && self.masked_and_waiting() != 0)
            .then(|| (cx.now.since(self.masked_at.unwrap_or(cx.now)) / MASKED_PART).clamp(ROOM_FIRST, ROOM_MAX))
            .map(|wait| cx.now.after(wait));
        let held = self.receive.iter().filter_map(|queue| queue.moderation.due()).min();
        if let Some(next) = recheck.into_iter().chain(delay).chain(held).chain(self.room_at).chain(mask).min() {
            cx.out.wake_by(next);
        }
    }

    /// Interrupts for completions whose delay is over, and requests a tick for those that still wait.
    fn signal_completions(&mut self, cx: &mut Context<'_>) {
        for number in 0..self.transmit.len() {
            if let Some(queue) = self.transmit.get_mut(number)
                && queue.delay.over(cx.now)
            {
                let vector = queue.vector;
                self.raise(vector, cx);
            }
        }
        self.schedule(cx);
    }

    /// Interrupts for received frames whose pause is over.
    fn signal_arrivals(&mut self, cx: &mut Context<'_>) {
        for number in 0..self.receive.len() {
            if let Some(queue) = self.receive.get(number)
                && queue.moderation.over(cx.now)
            {
                let vector = queue.vector;
                self.raise(vector, cx);
            }
        }
    }

    /// Bytes carried by the queues of a vector.
    fn carried(&self, vector: u8) -> u64 {
        let sent = self.transmit.iter().filter(|queue| queue.vector == vector).map(|queue| queue.statistics.bytes());
        let received = self.receive.iter().filter(|queue| queue.vector == vector).map(|queue| queue.statistics.bytes());
        sent.chain(received).fold(0, u64::wrapping_add)
    }

    /// Raises a queue's vector, for all queues that share it. A mask lifted in a mapped page sends no message, so a tick checks it.
    fn raise(&mut self, vector: u8, cx: &mut Context<'_>) {
        let carried = self.carried(vector);
        for queue in self.transmit.iter_mut().filter(|queue| queue.vector == vector) {
            queue.delay.join();
        }
        for queue in self.receive.iter_mut().filter(|queue| queue.vector == vector) {
            match self.coalescing {
                Coalescing::Rate(rate) => queue.moderation.note_interrupt_for(SECOND_NS / u64::from(rate), cx.now),
                _ => queue.moderation.note_interrupt(carried, cx.now),
            }
            queue.signalled_index = queue.completions.next;
        }
        let before = self.masked_and_waiting();
        self.raise_vector(u16::from(vector), cx);
        if self.masked_and_waiting() & !before != 0 {
            self.masked_at = Some(cx.now);
        }
        if cx.page.is_some() && self.masked_and_waiting() != 0 {
            self.schedule(cx);
        }
    }

    /// A guest with a mapped page lifts masks without a message.
    fn look_at_page(&mut self, cx: &mut Context<'_>) {
        if cx.page.is_some() {
            if self.masked_and_waiting() != 0 {
                self.update_interrupts(cx);
            }
            self.look_for_room(cx);
        }
    }

    /// Keeps what a driver selected when it probed, because it does not select again when its guest wakes.
    fn reset_function(&mut self, cx: &mut Context<'_>) {
        self.reset_device(cx);
        self.function.reset();
        let address = [Reg::MACL, Reg::MACH].map(|name| self.registers[name]);
        self.registers.reset(|_| true);
        [self.registers[Reg::MACL], self.registers[Reg::MACH]] = address;
        self.filter = Filter::default();
        self.transmit.clear();
        self.receive.clear();
        self.room_delay = ROOM_FIRST;
    }

    /// A driver starts, and has selected only a version.
    fn begin(&mut self, version: u8) {
        self.version = version;
        self.capabilities = 0;
        self.restore_address();
    }
}

impl Adapter for Vmxnet3 {
    fn face(&mut self) -> Face<'_> {
        Face::Pci(self)
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        let idle = Progress { more: false, armed: true };
        batch.generation = self.generation;
        self.look_at_page(cx);
        let running = self.running().is_some();
        let Some(transmit) = self.transmit.get_mut(usize::from(queue)).filter(|q| running && q.error == 0) else {
            return idle;
        };
        let mut given_back = false;
        let tunnels = Tunnels::of(self.version, self.capabilities);
        let sending = Sending { number: queue, link: self.link, tunnels };
        let mut fetched = transmit.fetch(sending, budget, batch, cx);
        if fetched.is_ok() && batch.is_empty() {
            // Dropped packets belong to no batch, so no completion call returns them.
            match transmit.give_back(None, self.coalescing, cx) {
                Ok(any) => given_back = any,
                Err(error) => fetched = Err(error),
            }
        }
        let recheck = transmit.recheck.is_some();
        if given_back {
            self.signal_completions(cx);
        } else if recheck {
            self.schedule(cx);
        }
        match fetched {
            Ok(progress) => cx.fetched(progress),
            Err(error) => {
                self.stop_transmit(queue, error, cx);
                idle
            }
        }
    }

    fn complete(&mut self, batch: &Batch, cx: &mut Context<'_>) {
        if batch.generation != self.generation || self.running().is_none() {
            return;
        }
        let Some(last) = batch.packets().last().map(|packet| packet.cookie) else { return };
        let Some(transmit) = self.transmit.get_mut(usize::from(batch.queue)) else { return };
        match transmit.give_back(Some(last), self.coalescing, cx) {
            Ok(true) => self.signal_completions(cx),
            Ok(false) => {}
            Err(error) => self.stop_transmit(batch.queue, error, cx),
        }
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let Some(setup) = self.running().filter(|_| self.link) else {
            frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            return delivery;
        };
        self.look_at_page(cx);
        let memory = &**cx.memory;
        let own = self.address();
        // The current queue's rings, translated; queues that refused; queues with completions.
        let mut open: Option<(u16, Windows<'_>)> = None;
        let (mut refused, mut touched) = (frames.held, 0u64);
        for (place, pick, packet) in frames.iter() {
            let (head, layout) = (frames.batch.head(packet), frames.batch.layout(packet));
            if !self.filter.wants(own, head, frames.outer_tag(pick)) {
                cx.counters.receive_drop(Reason::Filtered);
                continue;
            }
            let hash = self.rss.hash(head, layout, setup.receive);
            let number = hash.queue;
            if refused.contains(number) {
                delivery.refuse(place, number, pick.from.into());
                continue;
            }
            let Some(queue) = self.receive.get_mut(usize::from(number)).filter(|queue| queue.error == 0) else {
                cx.counters.receive_drop(Reason::ReceiverOff);
                continue;
            };
            if open.as_ref().is_none_or(|(at, _)| *at != number) {
                open = queue.windows(memory).ok().map(|windows| (number, windows));
            }
            let Some((_, windows)) = &mut open else {
                cx.counters.receive_drop(Reason::BadAddress);
                self.stop_receive(number, registers::stopped::BAD_RING, cx);
                continue;
            };
            let wants = wants(&setup, self.version, queue.rings[1].size);
            let before = queue.completions;
            let arrival = Arrival { frames, pick, hash, number };
            if let Outcome::Refused { from } = queue.deliver(windows, &arrival, &setup, wants, cx) {
                delivery.refuse(place, number, from);
                refused.insert(number);
            }
            touched |= u64::from(queue.completions != before) << number;
        }
        self.finish_delivery(refused != frames.held, touched, cx);
        delivery
    }

    fn notice(&mut self, event: Event, cx: &mut Context<'_>) {
        match event {
            Event::Link(up) => {
                if std::mem::replace(&mut self.link, up) != up {
                    self.raise_event(registers::event::LINK, cx);
                }
            }
            Event::Page => interrupts::show_masks(&self.interrupts, cx.page),
            Event::Restored => self.resume_restored(cx),
            Event::Memory => self.look_for_rings(),
            Event::Lost => self.lose(cx),
            // Its driver reads the state of links and queues, and asks again.
            Event::Answer(_) | Event::Missed(_) | Event::Unanswered => {}
        }
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        self.look_at_page(cx);
        for (number, queue) in self.transmit.iter_mut().enumerate() {
            if queue.recheck.is_some_and(|at| at <= cx.now) {
                queue.recheck = None;
                if queue.has_work(cx.memory) {
                    cx.out.work.insert(number as u16);
                }
            }
        }
        if self.room_at.is_some_and(|at| at <= cx.now) {
            self.look_for_room(cx);
            if self.room_at.is_some() {
                self.room_at = Some(cx.now.after(self.room_delay));
                self.room_delay = (self.room_delay * 2).min(ROOM_MAX);
            }
        }
        self.signal_arrivals(cx);
        self.signal_completions(cx);
    }

    fn reset(&mut self, kind: Reset, cx: &mut Context<'_>) {
        self.reset_function(cx);
        match kind {
            Reset::Bus => self.begin(1),
            Reset::Function => {}
        }
    }

    fn transmit_queues(&self) -> u16 {
        self.transmit_count()
    }

    fn is_driven(&self) -> bool {
        self.setup.is_some()
    }

    fn features(&self) -> Vec<&'static str> {
        let Some(setup) = self.setup else { return Vec::new() };
        let on = |bit| setup.features & bit != 0;
        [
            (true, "tx-checksum"),
            (true, "tso4"),
            (true, "tso6"),
            (on(registers::feature::CHECKSUM), "rx-checksum"),
            (on(registers::feature::VLAN), "vlan-strip"),
            (on(registers::feature::LRO), "lro"),
            (self.rss.is_on(), "rss"),
            (setup.transmit > 1 || setup.receive > 1, "mq"),
        ]
        .into_iter()
        .filter(|&(on, _)| on)
        .map(|(_, name)| name)
        .collect()
    }

    fn receive_block(&self) -> Option<&'static str> {
        match () {
            () if !self.is_driven() => None,
            () if !self.function.bus_master() => Some(NO_MASTER),
            () if !self.link => Some(LINK_DOWN),
            () => self.filter.is_closed().then_some("its receive filter accepts no address (UPDATE_RX_MODE)"),
        }
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        self.setup?;
        let queue = number / 2;
        let (error, queue) = if number.is_multiple_of(2) {
            (self.receive.get(usize::from(queue))?.error, Queue::Receive(queue))
        } else {
            (self.transmit.get(usize::from(queue))?.error, Queue::Transmit(queue))
        };
        Some(Stall { queue, why: registers::stopped::why(error)?, cure: CURE })
    }
}

impl Vmxnet3 {
    /// One interrupt for each queue with completions, and a later check of those that refused.
    fn finish_delivery(&mut self, refused: bool, mut touched: u64, cx: &mut Context<'_>) {
        while touched != 0 {
            let number = touched.trailing_zeros() as usize;
            touched &= touched - 1;
            let Some(queue) = self.receive.get(number) else { continue };
            let vector = queue.vector;
            let carried = self.carried(vector);
            let Some(queue) = self.receive.get_mut(number) else { continue };
            let now = queue.is_short()
                || match self.coalescing {
                    Coalescing::Disabled => true,
                    Coalescing::Adaptive => !queue.moderated || queue.moderation.may_interrupt(carried, cx.now),
                    Coalescing::Static { receive, .. } => {
                        queue.taken() >= receive || !queue.moderation.hold(cx.now.after_ns(MODERATION_NS), cx.now)
                    }
                    Coalescing::Rate(_) => !queue.moderation.hold(cx.now, cx.now),
                };
            for queue in self.transmit.iter_mut().filter(|queue| queue.vector == vector) {
                queue.delay.answered(cx.now);
            }
            if now {
                self.raise(vector, cx);
            } else {
                self.schedule(cx);
            }
        }
        if refused {
            if self.room_at.is_none() {
                self.room_at = Some(cx.now.after(ROOM_FIRST));
            }
            self.schedule(cx);
        }
    }
}
