//! vmxnet, VMware's first paravirtual adapter (15ad:0720), the enhanced vmxnet that followed it ("vmxnet2"), and the [`flexible`]
//! adapter, a lance that becomes a vmxnet. They share one protocol, version 0xbabe864f.
//!
//! Everything except commands is in guest memory, in one block of a few pages given by INIT_ADDR and INIT_LENGTH.
//!
//! ```text
//! Vmxnet2_DriverData, 176 bytes    magic, ring lengths and offsets, ifflags, LADRF, txClusterLength, txStopped
//!   │
//!   ├─ rxRing    24 bytes each     NIC ──deliver──► DRIVER        a buffer of 1536 bytes
//!   ├─ rxRing2   24 bytes each     NIC_FRAG ──────► DRIVER_FRAG   a page: what does not fit (enhanced)
//!   └─ txRing    64 bytes each     NIC ──fetch──► Batch ──complete──► DRIVER    six pieces, MORE
//!
//! BAR 0 (I/O), 64 bytes            registers.rs
//! ```
//! An entry's ownership field names its owner. Of a packet's entries the first is handed over last. The model follows the headers
//! that VMware published in open-vm-tools (vmxnet_def.h, vmxnet2_def.h, vmnet_def.h, net_sg.h, net.h); OpenBSD's if_vic.c is the
//! second source.
//!
//! # Features
//! - Scatter-gather, packets in several transmit entries, buffers for headers (PIN_TX_BUFFERS), wake-up of a driver that stopped.
//! - Transport checksums both ways, tags of 802.1Q and 802.1ad in frames of any kind.
//! - The multicast hash and all of `ifflags`, the link in STATUS_ADDR, a MAC address that the driver sets.
//! - Enhanced: TCP segmentation, jumbo frames over the second ring, uncut received packets (LPD).
//!
//! # Few messages
//! While the transmit ring is served its driver does not ring the doorbell (`transmit.rs`). Receive buffers need no message. One
//! write acknowledges an interrupt, and a bulk flow interrupts once in 500 µs (`interrupts.rs`).
//!
//! # Not implemented
//! - VLAN tags beside the frame (VMNET_CAP_HW_TX_VLAN, HW_RX_VLAN): no entry has a place for one; the bits are the virtual switch's.
//! - INT_ENABLE_ADDR (ENABLE_INT_INLINE), TCP offload (TOE_INIT_ADDR), wake-up patterns: registers that read as 0. SET_POWER_LOW changes
//!   nothing.
//! - Completion of an entry before the doorbell's answer, which an entry without CAN_KEEP requests: every known driver sets
//!   CAN_KEEP.
//!
//! # Quirks
//! - Interrupts are enabled after INIT_LENGTH: Linux's driver never sends INTR_ENABLE.
//! - Frames that arrived while the line was up may be hidden by an acknowledgement, so they interrupt 100 µs later: OpenBSD's vic
//!   acknowledges after its work (vic_intr).
//! - The driver's own address is received whatever `ifflags` has: vic never sets DIRECTED (vic_init).
//! - The rings continue at their old positions if the driver leaves `savedRxNICNext` and its neighbours unchanged: the Solaris
//!   driver starts again without new rings (Vxn_Start).
//! - The transport checksum is computed from zero: no document says what a driver leaves in its field.
//! - Frames arrive padded to 60 bytes: vic drops shorter ones (vic_rx_proc).

use nicety_adapter::interrupts::Interrupts;
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, ErrorPlace, Event, Face, Frames, PciFace, Progress, Queue, Registers,
    Reset, Stall,
};
use nicety_frame::Mac;
use nicety_pci::{Bar, Changes, Function, Identity, Pin, Rom};

use self::filter::Filter;
use self::interrupts::Tidings;
use self::models::{Model, VMWARE};
use self::receive::Receive;
use self::registers as r;
use self::shared::Setup;
use self::transmit::Transmit;
use crate::block::{LINK_DOWN, NO_MASTER};
use crate::settings::{CreateError, Settings};

mod access;
mod filter;
pub mod flexible;
mod interrupts;
pub mod models;
mod receive;
pub mod registers;
mod saved;
mod shared;
mod transmit;

/// Numbers of the rings in [`Outbox::stalled`](nicety_adapter::Outbox::stalled).
const RECEIVE_RING: usize = 0;
const TRANSMIT_RING: usize = 1;
/// Action that makes a driver give its rings again: vmxnet_close and vmxnet_open of Linux's driver.
const CURE: &str = "restart the guest's driver (in Linux: `ip link set eth0 down`, then up)";

/// Reasons why a ring is stopped.
mod broken {
    pub const NOWHERE: &str = "the ring lies where no memory is";
    pub const NO_END: &str = "a packet fills the whole ring and has no end";

    /// The device's expectation of such a ring.
    pub fn expected(why: &str) -> &'static str {
        match why {
            NO_END => "an entry without VMXNET2_TX_MORE before the ring is full",
            _ => "Vmxnet2_DriverData and its rings in guest memory",
        }
    }
}

/// Creates an adapter of a model.
///
/// # Errors
/// A group address, too many queues, an option ROM for another device.
pub fn create(model: &'static Model, settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    let mut function = function(model);
    if let Some(rom) = &settings.rom {
        rom.expect(VMWARE, model.about.pci.1).map_err(|error| CreateError::Rom(error.to_string()))?;
        function = function.rom(rom.size());
    }
    let function = function
        .build()
        .map_err(|error| CreateError::Description { adapter: model.about.name, why: error.to_string() })?;
    Ok(Box::new(Vmxnet::new(model, settings, function)?))
}

fn function(model: &Model) -> nicety_pci::Builder {
    let (vendor, device) = model.about.pci;
    let identity =
        Identity { vendor, device, revision: 0x10, class: 0x02_0000, subsystem_vendor: vendor, subsystem: device };
    Function::builder(identity).interrupt_pin(Pin::A).bar(0, Bar::io(r::PORTS.into()))
}

/// The adapter.
#[derive(Debug)]
pub struct Vmxnet {
    model: &'static Model,
    rom: Option<Rom>,
    /// Value of APROM_ADDR, and of MAC_ADDR after a reset.
    mac: Mac,
    function: Function,
    registers: r::Bank,
    /// Set while the device has the driver's data.
    setup: Option<Setup>,
    /// PIN_TX_BUFFERS succeeded.
    pinned: bool,
    transmit: Transmit,
    receive: Receive,
    filter: Filter,
    interrupts: Interrupts,
    tidings: Tidings,
    link_up: bool,
    /// Reason why each ring is stopped.
    stalls: [Option<&'static str>; 2],
    generation: u32,
}

impl Vmxnet {
    fn new(model: &'static Model, settings: &Settings, function: Function) -> Result<Self, CreateError> {
        let mac = settings.mac;
        settings.check(&model.about)?;
        let mut this = Self {
            model,
            rom: settings.rom.clone(),
            mac,
            function,
            registers: r::Bank::new(model.registers),
            setup: None,
            pinned: false,
            transmit: Transmit::default(),
            receive: Receive::default(),
            filter: Filter::default(),
            interrupts: interrupts::interrupts(),
            tidings: Tidings::default(),
            link_up: true,
            stalls: [None; 2],
            generation: 0,
        };
        this.restore_address();
        Ok(this)
    }

    fn restore_address(&mut self) {
        for (register, byte) in self.registers.of_mut(r::MAC_ADDR).iter_mut().zip(self.mac.0) {
            *register = byte.into();
        }
    }

    /// The driver's current MAC address.
    fn address(&self) -> Mac {
        let bytes = self.registers.of(r::MAC_ADDR);
        Mac(std::array::from_fn(|index| bytes.get(index).copied().unwrap_or(0) as u8))
    }

    /// The driver's data, while the device may access it.
    fn running(&self) -> Option<Setup> {
        self.setup.filter(|_| self.function.bus_master())
    }

    /// Stops a ring.
    fn stall(&mut self, ring: usize, why: &'static str, cx: &mut Context<'_>) {
        let setup_at = self.setup.map_or(0, |setup| setup.at);
        let (place, value) = match ring {
            TRANSMIT_RING if why == broken::NO_END => (ErrorPlace::transmit(0, self.transmit.next), setup_at),
            TRANSMIT_RING => (ErrorPlace::Ring(Queue::Transmit(0)), setup_at),
            _ => (ErrorPlace::Ring(Queue::Receive(0)), setup_at),
        };
        cx.guest_error(place, value, broken::expected(why));
        if self.stalls[ring].replace(why).is_none() {
            cx.out.stalled.insert(ring as u16);
        }
    }

    /// Resets everything except the link and configuration space.
    fn reset_chip(&mut self, cx: &mut Context<'_>) {
        self.let_go(cx);
        self.registers.reset(|_| true);
        self.restore_address();
        self.filter = Filter::default();
        self.tidings = Tidings::default();
    }
}

impl PciFace for Vmxnet {
    fn function(&self) -> &Function {
        &self.function
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        let changes = self.function.config_write(u64::from(offset), data);
        if changes.intersects(Changes::SOFT_RESET | Changes::FUNCTION_RESET) {
            self.reset(Reset::Function, cx);
        }
        if changes.intersects(Changes::INTX | Changes::POWER) {
            self.interrupts.mode_changed(&mut self.function, cx);
            self.settle(cx);
        }
        if changes.contains(Changes::BUS_MASTER) && self.function.bus_master() {
            cx.out.work.insert(0);
            self.offer_room(cx);
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

impl Adapter for Vmxnet {
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
            self.give_back(batch.packets().last().map(|packet| packet.cookie), cx);
        }
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        self.deliver_frames(frames, cx)
    }

    fn notice(&mut self, event: Event, cx: &mut Context<'_>) {
        match event {
            // No interrupt: drivers read STATUS_ADDR.
            Event::Link(up) => self.link_up = up,
            Event::Restored => self.resume_restored(cx),
            // The rings' positions are lost, and no driver's answer to that is known: until it sets them up again they stand still.
            Event::Lost => {
                self.setup = None;
                self.pinned = false;
                (self.transmit, self.receive) = (Transmit::default(), Receive::default());
                self.interrupts.show(&mut self.function, cx);
            }
            // Addresses are translated in every call, so a ring may be in memory now.
            Event::Memory => self.stalls = self.stalls.map(|why| why.filter(|why| *why != broken::NOWHERE)),
            // No doorbell page is mapped.
            Event::Page | Event::Answer(_) | Event::Missed(_) | Event::Unanswered => {}
        }
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        if self.transmit.recheck.is_some_and(|at| at <= cx.now) {
            self.transmit.recheck = None;
            if self.has_work(cx) {
                cx.out.work.insert(0);
            }
        }
        self.look_for_room(cx);
        self.time_passed(cx);
    }

    fn reset(&mut self, kind: Reset, cx: &mut Context<'_>) {
        match kind {
            Reset::Bus | Reset::Function => {
                self.reset_chip(cx);
                self.function.reset();
            }
        }
    }

    fn transmit_queues(&self) -> u16 {
        1
    }

    fn is_driven(&self) -> bool {
        self.setup.is_some()
    }

    fn features(&self) -> Vec<&'static str> {
        let Some(setup) = self.setup else { return Vec::new() };
        let on = [
            (true, "tx-checksum"),
            (true, "rx-checksum"),
            (self.model.is_enhanced(), "tso4"),
            (setup.frags > 0, "jumbo"),
            (setup.large, "lro"),
            (self.pinned, "tx-pinned"),
            (self.filter.is_promiscuous(), "promiscuous"),
        ];
        on.into_iter().filter(|&(on, _)| on).map(|(_, name)| name).collect()
    }

    fn receive_block(&self) -> Option<&'static str> {
        match () {
            () if !self.is_driven() => None,
            () if !self.function.bus_master() => Some(NO_MASTER),
            () => (!self.link_up).then_some(LINK_DOWN),
        }
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        let queue = match usize::from(number) {
            RECEIVE_RING => Queue::Receive(0),
            TRANSMIT_RING => Queue::Transmit(0),
            _ => return None,
        };
        let why = self.stalls.get(usize::from(number)).copied().flatten().filter(|_| self.running().is_some())?;
        Some(Stall { queue, why, cure: CURE })
    }
}
