//! The core of Intel's chips: rings, filter, link, registers and saved state. A chip's folder holds the differences in its datasheet:
//! its table, its [`Facts`], its own state ([`Own`]), its interrupts, and the methods of [`Chip`] and [`Wired`].
//!
//! ```text
//!            Mac ── access.rs ── transmit.rs, receive.rs ── saved.rs
//!             │ Chip: facts, descriptors; Interrupting
//!      ┌──────┴────────────────┐
//!    Wired (wired.rs)        Link of vf
//!    PHY, CTRL, loopback,    mailbox, family
//!    pause, resets
//! ```

mod access;
pub mod model;
pub mod receive;
pub mod saved;
mod stamps;
pub mod transmit;
pub mod wired;

use std::sync::LazyLock;

use arrayvec::ArrayVec;
use nicety_adapter::family::{Answer, Ask, Family};
use nicety_adapter::interrupts::{CompletionDelay, Interrupts};
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, Mappable, Packet, PciFace, Pick, Progress, Queue,
    Registers, Reset, Stall, Time, Wants,
};
use nicety_pci::{Changes, Function, Rom};

use self::receive::{Arrived, Route};
pub use self::saved::Own;
use self::transmit::TransmitQueue;
pub use self::wired::Wired;
use super::fault;
use super::filter::Filter;
use super::flow::Pause;
use super::lost::Lost;
use super::pages::Pages;
use super::phy::Phy;
use super::receive::{Format, Offer, Ring};
use super::registers::*;
use super::rss::Rss;
use super::statistics::{OctetsRead, Statistics};
use super::transmit::Completed;
use crate::about::About;
use crate::block::{LINK_DOWN, LOOPBACK, NO_MASTER};
use crate::msix;

/// The BAR of MSI-X, if there is MSI-X.
pub const MSIX_BAR: u8 = 3;

/// Changes after which pending causes of a chip with MSI-X and INTx may interrupt, or use another vector.
pub const ROUTES: Changes =
    Changes::INTX.union(Changes::MSI).union(Changes::MSIX).union(Changes::POWER).union(Changes::BUS_MASTER);

/// Action that makes a driver reset the chip and set up its rings anew: Linux e1000_close and e1000_open, igb_close and igb_open,
/// and the like of its other drivers.
const CURE: &str = "restart the guest's driver (in Linux: `ip link set eth0 down`, then up)";

/// A chip: `N` queues each way, and its own state.
#[derive(Debug)]
pub struct Mac<O: Own, const N: usize> {
    /// Its description.
    pub about: &'static About,
    /// Queues each way that its model has.
    pub queues: usize,
    /// The pages of its registers that a guest may map.
    pub pages: Option<&'static LazyLock<Pages>>,
    /// Its option ROM.
    pub rom: Option<Rom>,
    /// Its PCI function.
    pub function: Function,
    /// Its registers.
    pub registers: Bank,
    /// Its PHY. A virtual function uses none.
    pub phy: Phy,
    /// Receive addresses.
    pub filter: Filter,
    /// Receive-side scaling, if it has that.
    pub rss: Rss,
    /// Transmit queues.
    pub transmit: [TransmitQueue<O::Contexts>; N],
    /// Frames of a loopback, between their fetch and their delivery.
    pub looped: Option<Box<Batch>>,
    /// Pause of the transmitter.
    pub pause: Pause,
    /// The rings are lost, and the driver has not reset the chip yet.
    pub lost: Option<Lost>,
    /// Halves of counters that were read.
    pub octets: OctetsRead,
    /// Receive queues that refused frames, a bit for each.
    pub starved: u32,
    /// Whether the driver sees a link.
    pub link_up: bool,
    /// ICR and IMS, of a virtual function EICR and EIMS; throttles and the line.
    pub interrupts: Interrupts,
    /// Completions that wait for an interrupt, by transmit queue.
    pub completions: [CompletionDelay; N],
    /// Why the last walk of each ring failed, by [`stall_of`]. The chip has no such state.
    pub stalls: [[Option<&'static str>; 2]; N],
    /// State of this kind of chip only.
    pub own: O,
}

/// Features that the driver may enable, and whether it has. It allocates nothing, because it is asked for after messages of a VMM.
pub type Known = ArrayVec<(bool, &'static str), 8>;

/// Facts in which datasheets differ.
#[derive(Debug)]
pub struct Facts {
    /// It has a PHY, loopback and flow control.
    pub wired: bool,
    /// Each queue is enabled by itself and writes its head back (82575 and later).
    pub advanced: bool,
    /// Tags are inserted only while CTRL.VME is set.
    pub tags_by_mode: bool,
    /// A ring without a length can be a lone descriptor.
    pub takes_lone: bool,
    /// UDP checksums have their own status bit.
    pub tells_udp: bool,
    /// CTRL: the driver disables DMA. 0: it has no such bit.
    pub master_disable: u32,
    /// Changes after which pending causes may interrupt, or use another vector.
    pub routes: Changes,
}

/// The chip's interrupts.
pub trait Interrupting {
    /// Raises causes.
    fn cause(&mut self, bits: u32, cx: &mut Context<'_>);

    /// The register of causes is read.
    fn read_causes(&mut self, cx: &mut Context<'_>) -> u32;

    /// Their value, without an effect.
    fn peek_causes(&self) -> u32;

    /// The register of causes is written: ones clear them.
    fn clear_causes(&mut self, value: u32, cx: &mut Context<'_>);

    /// Causes are enabled.
    fn enable_causes(&mut self, value: u32, cx: &mut Context<'_>);

    /// Frames have arrived.
    fn received(&mut self, arrived: Arrived, cx: &mut Context<'_>);

    /// Descriptors of a queue were completed: at least one.
    fn sent(&mut self, queue: usize, done: Completed, cx: &mut Context<'_>);

    /// Raises the causes of completions in a queue.
    fn signal_completions(&mut self, queue: usize);

    /// Signals what causes, masks and throttles allow now.
    fn settle(&mut self, cx: &mut Context<'_>);

    /// Requests the earliest tick needed.
    fn rearm(&self, cx: &mut Context<'_>);

    /// Handles a tick, whether or not a deadline has passed.
    fn time_passed(&mut self, cx: &mut Context<'_>);

    /// Command, MSI, MSI-X or the power state changed.
    fn mode_changed(&mut self, cx: &mut Context<'_>);
}

/// The chip's facts, and its differences on the way of frames.
pub trait Chip: Interrupting + Link {
    /// Its datasheet's facts.
    const FACTS: Facts;

    /// Offloads that a receive queue accepts.
    fn wants(&self, queue: usize) -> Wants;

    /// Format of a receive queue's descriptors, and bytes of their buffers.
    fn shape(&self, queue: usize) -> (Format, [u32; 4]);

    /// A packet's queue, and the fields of its descriptor that are known before the packet is written.
    fn steer(&mut self, frames: &Frames<'_>, pick: Pick, packet: &Packet) -> Route;

    /// Adjusts an opened ring to the quirk of a driver.
    fn adjust(&self, _ring: &mut Ring<'_>, _now: Time) {}

    /// Whether the chip takes the length of each frame of a packet, by rules that [`Wants::frame_max`] does not have.
    fn fits(&self, _offer: &Offer<'_, '_>, _packet: &Packet, _wants: Wants) -> bool {
        true
    }

    /// Status bits of a frame that gets an arrival time stamp if it is accepted; 0 for others. `timed`: a filter has found it.
    fn stamp_status(&self, _offer: &Offer<'_, '_>, _timed: bool) -> u32 {
        0
    }

    /// The clock for time stamps.
    fn clock(&self, _now: Time) -> u64 {
        0
    }

    /// Free descriptors of a receive queue at which the driver is told that few are left.
    fn threshold(&self, ring: &Ring<'_>, queue: usize) -> u32;

    /// A ring was used in a delivery.
    fn used(&mut self, _ring: &Ring<'_>, _cx: &mut Context<'_>) {}

    /// Whether frames with the tag of a VLAN that was not granted are dropped.
    fn checks_tags(&self) -> bool {
        false
    }

    /// A transmit ring was walked.
    fn walked(&mut self) {}

    /// Its features, and whether the driver has enabled each.
    fn known_features(&self) -> Known;

    /// The next ask for its family.
    fn next_ask(&mut self) -> Option<Ask> {
        None
    }

    /// The family of this function alone.
    fn own_family(&self) -> Option<Box<dyn Family>> {
        None
    }
}

/// A chip's link and its resets: by PHY and CTRL ([`Wired`]), or by its family.
pub trait Link {
    /// Handles a guest's read of a register that is not a ring's.
    fn read_other(&mut self, place: &Place, cx: &mut Context<'_>) -> u32;

    /// Handles a guest's write to a register that is not a ring's. The register has its new value already.
    fn write_other(&mut self, place: &Place, old: u32, value: u32, cx: &mut Context<'_>);

    /// The port's link went up or down.
    fn plug(&mut self, up: bool, cx: &mut Context<'_>);

    /// Resets the chip.
    fn restart(&mut self, kind: Reset, cx: &mut Context<'_>);

    /// Resumes from restored state: shows the line, sends waiting interrupts, checks the rings.
    fn resume(&mut self, cx: &mut Context<'_>);

    /// The rings are lost. Makes the driver reset the chip.
    fn lose(&mut self, cx: &mut Context<'_>);

    /// Its family has answered.
    fn answered(&mut self, _answer: &Answer, _cx: &mut Context<'_>) {}

    /// A tick, after [`Interrupting::time_passed`].
    fn try_again(&mut self, _cx: &mut Context<'_>) {}

    /// Whether the driver has started it.
    fn is_started(&self) -> bool;
}

/// Number of a ring in [`Outbox::stalled`](nicety_adapter::Outbox::stalled).
fn stall_of(queue: usize, transmit: bool) -> u16 {
    2 * queue as u16 + u16::from(transmit)
}

impl<O: Own, const N: usize> Mac<O, N> {
    /// A chip whose registers have their reset values. It has no PHY, its link is up.
    pub fn bare(
        about: &'static About,
        function: Function,
        registers: &'static Table,
        interrupts: Interrupts,
        own: O,
    ) -> Self {
        Self {
            about,
            queues: N,
            pages: None,
            rom: None,
            function,
            registers: Bank::new(registers),
            phy: Phy::new(&[]),
            filter: Filter::default(),
            rss: Rss::default(),
            transmit: [TransmitQueue::default(); N],
            looped: None,
            pause: Pause::default(),
            lost: None,
            octets: OctetsRead::default(),
            starved: 0,
            link_up: true,
            interrupts,
            completions: [CompletionDelay::default(); N],
            stalls: [[None; 2]; N],
            own,
        }
    }

    /// Records whether a ring could be walked.
    fn saw_ring(&mut self, number: u16, why: Option<&'static str>, cx: &mut Context<'_>) {
        let Some(stall) = self.stalls.as_flattened_mut().get_mut(usize::from(number)) else { return };
        let before = std::mem::replace(stall, why);
        if why.is_some() && before.is_none() {
            cx.out.stalled.insert(number);
        }
    }

    /// Marks all transmit queues as possibly having work.
    pub fn look_at_all_queues(&self, cx: &mut Context<'_>) {
        (0..self.queues as u16).for_each(|queue| cx.out.work.insert(queue));
    }

    /// Resets all queues, without an effect outside the chip.
    pub fn clear_queues(&mut self) {
        self.transmit.iter_mut().for_each(TransmitQueue::reset);
        self.stalls = [[None; 2]; N];
        self.completions = [CompletionDelay::default(); N];
        self.pause = Pause::default();
        self.rss.forget();
    }

    /// Starts the pause of a vector.
    pub fn begin_throttle(&mut self, vector: u16, cx: &Context<'_>) {
        self.interrupts.throttle(vector).into_iter().for_each(|throttle| throttle.begin(cx.now));
    }

    /// Asks for a tick at the first of these deadlines: the given ones, those of waiting completions, and the pause's.
    pub fn rearm_for(&self, deadlines: impl IntoIterator<Item = Time>, cx: &mut Context<'_>) {
        let completions = self.completions.iter().filter_map(CompletionDelay::due);
        let next = completions.chain(deadlines).chain(self.pause.due()).min();
        if next.is_some() {
            cx.out.wake = next;
        }
    }
}

impl<O: Own, const N: usize> Mac<O, N>
where
    Self: Chip,
{
    /// Whether the chip may reach guest memory: both PCI's bit and the chip's own.
    pub fn may_dma(&self) -> bool {
        self.function.bus_master() && self.registers[CTRL] & Self::FACTS.master_disable == 0
    }

    /// Handles the deadlines of completions and of the pause.
    pub fn deadlines_passed(&mut self, cx: &mut Context<'_>) {
        for queue in 0..N {
            if self.completions[queue].over(cx.now) {
                self.signal_completions(queue);
            }
        }
        if self.pause.over(cx.now) {
            self.look_at_all_queues(cx);
        }
    }

    /// An interrupt is sent: deferred completions join it.
    pub fn join_completions(&mut self) {
        for queue in 0..N {
            if self.completions[queue].join() {
                self.signal_completions(queue);
            }
        }
    }
}

impl<O: Own, const N: usize> PciFace for Mac<O, N>
where
    Self: Chip,
{
    fn function(&self) -> &Function {
        &self.function
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        let changes = self.function.config_write(u64::from(offset), data);
        O::bound(&mut self.function);
        if changes.intersects(Changes::SOFT_RESET | Changes::FUNCTION_RESET) {
            self.restart(Reset::Function, cx);
        }
        if changes.intersects(Self::FACTS.routes) {
            self.mode_changed(cx);
        }
        if changes.intersects(Changes::BUS_MASTER | Changes::POWER) && self.may_dma() {
            self.look_at_all_queues(cx);
            self.offer_room(!0, cx);
        }
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        if bar == MSIX_BAR {
            return msix::read(&self.function, bar, offset, data);
        }
        self.read_bar(bar, offset, data, cx);
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        if bar == MSIX_BAR {
            return msix::write(&mut self.function, bar, offset, data);
        }
        self.write_bar(bar, offset, data, cx);
    }

    fn mappable(&self) -> Option<Mappable> {
        self.pages.map(|pages| pages.part())
    }

    fn doorbells(&self) -> Vec<u32> {
        self.pages.map_or_else(Vec::new, |pages| pages.offsets())
    }

    fn shown(&self, words: &mut [u32]) -> bool {
        self.pages.inspect(|pages| pages.show(&self.registers, words)).is_some()
    }

    fn rom(&self) -> Option<&Rom> {
        self.rom.as_ref()
    }
}

impl<O: Own, const N: usize> Adapter for Mac<O, N>
where
    Self: Chip,
{
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
            Event::Link(up) => self.plug(up, cx),
            Event::Answer(answer) => self.answered(&answer, cx),
            Event::Restored => self.resume(cx),
            Event::Lost | Event::Unanswered => self.lose(cx),
            // A virtual function has no register for them.
            Event::Missed(frames) if Self::FACTS.wired => self.registers.count(MPC, frames),
            // Addresses are translated in every call; a mapped page has the values of `shown`.
            Event::Memory | Event::Page | Event::Missed(_) => {}
        }
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        self.time_passed(cx);
        self.try_again(cx);
    }

    fn reset(&mut self, kind: Reset, cx: &mut Context<'_>) {
        self.restart(kind, cx);
    }

    fn transmit_queues(&self) -> u16 {
        self.queues as u16
    }

    fn is_driven(&self) -> bool {
        self.is_started()
    }

    fn features(&self) -> Vec<&'static str> {
        let on = self.known_features();
        on.into_iter().filter(|&(on, _)| on).map(|(_, name)| name).collect()
    }

    fn receive_block(&self) -> Option<&'static str> {
        // Without an enable bit for each, all queues are on, and frames come to the first.
        let queues = (0..if Self::FACTS.advanced { N } else { 1 }).filter(|queue| self.receives(*queue));
        let tails = if Self::FACTS.takes_lone { fault::Tails::OpenEnded } else { fault::Tails::Inside };
        match () {
            () if !self.is_started() => None,
            () if self.registers[RCTL] & rctl::EN == 0 => Some(fault::OFF),
            () if !self.may_dma() => Some(NO_MASTER),
            () if !self.link_up => Some(LINK_DOWN),
            () if self.loops() => Some(LOOPBACK),
            () => fault::block(&self.registers, &self.filter, queues, tails),
        }
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        let queue = usize::from(number / 2);
        let transmit = !number.is_multiple_of(2);
        let on = if transmit { self.transmits(queue) } else { self.receives(queue) && self.may_dma() };
        let why = self.stalls.as_flattened().get(usize::from(number)).copied().flatten().filter(|_| on)?;
        let queue = if transmit { Queue::Transmit(number / 2) } else { Queue::Receive(number / 2) };
        Some(Stall { queue, why, cure: CURE })
    }

    fn ask(&mut self) -> Option<Ask> {
        self.next_ask()
    }

    fn family_of_one(&self) -> Option<Box<dyn Family>> {
        self.own_family()
    }
}
