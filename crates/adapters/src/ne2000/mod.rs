//! Realtek RTL8029AS, the "PCI NE2000": National Semiconductor's DP8390 controller of 1986 with 16 KiB of packet memory behind a
//! port, at 10 Mbit/s. Small operating systems, boot loaders and all old systems have its driver.
//!
//! ```text
//!       BAR 0: 32 ports                      packet memory, 64 pages of 256 bytes
//!  00 ┌─────────────────────┐           40 ┌──────────────────────┐
//!     │ CR: command, page   │      TPSR ►  │ a frame to send      │
//!  01 ├─────────────────────┤       PSTART ├──────────────────────┤◄──────────┐
//!     │ 15 registers        │       BNRY ► │ read by the driver   │           │
//!     │ of that page        │              │ header, frame        │           │ ring
//!  10 ├─────────────────────┤       CURR ► │ the next frame       │           │
//!     │ data: remote DMA    │◄──────────►  │                      │           │
//!  18 ├─────────────────────┤        PSTOP └──────────────────────┘───────────┘
//!     │ reset               │           80
//!  20 └─────────────────────┘
//! ```
//! The chip does no DMA of its own: the driver moves each byte through the data port, where "remote DMA" counts the address (RSAR)
//! up and the length (RBCR) down. A write to CR.TXP sends, a write to BNRY frees pages. The model follows National's
//! *DP8390D/NS32490D NIC* for the controller (`dp8390.rs`) and Realtek's *RTL8029AS* for the rest.
//!
//! # Features
//! - Remote DMA by 1, 2 and 4 bytes, in byte and word mode. The ring with its boundary and wrap.
//! - The address filter with its hash, monitor mode, loopback, the tally of missed frames.
//! - Full duplex and identity on page 3.
//!
//! # Messages
//! Each port access is a VMM message, and a frame costs as many as its driver makes: Linux's ne2k-pci needs 20 to send one, 28 to
//! receive one, plus one for each access to the data port (`docs/adapters/ne2k_pci.md`).
//!
//! # Not implemented
//! - Overflow (ISR.OVW): a frame without room waits in the port's receive buffer, or is dropped there, and nothing is overwritten.
//! - The contents of the FIFO after loopback: frames sent in loopback are discarded.
//! - Remote DMA's "send packet" command, which reads a frame's length from the ring; the DMA pointers of page 2.
//! - Receive errors, collisions, the heartbeat: no frame has any. RCR.SEP and RCR.AR are not needed.
//! - The EEPROM behind 9346CR: CONFIG2 and CONFIG3 start with Nicety's own values. The boot ROM's page registers.
//!
//! # Quirks
//! - BNRY may lie outside the ring: ei_receive in Linux's lib8390.c writes the page before the one it reads next, which is PSTART -
//!   1 where it means PSTOP - 1.
//! - If CURR equals BNRY the ring is empty, as in QEMU's ne2000.c; received frames never make them equal.
//! - Reads of the data port beyond the transfer's length return ones and count nothing: ne2k_pci_init_one in Linux's ne2k-pci.c
//!   asks for 32 bytes of PROM in word mode, and reads half of each of 32 words.
//! - A transfer of zero bytes completes at once (ISR.RDC): NetWare's driver needs it, according to QEMU's ne2000.c.
//! - A CR write with neither STP nor STA leaves the chip's state unchanged: ei_interrupt in lib8390.c selects pages with it.
//! - A ring gets at most nine frames until its driver has taken all, or acknowledged (`pace.rs`): ei_receive takes nine and clears
//!   their cause. No frame is delivered while a driver takes others (`Dp8390::busy_until`): ei_interrupt gives up when it finds
//!   more a dozen times, and acknowledges frames that it has not seen. A frame that arrives after the driver has read CURR, and
//!   before it clears ISR.PRX, survives that write. On a wire of 10 Mbit/s none of this matters.
//! - Bus mastering need not be enabled: the chip has no DMA, and Linux's driver does not enable it.

mod access;
mod buffer;
mod dp8390;
mod pace;
mod receive;
pub mod registers;
mod saved;
mod transmit;

use nicety_adapter::trace::Region;
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, PciFace, Progress, Queue, Reset, Stall,
};
use nicety_pci::{Bar, Changes, Function, Identity, Pin, Rom};

use self::dp8390::Dp8390;
use self::registers as r;
use crate::about::{About, Boot, Kind, Since, Sources};
use crate::block::LINK_DOWN;
use crate::settings::{CreateError, Settings};

/// Description of the adapter.
pub static ABOUT: About = About {
    name: "ne2k_pci",
    chip: "Realtek RTL8029AS",
    kind: Kind::Emulated,
    pci: (0x10ec, 0x8029),
    stands_by: false,
    vmware_subsystem: None,
    link_mbps: 10,
    link_unless: Some("Linux's driver shows none (ethtool: no link settings)"),
    offloads: &[],
    queues: 1,
    mtu_max: 1500,
    announces_mtu: false,
    promiscuous: true,
    dma: false,
    boot: Boot { rom: Some("ne2k_pci"), u_boot: None },
    linux: Since {
        driver: "ne2k-pci",
        version: "2.0.35",
        source: "Scyld, Using PCI NE2000 Cards with Linux: The 2.0.35 and later kernels include this driver",
    },
    windows: Since {
        driver: "Realtek RTL8029(AS)",
        version: "98",
        source: "ngps, Virtual Machinery (sandbox.rulemaker.net/ngps/73): Windows 98 finds QEMU's model as this",
    },
    sources: Sources {
        chip: "Realtek LS009, RTL8029AS; National Semiconductor, DP8390D/NS32490D NIC Network Interface Controller",
        pci: "Linux include/linux/pci_ids.h, PCI_DEVICE_ID_REALTEK_8029",
        link: "Realtek LS009, RTL8029AS: 10BaseT",
        offloads: "DP8390D, section 10: no register asks for any",
        queues: "DP8390D, section 10.3: one transmit page start, one receive ring",
        mtu: "Linux drivers/net/ethernet/8390: eth_change_mtu, and ETH_DATA_LEN since",
    },
    qemu: Some("ne2k_pci"),
    transports: &["vfio-user"],
};

/// Why nothing is received.
/// Registers that make no ring.
const NO_RING: &str = "the ring's pages (PSTART, PSTOP, CURR) lie where no packet memory is";
/// Number of the receive ring in [`Outbox::stalled`](nicety_adapter::Outbox::stalled).
const RECEIVE_RING: u16 = 0;
/// Action that makes a driver place its ring anew: Linux's lib8390.c, __NS8390_init.
const CURE: &str = "restart the guest's driver (in Linux: `ip link set eth0 down`, then up)";

/// Creates an adapter.
///
/// # Errors
/// A group address, more queues than one, an option ROM for another device.
pub fn create(settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    Ok(Box::new(Ne2000::new(settings)?))
}

/// The adapter.
#[derive(Debug)]
pub struct Ne2000 {
    rom: Option<Rom>,
    function: Function,
    chip: Dp8390,
    /// Frames were refused.
    starved: bool,
    /// There may be room for them, once the driver is not busy.
    waiting: bool,
    link_up: bool,
    /// Frames arrived while the receive ring was outside packet memory.
    broken: bool,
    generation: u32,
}

impl Ne2000 {
    fn new(settings: &Settings) -> Result<Self, CreateError> {
        let adapter = ABOUT.name;
        let mac = settings.mac;
        settings.check(&ABOUT)?;
        settings.check_rom(&ABOUT)?;
        let described = |why: String| CreateError::Description { adapter, why };
        Ok(Self {
            rom: settings.rom.clone(),
            function: function(settings.rom.as_ref()).map_err(|error| described(error.to_string()))?,
            chip: Dp8390::new(mac).map_err(|error| described(error.to_string()))?,
            starved: false,
            waiting: false,
            link_up: true,
            broken: false,
            generation: 0,
        })
    }

    /// Resets everything to the power-on state, except the cable.
    fn power_on(&mut self, cx: &mut Context<'_>) {
        self.chip.power_on();
        self.function.reset();
        self.offer_room(cx);
        self.broken = false;
        self.generation = self.generation.wrapping_add(1);
        self.settle_line(cx);
    }

    /// Updates the line from ISR and IMR.
    fn settle_line(&mut self, cx: &mut Context<'_>) {
        self.chip.causes.update(&mut self.function, cx);
    }

    /// Delivers frames that wait for the driver: when its receive routine ends, or after the expected time.
    fn let_in(&mut self, cx: &mut Context<'_>) {
        if let Some(until) = self.chip.busy_until.filter(|until| cx.now < *until) {
            cx.out.wake_by(until);
            return;
        }
        self.chip.busy_until = None;
        if self.waiting && self.chip.has_time() {
            self.waiting = false;
            self.offer_room(cx);
        }
    }

    /// Refused frames may be offered again.
    fn offer_room(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.starved) {
            cx.out.room.insert(0);
        }
    }
}

fn function(rom: Option<&Rom>) -> Result<Function, nicety_pci::BuildError> {
    let (vendor, device) = ABOUT.pci;
    let identity =
        Identity { vendor, device, revision: 0, class: 0x02_0000, subsystem_vendor: vendor, subsystem: device };
    // Medium DEVSEL timing.
    let builder =
        Function::builder(identity).interrupt_pin(Pin::A).bar(0, Bar::io(r::PORT_BYTES.into())).status(0x0200);
    match rom {
        Some(rom) => builder.rom(rom.size()).build(),
        None => builder.build(),
    }
}

impl PciFace for Ne2000 {
    fn function(&self) -> &Function {
        &self.function
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        let changes = self.function.config_write(u64::from(offset), data);
        if changes.intersects(Changes::SOFT_RESET | Changes::FUNCTION_RESET) {
            self.power_on(cx);
        }
        if changes.intersects(Changes::INTX | Changes::POWER) {
            self.chip.causes.mode_changed(&mut self.function, cx);
            self.settle_line(cx);
        }
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        if bar == 0 {
            self.read_ports(offset, data, cx);
        } else {
            data.fill(0xff);
            cx.holes(1, false, Region::Bar(bar), offset, data);
        }
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        if bar == 0 {
            self.write_ports(offset, data, cx);
        } else {
            cx.holes(1, true, Region::Bar(bar), offset, data);
        }
    }

    fn rom(&self) -> Option<&Rom> {
        self.rom.as_ref()
    }
}

impl Adapter for Ne2000 {
    fn face(&mut self) -> Face<'_> {
        Face::Pci(self)
    }

    fn fetch(&mut self, queue: u16, _budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        if queue != 0 {
            return Progress { more: false, armed: true };
        }
        self.fetch_frame(batch, cx)
    }

    fn complete(&mut self, batch: &Batch, cx: &mut Context<'_>) {
        if batch.generation == self.generation && !batch.is_empty() && self.chip.is_sending() {
            self.conclude_frame(r::tsr::PTX, cx);
        }
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        self.deliver_frames(frames, cx)
    }

    fn notice(&mut self, event: Event, cx: &mut Context<'_>) {
        match event {
            // No register shows the link.
            Event::Link(up) => self.link_up = up,
            Event::Restored => self.resume_restored(cx),
            Event::Lost | Event::Unanswered => self.lose(cx),
            // The device uses no guest memory, and has no doorbell page.
            Event::Memory | Event::Page | Event::Answer(_) | Event::Missed(_) => {}
        }
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        self.let_in(cx);
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
        self.chip.runs() && !self.chip.loops() && !self.chip.monitors()
    }

    fn features(&self) -> Vec<&'static str> {
        let on = [
            (self.chip.registers[r::CONFIG3] & r::CONFIG3_FUDUP != 0, "full-duplex"),
            (self.chip.registers[r::RCR] & r::rcr::PRO != 0, "promiscuous"),
            (self.chip.loops(), "loopback"),
        ];
        on.into_iter().filter(|&(on, _)| on).map(|(_, name)| name).collect()
    }

    fn receive_block(&self) -> Option<&'static str> {
        match () {
            () if !self.is_driven() => None,
            () if !self.link_up => Some(LINK_DOWN),
            () => self.chip.ring().is_none().then_some(NO_RING),
        }
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        let stands = number == RECEIVE_RING && self.broken && self.chip.runs() && self.chip.ring().is_none();
        stands.then_some(Stall { queue: Queue::Receive(0), why: NO_RING, cure: CURE })
    }
}
