//! virtio-net (virtio 1.2, section 5.1): an adapter that consists of rings only.
//!
//! A transport places the rings and forwards kicks ([`RingFace`](nicety_adapter::RingFace)); there are no registers. With a
//! register interface in front, the same device is a PCI function: [`pci`].
//!
//! ```text
//! ring 0     receive, queue 0      chains of buffers for the device to write:  header │ frame
//! ring 1     transmit, queue 0     chains of buffers for the device to read:   header │ frame
//! ring 2     receive, queue 1      (from here on only if the driver took MQ)
//! ...
//! ring 2n    control               class, command, data │ acknowledgement      (ring 2 without MQ)
//! ```
//!
//! The header before each frame (12 bytes, 10 for a legacy driver without mergeable buffers) requests a checksum and segmentation
//! on transmit, and reports a checksum and an uncut packet on receive. A packet between two guests that accept it is never
//! segmented and never summed.
//!
//! Notifications that the driver asks for are not all sent at once: those for received frames are moderated while a flow is bulk
//! (`ReceiveModeration`), those for transmitted ones wait for one that is due anyway (`CompletionDelay`). The ring shows frames and
//! completions meanwhile.
//!
//! # Features
//! - Both ways: checksums, TCP and UDP segmentation with congestion signals.
//! - Mergeable, big and small receive buffers.
//! - Rings: split and packed, in order or not, indirect descriptors, notification by event index, ring reset.
//! - Several queue pairs, with automatic steering or by the driver's table and key (receive-side scaling). Hash reports.
//! - A control queue: receive modes, address and VLAN filters, address, announcements, pairs, hashes, receive offloads, notification
//!   coalescing, statistics.
//! - MTU, speed, link state.
//!
//! # Not implemented
//! UDP fragmentation (UFO), tunnels. Neither is offered.
//!
//! # Quirks
//! - A front end may run the control queue itself (QEMU, hw/net/virtio-net.c). It does not take CTRL_VQ here, and enables queue pairs ring by
//!   ring. Then every enabled ring counts, and there is no filter.
//! - QEMU sets the same features once per queue pair (hw/virtio/vhost.c), also while rings run. Setting the same features again changes
//!   nothing.

mod addresses;
mod broken;
mod buffers;
mod burst;
mod chain;
mod coalescing;
mod control;
mod hashing;
mod kept;
mod notify;
pub mod pci;
mod receive;
mod registers;
mod returns;
mod ring;
mod rings;
mod saved;
mod statistics;
mod steering;
mod transmit;

use std::sync::Arc;

use arrayvec::ArrayVec;
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, ErrorPlace, Event, Face, Frames, Progress, Queue, Reset, Stall, Time,
};
use nicety_memory::Map;

use crate::about::{About, Boot, Kind, Since, Sources, UBoot};
use crate::block::LINK_DOWN;
use crate::settings::{CreateError, Settings};
use broken::Broken;
use control::Control;
use hashing::Hashing;
use registers::{Config, feature, header};
use ring::{Ring, Tally};
use steering::Steering;

/// Maximum number of queue pairs.
const PAIRS_MAX: usize = 16;
/// Number of queue pairs if the port sets none.
const PAIRS_USUAL: u16 = 8;
/// Maximum number of rings, with the control queue.
const RINGS_MAX: usize = 2 * PAIRS_MAX + 1;
/// Action that makes a driver restart its rings: it must reset the device. Linux's ndo_stop and ndo_open (virtio_net.c) do not.
const CURE: &str = "make the guest's driver start it anew: restart the guest, or take the driver off the device and put it \
     back (in Linux: write the device's name, say virtio0, to `unbind`, then to `bind`, in /sys/bus/virtio/drivers/virtio_net)";
/// Link speed that the driver sees.
const SPEED_MBPS: u32 = 10_000;
/// Smallest MTU of IPv4 (virtio 1.2, 5.1.4.1: at least 68).
const MTU_MIN: u16 = 68;

/// Description of virtio-net.
pub static ABOUT: About = About {
    name: "virtio-net",
    chip: "virtio 1.2 network device",
    kind: Kind::Paravirtual,
    pci: (0x1af4, 0x1041),
    stands_by: true,
    vmware_subsystem: None,
    link_mbps: SPEED_MBPS,
    link_unless: Some("through QEMU none is shown (ethtool: Unknown), unless the device has speed=10000,duplex=full"),
    offloads: &["tx-checksum", "rx-checksum", "tso4", "tso6", "uso", "uncut receive", "mergeable buffers"],
    queues: PAIRS_MAX as u16,
    mtu_max: 65_535,
    announces_mtu: true,
    promiscuous: true,
    dma: true,
    boot: Boot { rom: Some("virtio"), u_boot: Some(UBoot { device: "virtio-net#0", in_debians: true }) },
    linux: Since {
        driver: "virtio_net",
        version: "2.6.25",
        source: "torvalds/linux commit 296f96fcfc16 of 2007-10-23, Net driver using virtio; virtio: PCI device of 2008-02-04",
    },
    windows: Since { driver: "NetKVM", version: "virtio-win", source: "virtio-win/kvm-guest-drivers-windows NetKVM" },
    sources: Sources {
        chip: "OASIS virtio 1.2, section 5.1",
        pci: "OASIS virtio 1.2, sections 4.1.2.1 and 5.1.1: 0x1040 and the device's number, 1; a VMM may show 1af4:1000, a transitional \
              device, as QEMU does on q35's root bus",
        link: "Nicety's own choice, the same as vmxnet3's: section 5.1.4 leaves it to the device",
        offloads: "OASIS virtio 1.2, section 5.1.3",
        queues: "Nicety's own choice, since its state has a fixed size: section 5.1.4.1 allows 32768 pairs",
        mtu: "OASIS virtio 1.2, section 5.1.4.1: 65535 at most",
    },
    qemu: Some("virtio-net-pci"),
    transports: &["vhost-user"],
};

/// Creates a device in its power-on state.
pub fn create(settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    Ok(Box::new(VirtioNet::new(settings)?))
}

/// Purpose of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Receive(u16),
    Transmit(u16),
    Control,
    Nothing,
}

/// The ring of a receive queue.
fn receive_ring(queue: u16) -> u16 {
    queue.saturating_mul(2)
}

/// The ring of a transmit queue.
fn transmit_ring(queue: u16) -> u16 {
    queue.saturating_mul(2).saturating_add(1)
}

/// Purpose of a ring, from the negotiated features and the number of pairs (5.1.2).
fn role(taken: u128, all: u16, number: u16) -> Role {
    let took = |bits: u128| taken & bits != 0;
    let pairs = if took(feature::MQ | feature::RSS) { all } else { 1 };
    match number {
        n if n == 2 * pairs && took(feature::CTRL_VQ) => Role::Control,
        // A front end that runs the control queue itself may number rings for pairs that its driver does not use.
        n if n >= 2 * all || (n >= 2 * pairs && took(feature::CTRL_VQ)) => Role::Nothing,
        n if n % 2 == 0 => Role::Receive(n / 2),
        n => Role::Transmit(n / 2),
    }
}

/// The device.
#[derive(Debug)]
struct VirtioNet {
    /// Offered features.
    offer: u128,
    /// Negotiated features.
    taken: u128,
    config: Config,
    /// The port's MTU, if it has one.
    mtu: Option<u16>,
    control: Control,
    steering: Steering,
    hashing: Hashing,
    rings: ArrayVec<Ring, RINGS_MAX>,
    /// Positions of packed rings, kept for a successor server: see [`Kept`](kept::Kept).
    kept: Option<Arc<Map>>,
    /// Whether other adapters serve some of the queue pairs.
    is_part: bool,
    /// Its front end has stopped its rings, and frames for them are refused until this time: they wait.
    paused_until: Option<Time>,
}

impl VirtioNet {
    fn new(settings: &Settings) -> Result<Self, CreateError> {
        settings.check(&ABOUT)?;
        let mac = settings.mac.0;
        let pairs = settings.queues.unwrap_or(PAIRS_USUAL);
        let mut offer = feature::WORDS.iter().fold(0, |all, (bit, _)| all | bit);
        if pairs == 1 {
            offer &= !(feature::MQ | feature::RSS);
        }
        let mtu = settings.mtu.map(|mtu| mtu.max(MTU_MIN));
        if mtu.is_none() {
            offer &= !feature::MTU;
        }
        // For the PCI function only: a vhost-user front end would have to be asked for each translation.
        offer &= !feature::ACCESS_PLATFORM;
        if !settings.standby {
            offer &= !feature::STANDBY;
        }
        let config = Config { mac, link: true, pairs, mtu: mtu.unwrap_or(0), speed_mbps: SPEED_MBPS };
        let rings = std::iter::repeat_n(Ring::default(), 2 * usize::from(pairs) + 1).collect();
        let (control, steering, hashing) = (Control::new(mac), Steering::default(), Hashing::default());
        Ok(Self {
            offer,
            taken: 0,
            config,
            mtu,
            control,
            steering,
            hashing,
            rings,
            kept: None,
            is_part: false,
            paused_until: None,
        })
    }

    /// Resets the driver's settings, except features and rings.
    fn forget_driver(&mut self) {
        self.control = Control::new(self.config.mac);
        self.steering = Steering::default();
        self.hashing = Hashing::default();
    }

    /// Whether the driver took a feature.
    fn took(&self, bit: u128) -> bool {
        self.taken & bit != 0
    }

    /// Whether the driver's rings are packed.
    fn is_packed(&self) -> bool {
        self.took(feature::RING_PACKED)
    }

    /// The features in effect: those negotiated, without receive offloads that were switched off.
    fn effective(&self) -> u128 {
        self.taken & !self.control.off
    }

    /// Bytes of the header before each frame (5.1.6.1).
    fn header_len(&self) -> usize {
        let full = self.took(feature::VERSION_1) || self.took(feature::MRG_RXBUF);
        match (self.took(feature::HASH_REPORT), full) {
            (true, _) => header::HASH_LEN,
            (false, true) => header::LEN,
            (false, false) => header::LEGACY_LEN,
        }
    }

    /// Purpose of a ring, from the negotiated features.
    fn role(&self, number: u16) -> Role {
        role(self.taken, self.config.pairs, number)
    }

    /// The queue of a transmit ring.
    fn transmit_queue(&self, number: u16) -> Option<u16> {
        match self.role(number) {
            Role::Transmit(queue) => Some(queue),
            _ => None,
        }
    }

    /// Receive queues in use: the control queue's number, or all that are enabled.
    fn receive_queues(&self) -> u16 {
        if self.hashing.scales() {
            return self.config.pairs;
        }
        if self.took(feature::CTRL_VQ) {
            return self.control.pairs;
        }
        let last = (0..self.config.pairs)
            .rev()
            .find(|queue| self.rings.get(usize::from(receive_ring(*queue))).is_some_and(|ring| ring.live()));
        last.map_or(0, |queue| queue + 1)
    }

    /// Whether flows are remembered for steering.
    fn steers(&self) -> bool {
        self.took(feature::MQ) && !self.hashing.scales()
    }

    /// Notifies the driver of shown completions, if it wants that, before the ring is left.
    fn notify(&mut self, number: u16, cx: &mut Context<'_>) {
        match self.role(number) {
            Role::Receive(_) => self.notify_arrivals(number, cx),
            Role::Transmit(_) => self.notify_completions(number, cx),
            Role::Control | Role::Nothing => {}
        }
    }

    /// Notes where the guest broke a ring: at the position of the next chain.
    #[cold]
    fn blame_ring(&self, number: u16, broken: Broken, cx: &mut Context<'_>) {
        let queue = match self.role(number) {
            Role::Receive(queue) => Queue::Receive(queue),
            Role::Transmit(queue) => Queue::Transmit(queue),
            Role::Control | Role::Nothing => Queue::Control,
        };
        let ring = self.rings.get(usize::from(number)).copied().unwrap_or_default();
        match broken {
            Broken::Place => cx.guest_error(ErrorPlace::Ring(queue), ring.descriptors, broken.expected()),
            _ => {
                // A packed ring's position has its wrap counter at the top (2.8.1).
                let at = u32::from(ring.next & 0x7fff) % u32::from(ring.size.max(1));
                cx.guest_error(ErrorPlace::Descriptor(queue, at), ring.next.into(), broken.expected());
            }
        }
    }

    /// The guest broke a ring: it is not served until it is started again (2.1.2).
    #[cold]
    fn break_ring(&mut self, number: u16, broken: Broken, cx: &mut Context<'_>) {
        if broken == Broken::Waits {
            return;
        }
        self.blame_ring(number, broken, cx);
        self.notify(number, cx);
        if let Some(ring) = self.rings.get_mut(usize::from(number)) {
            cx.out.stalled.insert(number);
            ring.broken = Some(broken);
            if !broken.lacks_memory() {
                ring.generation = ring.generation.wrapping_add(1);
            }
        }
    }

    /// Whether a ring is broken.
    fn is_broken(&self) -> bool {
        self.rings.iter().any(|ring| ring.started && ring.broken.is_some())
    }

    /// Serves a ring that lacked memory again.
    fn mend_ring(&mut self, number: u16, cx: &mut Context<'_>) {
        if let Some(ring) = self.rings.get_mut(usize::from(number))
            && ring.broken.is_some_and(Broken::lacks_memory)
        {
            ring.broken = None;
            self.wake(number, cx);
        }
    }
}

impl Adapter for VirtioNet {
    fn face(&mut self) -> Face<'_> {
        Face::Rings(self)
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        self.fetch_ring(queue, budget, batch, cx)
    }

    fn complete(&mut self, batch: &Batch, cx: &mut Context<'_>) {
        self.complete_ring(batch, cx);
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        self.deliver_frames(frames, cx)
    }

    fn notice(&mut self, event: Event, cx: &mut Context<'_>) {
        match event {
            Event::Link(up) => self.config.link = up,
            Event::Restored => {
                // The switch may be different from the one before.
                self.control.announce = self.took(feature::GUEST_ANNOUNCE);
                for ring in &mut self.rings {
                    ring.tally = Tally { carried_before: ring.carried, ..Tally::default() };
                }
                (0..self.rings.len() as u16).for_each(|number| self.wake(number, cx));
                self.notify_late(cx);
            }
            // Every call translates its rings afresh.
            Event::Memory => {
                for number in 0..self.rings.len() as u16 {
                    self.mend_ring(number, cx);
                    if cx.memory.is_on_demand() {
                        // The translation that it waited for may be there.
                        self.wake(number, cx);
                    }
                }
            }
            // Rings have no doorbell page.
            Event::Page | Event::Answer(_) | Event::Missed(_) | Event::Lost | Event::Unanswered => {}
        }
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        for number in 0..self.rings.len() as u16 {
            if self.role(number) == Role::Control {
                self.serve_control(number, cx);
            }
        }
        self.notify_late(cx);
        match self.paused_until {
            Some(at) if at > cx.now => cx.out.wake_by(at),
            Some(_) => self.end_pause(cx),
            None => {}
        }
    }

    fn reset(&mut self, _kind: Reset, cx: &mut Context<'_>) {
        self.end_pause(cx);
        for ring in &mut self.rings {
            *ring = Ring { generation: ring.generation.wrapping_add(1), ..Ring::default() };
        }
        self.taken = 0;
        self.forget_driver();
    }

    fn transmit_queues(&self) -> u16 {
        let serves = |queue: &u16| {
            let number = transmit_ring(*queue);
            self.transmit_queue(number).is_some() && self.rings.get(usize::from(number)).is_some_and(|ring| ring.live())
        };
        (0..self.config.pairs).rev().find(serves).map_or(0, |queue| queue + 1)
    }

    fn is_driven(&self) -> bool {
        self.rings.iter().any(|ring| ring.started && ring.enabled)
    }

    fn features(&self) -> Vec<&'static str> {
        let taken = self.effective();
        feature::WORDS.iter().filter(|(bit, _)| taken & bit != 0).map(|(_, word)| *word).collect()
    }

    fn receive_block(&self) -> Option<&'static str> {
        let mut rings = (0..).zip(&self.rings);
        let receives = rings.any(|(number, ring)| matches!(self.role(number), Role::Receive(_)) && ring.live());
        match () {
            () if !Adapter::is_driven(self) => None,
            () if !receives => Some("no receive queue is started"),
            () if !self.config.link => Some(LINK_DOWN),
            () => (self.took(feature::CTRL_RX) && self.control.is_closed())
                .then_some("its receive filter accepts no address (VIRTIO_NET_CTRL_RX_NOUNI, NOMULTI, NOBCAST)"),
        }
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        let ring = self.rings.get(usize::from(number)).filter(|ring| ring.started)?;
        let queue = match self.role(number) {
            Role::Receive(queue) => Queue::Receive(queue),
            Role::Transmit(queue) => Queue::Transmit(queue),
            Role::Control => Queue::Control,
            Role::Nothing => return None,
        };
        Some(Stall { queue, why: ring.broken?.why(), cure: CURE })
    }
}
