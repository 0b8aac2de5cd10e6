//! A queue of an interface of the host, past the host's network stack. Follows Linux's `Documentation/networking/af_xdp.rst`.
//!
//! ```text
//!   fill ring ───► kernel or driver ───► receive ring          memory: RECEIVE pieces for frames from the wire,
//!   (free pieces)                        (frames)                      TRANSMIT pieces for frames to the wire
//!   transmit ring ─► kernel or driver ─► completion ring
//! ```
//!
//! An XDP program at the interface gives the frames of this receive queue to this socket; the host's stack does not see them. Received
//! frames lie in memory of ours, and the switch takes them from there. With a driver that can (zero copy) they were put there by the
//! card; else the kernel copies each frame once more. Frames come whole and leave whole: consecutive TCP segments are joined on
//! arrival (`joining.rs`), packets are cut and checksums computed before they leave.
//!
//! Program, map and socket need rights that the daemon has only while it starts: an interface that was deleted is not opened again.
//! Another process goes on with socket, memory and link: after an upgrade nothing is lost (`saved.rs`), after a kill what the killed
//! process had just taken (`resumed.rs`).

mod error;
mod open;
mod program;
mod resumed;
mod ring;
mod saved;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, HandOver, News, PACKETS, Packet, Piece, PortId, Progress, Reason, Time,
    Uplink, Wants,
};
use nicety_memory::{Map, Span};
use rustix::io::Errno;
use rustix::net::xdp::{XdpDesc, XdpDescOptions, XdpStatistics};
use rustix::net::{RecvFlags, SendFlags};

use crate::buffers::Buffers;
use crate::egress::{self, Put, Sink};
use crate::events::LinkEvents;
use crate::joining::Joining;
use crate::watch::Watch;
pub use error::XdpError;
use ring::Ring;

/// Pieces of memory for received frames: as many as the receive ring and the fill ring have entries.
const RECEIVE: u32 = 2048;
/// The same for frames that are sent, of the transmit ring and the completion ring.
const TRANSMIT: u32 = 1024;
/// Most calls that have the kernel send. It takes at least 32 frames in each (`TX_BATCH_SIZE` in `net/xdp/xsk.c`).
const KICKS: u32 = 2 * PACKETS as u32 / 32;
/// Time until frames are offered again that the interface did not take.
const AGAIN: Duration = Duration::from_micros(50);
/// Frames after which the kernel's count of lost frames is read. Fewer cannot have filled a ring that was empty.
const COUNTED: u32 = RECEIVE / 2;
/// An Ethernet header.
const HEADER_BYTES: u32 = 14;
/// The shortest Ethernet frame, without its check sequence (IEEE 802.3 section 4.4.2).
const FRAME_MIN: u32 = 60;

/// See the module's documentation.
#[derive(Debug)]
pub struct Xdp {
    name: String,
    queue: u16,
    /// The interface's number.
    index: u32,
    /// Bytes of a piece of memory: 2048 or 4096.
    piece: u32,
    /// The longest frame, without its check sequence.
    longest: u32,
    rings: Rings,
    socket: OwnedFd,
    /// The program is attached as long as one of these is open.
    link: OwnedFd,
    memory: Buffers,
    memory_file: OwnedFd,
    mode: Mode,
    watch: Watch,
    /// Without them it is known to be down when a frame is sent to it.
    events: Option<LinkEvents>,
    joining: Joining,
    /// Addresses of the pieces into which the batch points.
    lent: Vec<u64>,
    borrowed: bool,
    /// Addresses of pieces for frames that are to be sent.
    free: Vec<u64>,
    /// Frames were refused.
    full: bool,
    now: Time,
    line: Line,
    /// State that the log has already reported.
    logged: Option<Line>,
    /// Frames since the kernel's count of lost frames was read, and the count.
    uncounted: u32,
    lost: Lost,
}

/// The rings that are shared with the kernel.
#[derive(Debug)]
struct Rings {
    fill: Ring<u64>,
    receive: Ring<XdpDesc>,
    transmit: Ring<XdpDesc>,
    completion: Ring<u64>,
}

/// The way of frames from the interface into our memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Mode {
    zero_copy: bool,
    /// The driver runs the program, before the kernel has made a packet of the frame.
    by_driver: bool,
}

/// State of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Line {
    Up,
    Down,
    Gone,
}

/// The kernel's counts of lost frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Lost {
    arriving: u64,
    leaving: u64,
}

impl Lost {
    fn of(now: XdpStatistics) -> Self {
        Self { arriving: now.rx_dropped + now.rx_ring_full.unwrap_or(0), leaving: now.tx_invalid_descs }
    }
}

impl Xdp {
    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The queue's number, from 0.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Whether the card reads and writes our memory itself.
    pub fn zero_copy(&self) -> bool {
        self.mode.zero_copy
    }

    /// Whether the interface was deleted.
    pub fn gone(&self) -> bool {
        self.line == Line::Gone
    }

    /// The way of frames, as text for people.
    fn way(&self) -> &'static str {
        match self.mode {
            Mode { zero_copy: true, .. } => "zero copy",
            Mode { by_driver: true, .. } => "a copy by the kernel (its driver knows no zero copy)",
            Mode { .. } => "a copy by the kernel (its driver runs no XDP programs)",
        }
    }

    /// Gives the pieces of the last batch to the kernel again.
    fn give_back(&mut self) {
        if self.lent.is_empty() {
            return;
        }
        // As many pieces as the ring has entries: there is room.
        self.lent.drain(..).for_each(|address| _ = self.rings.fill.push(address));
        if self.rings.fill.needs_wakeup() {
            let _driver_goes_on = rustix::net::recv(&self.socket, &mut [0; 0][..], RecvFlags::DONTWAIT);
        }
    }

    /// Takes back the pieces of frames that were sent.
    fn reap(&mut self) {
        while let Some(address) = self.rings.completion.pop() {
            self.free.push(address);
        }
    }

    /// Has the kernel send what waits in the ring.
    fn kick(&mut self) {
        for _ in 0..KICKS {
            if self.line != Line::Up || self.rings.transmit.waiting() == 0 || !self.rings.transmit.needs_wakeup() {
                break;
            }
            match rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT) {
                Ok(_) => break,
                // It has sent as many as it does in one call.
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::NETDOWN) => self.line = Line::Down,
                Err(Errno::NXIO | Errno::NODEV) => self.lose(),
                // The driver is busy, or the completions must be taken first.
                Err(_) => break,
            }
        }
        self.reap();
    }

    fn lose(&mut self) {
        self.line = Line::Gone;
        self.watch.remove(&self.socket);
        // Closed, it leaves the watch.
        self.events = None;
    }

    /// Looks whether the interface was taken down, came up, or was deleted.
    fn look_at_events(&mut self) {
        if self.line == Line::Gone {
            return;
        }
        // `xsk_notifier` in `net/xdp/xsk.c`.
        if matches!(rustix::net::sockopt::socket_error(&self.socket), Ok(Err(_))) {
            return self.lose();
        }
        match self.events.as_ref().and_then(|events| events.take(self.index, open::UP)) {
            Some(true) => self.line = Line::Up,
            Some(false) => self.line = Line::Down,
            None => {}
        }
    }

    /// Counts the frames that the kernel has dropped, since it was last asked.
    fn count_lost(&mut self, counters: &mut Counters) {
        self.uncounted = 0;
        let Ok(now) = rustix::net::sockopt::xdp_statistics(&self.socket) else { return };
        let lost = Lost::of(now);
        counters.transmit_drops[Reason::BufferFull as usize] += lost.arriving.saturating_sub(self.lost.arriving);
        counters.receive_drops[Reason::UplinkRefused as usize] += lost.leaving.saturating_sub(self.lost.leaving);
        self.lost = lost;
    }

    /// A received frame. `None` if the kernel names memory that is not ours.
    fn frame(&mut self, entry: XdpDesc) -> Option<Span> {
        let at = u32::try_from(entry.addr).ok().filter(|at| *at < RECEIVE * self.piece)?;
        self.lent.push(u64::from(at - at % self.piece));
        (at % self.piece + entry.len <= self.piece).then(|| self.memory.span(at, entry.len))
    }

    /// A piece of memory for a frame.
    fn room(&mut self) -> Option<u64> {
        if self.free.is_empty() {
            self.kick();
        }
        self.free.pop()
    }

    fn why(&self, line: Line) -> Option<String> {
        let name = &self.name;
        match line {
            Line::Up => None,
            Line::Down => Some(format!("{name} is down, or has no carrier: ip link set {name} up")),
            Line::Gone => Some(format!(
                "{name} was deleted: once it is there again, restart the daemon, which has the rights to open its queues only while \
                 it starts"
            )),
        }
    }
}

impl Uplink for Xdp {
    fn fetch(
        &mut self,
        port: PortId,
        budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        now: Time,
    ) -> Progress {
        self.now = now;
        self.reap();
        self.kick();
        if self.borrowed && self.memory.held() {
            batch.start(&Map::empty(), port, 0);
            return Progress { more: true, armed: false };
        }
        self.give_back();
        let map = Arc::clone(self.memory.map());
        batch.start(&map, port, 0);
        let (mut frames, mut armed) = (0, false);
        // A frame may end the open packet and be a packet of its own: two packets must fit.
        let enough = |batch: &Batch, joining: &Joining| {
            let bytes = batch.bytes() + joining.bytes();
            batch.len() + 2 > PACKETS || (bytes > 0 && bytes >= budget.bytes)
        };
        while frames < budget.packets.max(1) && !enough(batch, &self.joining) {
            let Some(entry) = self.rings.receive.pop() else {
                armed = true;
                break;
            };
            frames += 1;
            match self.frame(entry) {
                Some(span) if span.len() >= HEADER_BYTES => self.joining.take(&map, span, batch, counters),
                Some(_) => counters.transmit_drop(Reason::TooShort),
                None => counters.transmit_drop(Reason::BadDescriptor),
            }
        }
        self.joining.close(batch, counters);
        self.borrowed = !batch.is_empty();
        if frames == 0 {
            self.look_at_events();
        }
        self.uncounted = self.uncounted.saturating_add(frames as u32);
        if armed && self.uncounted >= COUNTED {
            self.count_lost(counters);
        }
        Progress { more: !armed, armed }
    }

    fn complete(&mut self, _batch: &Batch) {
        self.borrowed = false;
        self.give_back();
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery {
        self.now = now;
        self.reap();
        let delivery = egress::deliver(frames, counters, self);
        self.kick();
        self.full = delivery.refused() != 0;
        delivery
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.descriptor())
    }

    fn wake(&self) -> Option<Time> {
        let waits = || self.rings.transmit.waiting() != 0 && self.rings.transmit.needs_wakeup();
        (self.line == Line::Up && (self.full || waits())).then(|| self.now.after(AGAIN))
    }

    fn hand_over(&self) -> HandOver<'_> {
        HandOver::Parts {
            descriptors: vec![self.socket.as_fd(), self.memory_file.as_fd(), self.link.as_fd()],
            state: self.save(),
        }
    }

    fn carrier(&self) -> bool {
        self.line == Line::Up
    }

    fn features(&self) -> Vec<&'static str> {
        vec!["AF_XDP", if self.mode.zero_copy { "zero-copy" } else { "copy" }]
    }

    fn vacant(&self) -> Option<String> {
        self.why(self.line)
    }

    fn news(&mut self) -> Option<News> {
        if self.logged == Some(self.line) {
            return None;
        }
        let said = self.why(self.line).map_or_else(
            || News::Back(format!("queue {} of {} is up, with {}", self.queue, self.name, self.way())),
            News::Vacant,
        );
        self.logged = Some(self.line);
        Some(said)
    }
}

impl Sink for Xdp {
    fn wants(&self, _: &Packet) -> Wants {
        Wants { frame_max: self.longest, ..Wants::default() }
    }

    fn put(&mut self, piece: &mut Piece<'_>) -> Put {
        if self.line != Line::Up {
            return Put::Dropped(Reason::LinkDown);
        }
        let len = piece.len();
        if len > self.longest {
            return Put::Dropped(Reason::TooLong);
        }
        let Some(address) = self.room() else { return Put::Full };
        let at = address as u32;
        piece.write(self.memory.map(), &[self.memory.span(at, len)]);
        let padded = len.max(FRAME_MIN);
        if padded > len {
            let pad = self.memory.span(at + len, padded - len);
            self.memory.map().write_span(pad, &[0; FRAME_MIN as usize][..(padded - len) as usize]);
        }
        // The ring has an entry for each piece.
        let entry = XdpDesc { addr: address, len: padded, options: XdpDescOptions::empty() };
        if !self.rings.transmit.push(entry) {
            self.free.push(address);
            return Put::Full;
        }
        Put::Taken
    }
}
