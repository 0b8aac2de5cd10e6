//! Intel 82540EM, the "e1000": a gigabit Ethernet controller of 2002 whose driver every operating system has.
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
//! A write to TDT rings for work, a write to RDT posts buffers. ICR says why it interrupts and clears on reading; ITR
//! throttles. The model follows Intel's *PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual*
//! (317453); numbers in brackets are its sections.
//!
//! Features: checksums and segmentation (TCP and UDP, IPv4 and IPv6) out, checksums in, VLAN tags put in, taken out and
//! filtered, frames of up to 16 KiB in as many buffers as they need, sixteen exact addresses and the multicast hash,
//! loopback in MAC and PHY, the chip's statistics, EEPROM (writable) and PHY, interrupt throttle and receive delay.
//!
//! # Not implemented
//! - Wake-up, manageability, flash: their registers hold what is written. MSI and PCI-X: drivers for this chip use INTx.
//! - The packet checksum of a receive descriptor (PCSS) is 0, and the four bytes of check sequence that RCTL.SECRC
//!   leaves in place are counted in the length but not written.
//! - Pause frames are neither sent nor obeyed. TIDV is not obeyed and TADV is a lower bound: completions
//!   that ask for a delay wait for company (`patience.rs`).
//! - Collisions, half duplex, early receive.
//!
//! # Quirks
//! - ICS reads as ICR without clearing it, which VxWorks' driver expects (QEMU's e1000.c says so).
//! - All bits of ICR can be set through ICS, reserved ones too: e1000_intr_test in Linux's e1000_ethtool.c sets each of
//!   the ten lowest and waits for it.
//! - RDH and TDH hold any sixteen bits, also beyond the ring: e1000_reg_test in Linux's e1000_ethtool.c. A ring whose
//!   head or tail lies outside does nothing.
//! - Negotiation ends at once, with LSC: Linux polls, other drivers wait for the interrupt.
//! - A frame without IFCS is sent with a good check sequence all the same: small drivers forget the bit, as QEMU lets
//!   them.
//! - Reserved registers read as 0, as in the chip; beyond the window as ones.

mod access;
mod eeprom;
mod filter;
mod interrupts;
mod phy;
mod receive;
pub mod registers;
mod saved;
mod statistics;
mod transmit;

use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, PciFace, Progress, Queue, Reset, Stall, Time,
};
use nicety_pci::{Bar, Capability, Changes, Function, Identity, Pin, Power, Rom};

use self::eeprom::Eeprom;
use self::filter::Filter;
use self::phy::Phy;
use self::registers::{self as r, cause, ctrl, rxcsum};
use self::transmit::Transmit;
use crate::about::{About, Kind, Since, Sources};
use crate::patience::Patience;
use crate::pieces::{pieces, read_from_dword};
use crate::{CreateError, Settings};

/// Bytes of a descriptor, of either ring.
const DESCRIPTOR: usize = 16;
const INTEL: u16 = 0x8086;

/// What tells one chip of the family from another.
#[derive(Debug)]
struct Model {
    name: &'static str,
    device: u16,
    revision: u8,
    subsystem: u16,
    /// Second identifier word of its PHY.
    phy: u16,
}

/// The 82540EM on Intel's PRO/1000 MT Desktop.
static MODEL: Model = Model { name: "e1000", device: 0x100e, revision: 2, subsystem: 0x001e, phy: 0x0c20 };

/// The 82540EM, described.
pub static ABOUT: About = About {
    name: "e1000",
    chip: "Intel 82540EM",
    kind: Kind::Emulated,
    pci: (INTEL, 0x100e),
    link_mbps: 1000,
    link_unless: None,
    offloads: &["tx-checksum", "rx-checksum", "tso4", "tso6", "vlan-insert", "vlan-strip", "vlan-filter"],
    queues: 1,
    mtu_max: 16_110,
    announces_mtu: false,
    pxe: true,
    linux: Since {
        driver: "e1000",
        version: "2.4.19",
        source: "VMware, vSphere 6.7 Virtual Machine Administration, Network Adapter Types, of its 82545EM: same driver",
    },
    windows: Since {
        driver: "Intel PRO/1000",
        version: "XP x64 and Server 2003",
        source: "VMware knowledge base 1001805, Choosing a network adapter, of its 82545EM",
    },
    sources: Sources {
        chip: "Intel 317453, PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual",
        pci: "Linux drivers/net/ethernet/intel/e1000/e1000_hw.h, E1000_DEV_ID_82540EM",
        link: "Intel 317453, section 13.4.2: the highest speed that STATUS can show",
        offloads: "Intel 317453, sections 3.3.6 and 9, and RXCSUM in 13.5.3",
        queues: "Intel 317453, chapter 13: the registers of one ring each way",
        mtu: "Linux e1000_main.c, e1000_probe: MAX_JUMBO_FRAME_SIZE, less header and check sequence",
    },
    transports: &["vfio-user"],
};

/// Numbers of the rings in [`Outbox::stalled`](nicety_adapter::Outbox::stalled).
const RECEIVE_RING: u16 = 0;
const TRANSMIT_RING: u16 = 1;
/// A ring that lies in no memory.
const NOWHERE: &str = "the ring lies where no memory is";
/// What makes a driver reset the chip and set its rings up anew: Linux e1000_main.c, e1000_close and e1000_open.
const CURE: &str = "restart the guest's driver (in Linux: `ip link set eth0 down`, then up)";

/// Makes one.
pub fn create(settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    Ok(Box::new(E1000::new(&MODEL, settings)?))
}

/// The adapter.
#[derive(Debug)]
pub struct E1000 {
    model: &'static Model,
    rom: Option<Rom>,
    function: Function,
    registers: Box<[u32]>,
    /// Packet buffer memory, once somebody has written it.
    buffer: Option<Vec<u32>>,
    /// IOADDR.
    io_address: u32,
    phy: Phy,
    eeprom: Eeprom,
    filter: Filter,
    transmit: Transmit,
    /// Frames of a loopback, between their fetch and their delivery.
    looped: Option<Box<Batch>>,
    /// The frame of the first refused packet to go on with.
    resume: u32,
    /// Frames were refused.
    starved: bool,
    link_up: bool,
    /// The line's level by the causes.
    asserted: bool,
    /// The transport may not know the level.
    announce: bool,
    /// The throttle's end.
    quiet_until: Time,
    /// When the receive delay ends, if one runs.
    receive_due: Option<Time>,
    /// When it ends at the latest.
    receive_last: Option<Time>,
    /// Completions that wait for company.
    completions: Patience,
    /// Why the receive ring, and the transmit ring, could not be walked when it last was to be. The chip has no such state.
    stalls: [Option<&'static str>; 2],
    generation: u32,
}

impl E1000 {
    fn new(model: &'static Model, settings: &Settings) -> Result<Self, CreateError> {
        let address = settings.mac.0;
        if address[0] & 1 != 0 || address == [0; 6] {
            return Err(CreateError::Address(settings.mac));
        }
        if let Some(asked) = settings.queues.filter(|&queues| queues != 1) {
            return Err(CreateError::Queues { adapter: model.name, asked, most: 1 });
        }
        if let Some(rom) = &settings.rom {
            rom.expect(INTEL, model.device).map_err(|error| CreateError::Rom(error.to_string()))?;
        }
        let mut this = Self {
            model,
            rom: settings.rom.clone(),
            function: function(model, settings.rom.as_ref())?,
            registers: vec![0; r::SLOTS].into_boxed_slice(),
            buffer: None,
            io_address: 0,
            phy: Phy::new(model.phy),
            eeprom: Eeprom::new(settings.mac, model.device, model.subsystem),
            filter: Filter::default(),
            transmit: Transmit::default(),
            looped: None,
            resume: 0,
            starved: false,
            link_up: false,
            asserted: false,
            announce: false,
            quiet_until: Time::ZERO,
            receive_due: None,
            receive_last: None,
            completions: Patience::default(),
            stalls: [None; 2],
            generation: 0,
        };
        this.clear_chip();
        Ok(this)
    }

    /// Everything as after power-on, but the cable and the EEPROM.
    fn power_on(&mut self, cx: &mut Context<'_>) {
        self.function.reset();
        self.phy.reset();
        self.io_address = 0;
        self.buffer = None;
        self.announce = true;
        self.reset_chip(cx);
    }

    /// A ring could not be walked, or now it can.
    fn saw_ring(&mut self, number: u16, why: Option<&'static str>, cx: &mut Context<'_>) {
        let before = std::mem::replace(&mut self.stalls[usize::from(number)], why);
        if why.is_some() && before.is_none() {
            cx.out.stalled.insert(number);
        }
    }

    /// One access of up to four bytes within a dword. Only whole dwords can be written.
    fn read_piece(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        let dword = match (bar, offset & !3) {
            (0, at) => self.read_dword(at, cx),
            (1, 0) => self.io_address,
            (1, 4) => self.read_dword(u64::from(self.io_address) & !3, cx),
            _ => {
                cx.counters.bad_accesses += 1;
                !0
            }
        };
        read_from_dword(dword, offset, data);
    }

    fn write_piece(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        let whole = <[u8; 4]>::try_from(data).ok().map(u32::from_le_bytes);
        match (bar, offset, whole) {
            (0, at, Some(value)) => self.write_dword(at, value, cx),
            (1, 0, Some(value)) => self.io_address = value,
            (1, 4, Some(value)) => self.write_dword(u64::from(self.io_address) & !3, value, cx),
            _ => cx.counters.bad_accesses += 1,
        }
    }
}

fn function(model: &Model, rom: Option<&Rom>) -> Result<Function, CreateError> {
    let identity = Identity {
        vendor: INTEL,
        device: model.device,
        revision: model.revision,
        class: 0x02_0000,
        subsystem_vendor: INTEL,
        subsystem: model.subsystem,
    };
    // PCI PM 1.1 with D0 and D3hot, device-specific initialization; D3hot forgets everything.
    let power = Power { capabilities: 0x0022, control: 0, data: 0 };
    let mut builder = Function::builder(identity)
        .interrupt_pin(Pin::A)
        .bar(0, Bar::memory(0x2_0000))
        .bar(1, Bar::io(0x40))
        .status(0x0220)
        .timing(0xff, 0)
        .capability_at(0xdc, Capability::Power(power));
    if let Some(rom) = rom {
        builder = builder.rom(rom.size());
    }
    builder.build().map_err(|error| CreateError::Description { adapter: model.name, why: error.to_string() })
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
            cx.out.line = Some(self.function.intx_asserted());
        }
        if changes.contains(Changes::BUS_MASTER) && self.function.bus_master() {
            cx.out.work.insert(0);
            self.offer_room(cx);
        }
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        self.show_line(cx);
        for (at, part) in pieces(offset, data.len()) {
            self.read_piece(bar, at, &mut data[part], cx);
        }
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        self.show_line(cx);
        for (at, part) in pieces(offset, data.len()) {
            self.write_piece(bar, at, &data[part], cx);
        }
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
                self.phy.plug(up);
                self.settle_link(cx);
            }
            Event::BacklogDropped => {
                self.resume = 0;
                self.count(r::MPC, 1);
                self.cause(cause::RXO, cx);
            }
            Event::RestDropped(_) => self.resume = 0,
            Event::Restored => self.resume_restored(cx),
            _ => {}
        }
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        self.time_passed(cx);
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
